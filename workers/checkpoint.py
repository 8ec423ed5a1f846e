"""How is a training state written in pieces by several ranks, published whole or not at all, and read back?

The copy of the state is the only stall; pieces are safetensors with a done file each. It must not know the trainer.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray

from workers.errors import RestoreError, StorageError
from workers.lineage import Broken, Checkpoint, Seal, counting, publish, read_lineage, read_pieces, save_folder
from workers.storage import Storage

Array = NDArray[Any]
Json = dict[str, Any]
POLL = 0.02


@dataclass(frozen=True, slots=True)
class Save:
    """One save: who writes which tensors was fixed when it began."""

    job: str
    step: int
    generation: int
    writer: int
    writers: int
    head: Json
    """What the manifest says beside the pieces: sampler position, ledger, numeric class."""

    @property
    def folder(self) -> str:
        """Return the prefix of this save's pieces."""
        return save_folder(self.job, self.step, self.generation)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A verified checkpoint, or the beginning (number 0, no tensors), and what was passed over on the way to it."""

    number: int
    step: int
    head: Json
    tensors: dict[str, Array]
    skipped: tuple[str, ...]


def assign(sizes: Mapping[str, int], writers: int) -> list[list[str]]:
    """Deal tensor names to writers, each next largest to the one with least so far (ties: the lowest)."""
    loads = [0] * writers
    dealt: list[list[str]] = [[] for _ in range(writers)]
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        writer = loads.index(min(loads))
        loads[writer] += sizes[name]
        dealt[writer].append(name)
    return dealt


def write_piece(storage: Storage, save: Save, tensors: Mapping[str, Array]) -> None:
    """Write this writer's piece durably, then its done file."""
    data = safetensors.numpy.save(dict(tensors))
    name = f"{save.folder}/piece-{save.writer}-of-{save.writers}"
    storage.put(f"{name}.safetensors", data)
    index = {key: {"dtype": value.dtype.name, "shape": list(value.shape)} for key, value in tensors.items()}
    done = {"key": f"{name}.safetensors", "size": len(data), "sha256": _sha(data), "tensors": index}
    storage.put(f"{name}.done.json", json.dumps(done, sort_keys=True).encode())


def publish_when_whole(storage: Storage, save: Save, given_up: Callable[[], bool]) -> int | None:
    """Wait for every writer's done file, then publish the manifest; return its number, or None when given up."""
    names = [f"{save.folder}/piece-{writer}-of-{save.writers}.done.json" for writer in range(save.writers)]
    pieces: list[Json] = []
    for name in names:
        while (data := storage.read(name)) is None:
            if given_up():
                return None
            time.sleep(POLL)
        pieces.append(json.loads(data))
    body = {"kind": "checkpoint", "job": save.job, "step": save.step, "generation": save.generation}
    return publish(storage, save.job, body | {"head": save.head, "pieces": pieces})


class Saver:
    """Writes saves in the background, one at a time; `newest` is the last number this rank published."""

    def __init__(self, storage: Storage, told: Callable[[Save, int], None]) -> None:
        self._storage = storage
        self._told = told
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._given_up = threading.Event()

    def begin(self, save: Save, state: Mapping[str, Array]) -> None:
        """Copy this writer's tensors (the stall) and write them in the background."""
        self.wait()
        mine = assign({name: array.nbytes for name, array in state.items()}, save.writers)[save.writer]
        copies = {name: np.array(state[name], copy=True, order="C") for name in mine}
        self._thread = threading.Thread(target=self._write, args=(save, copies), name="saver", daemon=True)
        self._thread.start()

    def wait(self, limit: timedelta | None = None) -> None:
        """Wait for the save under way. StorageError when it failed or took longer than `limit`."""
        if self._thread is not None:
            self._thread.join(None if limit is None else limit.total_seconds())
            if self._thread.is_alive():
                raise StorageError(f"the save did not end within {limit}")
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise StorageError(f"the save failed: {error}") from error

    def give_up(self) -> None:
        """Drop the save under way if it still waits for pieces of others: one of its writers is gone."""
        self._given_up.set()
        if self._thread is not None:
            self._thread.join()
        self._thread, self._error = None, None
        self._given_up.clear()

    def _write(self, save: Save, copies: Mapping[str, Array]) -> None:
        try:
            write_piece(self._storage, save, copies)
            if save.writer == 0:
                number = publish_when_whole(self._storage, save, self._given_up.is_set)
                if number is not None:
                    self._told(save, number)
        except (OSError, StorageError) as error:
            self._error = error  # raised to the trainer by the next wait


def load_newest(storage: Storage, job: str, below: int) -> Loaded:
    """Return the newest checkpoint below number `below` that counts and verifies.

    The beginning is returned only when there never was one. RestoreError when none of those there are verifies.
    """
    skipped: list[str] = []
    if below <= 1:
        return Loaded(0, 0, {}, {}, ())
    for entry in reversed(counting(read_lineage(storage, job, below))):
        match entry:
            case Checkpoint():
                tensors = _verified(storage, entry, skipped)
                if tensors is not None:
                    return Loaded(entry.number, entry.step, entry.manifest["head"], tensors, tuple(skipped))
            case Broken():
                skipped.append(entry.why)
            case Seal():
                pass
    if skipped:
        raise RestoreError("no checkpoint verifies: " + "; ".join(skipped))
    return Loaded(0, 0, {}, {}, ())


def _verified(storage: Storage, entry: Checkpoint, skipped: list[str]) -> dict[str, Array] | None:
    tensors: dict[str, Array] = {}
    for piece in read_pieces(storage, entry):
        if isinstance(piece, Broken):
            skipped.append(piece.why)
            return None
        tensors |= safetensors.numpy.load(piece)
    return tensors


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
