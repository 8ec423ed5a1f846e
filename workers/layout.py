"""Where does each reduced value stand in the one flat vector that a step sends?

Pure numpy. Every value starts on a 64-byte border, so a kernel sees the same alignment whoever computes it. It must not
know the tree or the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Kind = Literal["gradient", "mean", "sum", "max"]
"""gradient: divided by the sum of weights; mean: by the number of samples; sum and max: as they are."""

KINDS: tuple[Kind, ...] = ("gradient", "mean", "sum", "max")
LINE = 16
"""Floats on one 64-byte line."""


@dataclass(frozen=True, slots=True)
class Slot:
    """One value: its name, kind, shape, and place in the flat vector."""

    name: str
    kind: Kind
    shape: tuple[int, ...]
    begin: int
    end: int

    def view(self, flat: Floats) -> Floats:
        """Return this value's part of `flat`, in its shape."""
        return flat[self.begin : self.end].reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of the flat vector that is reduced one way."""

    kind: Kind
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The flat vector: all slots, kind after kind."""

    slots: tuple[Slot, ...]
    sections: tuple[Section, ...]
    size: int

    def of(self, kind: Kind) -> tuple[Slot, ...]:
        """Return the slots of one kind, in order."""
        return tuple(slot for slot in self.slots if slot.kind == kind)

    def empty(self) -> Floats:
        """Return a new zeroed flat vector that starts on a 64-byte border."""
        raw = np.zeros(self.size * 4 + 64, dtype=np.uint8)
        skip = -raw.ctypes.data % 64
        return raw[skip : skip + self.size * 4].view(np.float32)


def lay_out(values: Sequence[tuple[str, Kind, tuple[int, ...]]]) -> Layout:
    """Place the (name, kind, shape) values, kind after kind, in the order given."""
    slots: list[Slot] = []
    sections: list[Section] = []
    place = 0
    for kind in KINDS:
        begin = place
        for name, own, shape in values:
            if own == kind:
                size = int(np.prod(shape, dtype=np.int64))
                slots.append(Slot(name, kind, shape, place, place + size))
                place += -(-size // LINE) * LINE
        if place > begin:
            sections.append(Section(kind, begin, place))
    return Layout(tuple(slots), tuple(sections), place)


def slices(size: int, ranks: int) -> tuple[tuple[int, int], ...]:
    """Cut [0, size) into one stretch per rank, on 64-byte borders; the bits do not depend on the cuts."""
    lines = -(-size // LINE)
    borders = [min(size, (lines * rank // ranks) * LINE) for rank in range(ranks)] + [size]
    return tuple(pairwise(borders))
