"""What does Muster ask of a storage, and how does a local or shared folder keep it?

Put-if-absent, read, list, delete; nothing is ever overwritten. Standard library only: the API and the controller import
it too. It must not know what the objects mean.
"""

import contextlib
import os
import secrets
from pathlib import Path
from typing import Protocol

from workers.errors import StorageError


class Storage(Protocol):
    """Objects by key (relative, '/' between parts), durable once put."""

    def put(self, key: str, data: bytes) -> bool:
        """Store whole and durably, or not at all; False when the key is taken, which changes nothing."""
        ...

    def read(self, key: str) -> bytes | None:
        """Return the object, or None."""
        ...

    def list(self, prefix: str) -> list[str]:
        """Return the keys directly or indirectly below `prefix`, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        ...

    def sweep_staging(self, prefix: str) -> None:
        """Remove what interrupted puts left below `prefix`; only when nobody writes there."""
        ...


class FolderStorage:
    """A Storage in a folder (local or NFS): published by link(2), since a rename would replace."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def put(self, key: str, data: bytes) -> bool:
        """See Storage.put."""
        target = self._path(key)
        staging = target.with_name(f".{target.name}.{secrets.token_hex(6)}.staging")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with staging.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(staging, target)
            except FileExistsError:
                return False
            finally:
                staging.unlink()
            self._sync(target.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                staging.unlink()
            raise StorageError(f"cannot write {key}: {error}") from error
        return True

    def read(self, key: str) -> bytes | None:
        """See Storage.read."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"cannot read {key}: {error}") from error

    def list(self, prefix: str) -> list[str]:
        """See Storage.list."""
        base = self._path(prefix)
        found = (path for path in base.rglob("*") if path.is_file() and not path.name.startswith("."))
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def delete(self, key: str) -> None:
        """See Storage.delete; empty folders go with their last object."""
        path = self._path(key)
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            while path.parent != self._root and not any(path.parent.iterdir()):
                path = path.parent
                path.rmdir()

    def sweep_staging(self, prefix: str) -> None:
        """See Storage.sweep_staging."""
        for path in self._path(prefix).rglob(".*.staging"):
            path.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        path = (self._root / key).resolve()
        if not path.is_relative_to(self._root):
            raise StorageError(f"key {key!r} leaves the storage")
        return path

    @staticmethod
    def _sync(folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_storage(root: str) -> FolderStorage:
    """Return the storage at `root`, a folder path."""
    return FolderStorage(Path(root))
