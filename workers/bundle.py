"""How does a code folder become one content-addressed object, and a folder again, without leaving it?

A zip with sorted names and fixed dates, named by its SHA-256. Standard library only: CLI, API and hosts import it.
"""

import ast
import hashlib
import io
import stat
import zipfile
from pathlib import Path, PurePosixPath

from workers.errors import WorkerError
from workers.storage import Storage

MAX_FILES = 2000
MAX_BYTES = 64 << 20
SKIPPED = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", "node_modules"})
DATE = (1980, 1, 1, 0, 0, 0)


class BundleError(WorkerError):
    """The folder or archive cannot be a bundle; the text names the file and the remedy."""


def key(digest: str) -> str:
    """Return where a bundle is stored."""
    return f"bundles/{digest}.zip"


def digest_of(data: bytes) -> str:
    """Return the SHA-256 that names a bundle."""
    return hashlib.sha256(data).hexdigest()


def pack(folder: Path) -> tuple[str, bytes]:
    """Pack a code folder; return its digest and bytes. BundleError for links, too many files or bytes."""
    if not folder.is_dir():
        raise BundleError(f"{folder} is not a folder")
    files = [path for path in sorted(folder.rglob("*")) if not SKIPPED & set(path.relative_to(folder).parts)]
    for path in files:
        if path.is_symlink():
            raise BundleError(f"{path} is a link; copy the file into the folder instead")
    files = [path for path in files if path.is_file()]
    _check_sizes(len(files), sum(path.stat().st_size for path in files))
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in files:
            archive.writestr(zipfile.ZipInfo(path.relative_to(folder).as_posix(), DATE), path.read_bytes())
    data = memory.getvalue()
    return digest_of(data), data


def check(data: bytes) -> None:
    """BundleError unless the bytes are an archive of plain files that all stay within its folder."""
    with _opened(data) as archive:
        infos = archive.infolist()
        _check_sizes(len(infos), sum(info.file_size for info in infos))
        for info in infos:
            path = PurePosixPath(info.filename)
            mode = info.external_attr >> 16
            if path.is_absolute() or ".." in path.parts or "\\" in info.filename or not path.parts:
                raise BundleError(f"{info.filename!r} leaves the bundle's folder; use plain relative names")
            if stat.S_ISLNK(mode):
                raise BundleError(f"{info.filename!r} is a link; put the file itself into the bundle")


def check_program(data: bytes, program: str) -> None:
    """BundleError unless the bundle has the module of `program` and that module defines its function."""
    module, _, function = program.partition(":")
    stem = module.replace(".", "/")
    with _opened(data) as archive:
        names = set(archive.namelist())
        name = next((name for name in (f"{stem}.py", f"{stem}/__init__.py") if name in names), None)
        if name is None:
            raise BundleError(
                f"the bundle has no module {module!r} ({stem}.py); its files: {', '.join(sorted(names)[:8])}"
            )
        source = archive.read(name)
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise BundleError(f"{name} line {error.lineno}: {error.msg}") from error
    if function not in _top_level(tree):
        raise BundleError(f"{name} does not define {function!r}; define it, or name another function in `program`")


def unpack(storage: Storage, digest: str, target: Path) -> Path:
    """Unpack a stored bundle into `target` (once), verified by its digest. BundleError: it is missing or changed."""
    if target.is_dir():
        return target
    data = storage.read(key(digest))
    if data is None:
        raise BundleError(f"bundle {digest} is not in the storage")
    if digest_of(data) != digest:
        raise BundleError(f"bundle {digest} has another checksum in the storage")
    check(data)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _opened(data) as archive:
        archive.extractall(target)
    return target


def _opened(data: bytes) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(io.BytesIO(data))
    except zipfile.BadZipFile as error:
        raise BundleError(f"not a zip archive: {error}") from error


def _check_sizes(files: int, size: int) -> None:
    if files > MAX_FILES:
        raise BundleError(f"{files} files, at most {MAX_FILES}; leave data out and read it from its own place")
    if size > MAX_BYTES:
        raise BundleError(f"{size} bytes, at most {MAX_BYTES}; leave data out and read it from its own place")


def _top_level(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.ImportFrom(names=aliases) | ast.Import(names=aliases):
                names |= {alias.asname or alias.name for alias in aliases}
            case _:
                pass
    return names
