"""Which items does a shard's batch hold, really?

Turns sample ids into arrays and says which ids it fed; the ledger is made of that, not of what was asked for. It must
not choose samples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.errors import ProgramError
from workers.program import Program
from workers.sampling import Ids

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Fed:
    """A batch, and the ids of the samples in it, in order."""

    ids: Ids
    arrays: tuple[Array, ...]


def aligned(array: Array) -> Array:
    """Return the array contiguous and on a 64-byte border: kernels may take other paths on other borders."""
    plain = np.ascontiguousarray(array)
    if plain.ctypes.data % 64 == 0:
        return plain
    copy = _room(plain.shape, plain.dtype)
    np.copyto(copy, plain)
    return copy


def _room(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array that starts on a 64-byte border."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 64, dtype=np.uint8)
    skip = -raw.ctypes.data % 64
    return raw[skip : skip + size].view(dtype).reshape(shape)


def _rows(column: Array, ids: Ids) -> Array:
    """Return the column's rows with these ids, copied once, to where the kernels want them."""
    # "clip" writes straight into `out`; the ids are the sampler's, so none is out of range.
    return np.take(column, ids, axis=0, out=_room((len(ids), *column.shape[1:]), column.dtype), mode="clip")


class Feed:
    """Batches out of a dataset: a tuple of equally long arrays, or anything with `__len__` and `__getitem__`."""

    def __init__(self, dataset: Any, program: Program, seed: int, training: bool = True) -> None:
        self.dataset = dataset
        self._columns = _columns(dataset)
        self._transform = program.transform if training else None
        self._collate = program.collate or stack
        self._seed = seed
        self.length = len(self._columns[0]) if self._columns else len(dataset)
        if self.length == 0:
            raise ProgramError("the dataset is empty")

    def fetch(self, ids: Ids, epoch: int) -> Fed:
        """Return the batch of `ids`, each item transformed with its own generator of (seed, epoch, index)."""
        if self._columns and self._transform is None and self._collate is stack:
            return Fed(ids, tuple(_rows(column, ids) for column in self._columns))
        items: list[Any] = []
        fed: list[int] = []
        for index in ids.tolist():
            items.append(self._item(index, epoch))
            fed.append(index)
        arrays = self._collate(items)
        for array in arrays:
            if len(array) != len(ids):
                raise ProgramError(f"collate returned {len(array)} samples for {len(ids)} items")
        return Fed(np.asarray(fed, dtype=np.int64), tuple(aligned(np.asarray(array)) for array in arrays))

    def sample(self, index: int) -> tuple[Array, ...]:
        """Return one raw item as arrays (for the digest of the data)."""
        raw = tuple(column[index] for column in self._columns) if self._columns else self.dataset[index]
        return tuple(np.asarray(part) for part in (raw if isinstance(raw, tuple | list) else (raw,)))

    def _item(self, index: int, epoch: int) -> Any:
        item = tuple(column[index] for column in self._columns) if self._columns else self.dataset[index]
        if self._transform is None:
            return item
        key = np.array([self._seed ^ (epoch << 32), index], dtype=np.uint64)
        return self._transform(item, np.random.Generator(np.random.Philox(key=key)))


def _columns(dataset: Any) -> tuple[Array, ...]:
    if isinstance(dataset, np.ndarray):
        return (dataset,)
    if isinstance(dataset, tuple | list) and dataset and all(isinstance(part, np.ndarray) for part in dataset):
        if len({len(part) for part in dataset}) != 1:
            raise ProgramError("the dataset's arrays have different lengths")
        return tuple(dataset)
    if isinstance(dataset, Mapping) or not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise ProgramError("the dataset must be arrays, or have __len__ and __getitem__")
    return ()


def stack(items: Sequence[Any]) -> tuple[Array, ...]:
    """Stack the parts of equally shaped items: the default collate."""
    rows = [item if isinstance(item, tuple | list) else (item,) for item in items]
    return tuple(np.stack([np.asarray(row[part]) for row in rows]) for part in range(len(rows[0])))
