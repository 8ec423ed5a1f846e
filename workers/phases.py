"""In which part of a step is a rank right now?

Each change is one byte in a small shared page, so that its host (or a benchmark's outside clock) can look at any time
without asking: a rank that hangs or dies has said where. It must not decide anything.
"""

import mmap
import struct
from enum import IntEnum
from pathlib import Path

PAGE = struct.Struct("<BxxxxxxxQ")


class Phase(IntEnum):
    """The parts of a rank's life that have limits of their own."""

    IDLE = 0
    FETCH = 1
    COMPUTE = 2
    SEND = 3
    GATHER = 4
    APPLY = 5
    EVALUATE = 6
    SAVE = 7


class PhasePage:
    """The page of one rank: `enter` writes it, `read_phase` reads it from another process."""

    def __init__(self, path: Path) -> None:
        with path.open("w+b") as file:
            file.truncate(PAGE.size)
            self._map = mmap.mmap(file.fileno(), PAGE.size)

    def enter(self, phase: Phase, step: int) -> None:
        """Say that the rank is in `phase` of the step with index `step` from now on."""
        PAGE.pack_into(self._map, 0, phase, step)


def read_phase(path: Path) -> tuple[Phase, int]:
    """Return the phase and step index last entered; IDLE and 0 when there is no page yet."""
    try:
        code, step = PAGE.unpack(path.read_bytes()[: PAGE.size])
    except (OSError, struct.error):
        return Phase.IDLE, 0
    return Phase(code), step
