"""What is the whole training state of a replica, and how is it read, written in place and told apart?

Named views into the live memory of the parameters, with the step and the ledger. Nothing here swaps storage: a compiled
graph would go on with the old one. It must not compute steps.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.errors import DivergenceError

Array = NDArray[Any]
EMPTY = b"\0" * 32


@dataclass(slots=True)
class State:
    """`arrays`: views by name, written in place only. `step`: applied updates. `ledger`: what was fed so far."""

    arrays: Mapping[str, Array]
    weights: tuple[str, ...]
    step: int = 0
    ledger: bytes = EMPTY
    epoch_ledger: bytes = EMPTY
    names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.names = tuple(sorted(self.arrays))

    def write(self, tensors: Mapping[str, Array]) -> None:
        """Write every array in place. DivergenceError when names, shapes or types are not this state's."""
        if set(tensors) != set(self.arrays):
            odd = sorted(set(tensors) ^ set(self.arrays))[:3]
            raise DivergenceError(f"the stored state has other tensors than the program: {', '.join(odd)}")
        for name, value in tensors.items():
            mine = self.arrays[name]
            if mine.shape != value.shape or mine.dtype != value.dtype:
                raise DivergenceError(f"{name} is {value.dtype}{value.shape} in storage, {mine.dtype}{mine.shape} here")
            mine[...] = value

    def copy(self) -> dict[str, Array]:
        """Return a copy of every array."""
        return {name: np.array(self.arrays[name], copy=True, order="C") for name in self.names}

    def digest(self) -> bytes:
        """Return a SHA-256 over step, ledger and every array, in name order."""
        total = hashlib.sha256(self.step.to_bytes(8, "big") + self.ledger + self.epoch_ledger)
        for name in self.names:
            total.update(name.encode())
            total.update(np.ascontiguousarray(self.arrays[name]).data)
        return total.digest()

    def weights_sha256(self) -> str:
        """Return the hash of the network's parameters, as the docs define it."""
        return sha256_of({name: self.arrays[name] for name in self.weights})

    def feed(self, records: tuple[tuple[int, bytes], ...], ends_epoch: bool) -> bytes | None:
        """Fold a step's (shard, digest of fed ids) into the ledger; return the epoch's ledger when it ends here."""
        text = b"".join(shard.to_bytes(4, "big") + ids for shard, ids in records)
        self.ledger = hashlib.sha256(self.ledger + text).digest()
        self.epoch_ledger = hashlib.sha256(self.epoch_ledger + text).digest()
        if not ends_epoch:
            return None
        whole, self.epoch_ledger = self.epoch_ledger, EMPTY
        return whole


def ids_digest(ids: NDArray[np.int64]) -> bytes:
    """Return the digest of sample ids, in the order fed."""
    return hashlib.sha256(np.ascontiguousarray(ids, dtype="<i8").tobytes()).digest()


def sha256_of(tensors: Mapping[str, Array]) -> str:
    """Return the SHA-256 over tensors in name order: name, dtype, shape, bytes, each text ended by a zero byte."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        shape = ",".join(str(length) for length in tensors[name].shape)
        total.update(f"{name}\0{array.dtype.name}\0{shape}\0".encode())
        total.update(array.tobytes())
    return total.hexdigest()
