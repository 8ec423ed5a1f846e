"""When does a rank leave its generation, and from which state does the next one start?

Pure: headers in, verdicts out. "Header decides when, formation decides from what." It must not send or wait.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from workers.errors import DivergenceError
from workers.protocol import Header


@dataclass(frozen=True, slots=True)
class GoOn:
    """Stay in this generation; `save`: begin a checkpoint after this step."""

    save: bool


@dataclass(frozen=True, slots=True)
class LeaveFor:
    """Apply this step, then leave for the plan of `generation`, which every member holds."""

    generation: int


@dataclass(frozen=True, slots=True)
class StopHere:
    """Apply this step, save, and end: some member was told to stop, and all see it in the same step."""


Verdict = GoOn | LeaveFor | StopHere


def after_step(generation: int, headers: Sequence[Header]) -> Verdict:
    """Judge the headers of one step: all members see the same ones, so all judge alike."""
    if any(header.stop for header in headers):
        return StopHere()
    plans = {header.plan for header in headers}
    if len(plans) == 1 and min(plans) > generation:
        return LeaveFor(min(plans))
    return GoOn(any(header.save for header in headers))


def committed(headers: Sequence[Header]) -> int:
    """Return how many steps every member has applied."""
    return min(header.applied for header in headers)


@dataclass(frozen=True, slots=True)
class Start:
    """Where a formed generation starts: `source` gives its state to each rank in `behind`."""

    step: int
    source: int
    behind: tuple[int, ...]


def start_of(headers: Sequence[Header]) -> Start:
    """Choose the state of a new generation from its members' (applied step, state digest), in rank order.

    The highest step wins. DivergenceError when two members hold it with different digests.
    """
    step = max(header.applied for header in headers)
    holders = [rank for rank, header in enumerate(headers) if header.applied == step]
    digests = {headers[rank].state for rank in holders}
    if len(digests) > 1:
        names = ", ".join(f"rank {rank}: {headers[rank].state.hex()[:12]}" for rank in holders)
        raise DivergenceError(f"members hold different states of step {step} ({names})")
    behind = tuple(rank for rank, header in enumerate(headers) if header.applied != step)
    return Start(step, holders[0], behind)
