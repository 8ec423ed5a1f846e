"""Whose fault was it, and may the job try again?

Pure: what was seen of the hosts in, a kind with its words out. `PeerLost` is a symptom and never a cause. It must not
plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import assert_never

from service.control.job import Generation, Past, Snapshot
from service.control.observation import Dead, Reporting, Seen, Starting, Unknown
from service.control.spec import Backoff, JobSpec
from workers.protocol import Exit, RankReport

DONE = ("finished", "stopped")


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a generation failed. `is_final`: trying again would be a waste."""

    kind: str
    text: str
    step: int
    traceback: str = ""
    is_final: bool = False


def find_cause(generation: Generation, seen: Seen, past: Iterable[Past]) -> Cause | None:
    """Return the gravest cause among the generation's hosts, or None when there is none."""
    was_there = bool(generation.addresses)
    causes = [_of_host(rank, number, seen, was_there) for rank, number in enumerate(generation.hosts)]
    found = [cause for cause in causes if cause is not None]
    if not found:
        return None
    order = ("USER", "STEP", "MUSTER", "MEMORY", "NODE_LOST", "HANG", "STARTUP", "RANK_CRASH")
    return _judged(min(found, key=lambda cause: order.index(cause.kind)), tuple(past))


def symptoms(generation: Generation, seen: Seen) -> str | None:
    """Return what parked ranks say about lost peers, or None."""
    texts = []
    for rank, number in enumerate(generation.hosts):
        match seen.host(number):
            case Reporting(report) if report.rank.lost is not None and report.rank.generation == generation.number:
                texts.append(f"rank {rank} lost its peers ({report.rank.lost.why})")
            case _:
                pass
    return "; ".join(texts) or None


def _of_host(rank: int, number: int, seen: Seen, was_there: bool) -> Cause | None:
    match seen.host(number):
        case Reporting(report):
            return _of_rank(rank, report.rank, report.exit)
        case Dead(why, node_lost, _):
            kind = "NODE_LOST" if node_lost else "RANK_CRASH"
            return Cause(kind, f"the host of rank {rank} is gone: {why}", -1)
        case Unknown() if was_there:
            return Cause("NODE_LOST", f"the host of rank {rank} is not known to Ray any more", -1)
        case Unknown() | Starting():
            return None
        case _ as never:
            assert_never(never)


def _of_rank(rank: int, report: RankReport, end: Exit | None) -> Cause | None:
    failure = report.failure
    if failure is not None:
        kind = {"user": "USER", "step": "STEP"}.get(failure.kind, "MUSTER")
        return Cause(kind, f"rank {rank}: {failure.summary}", failure.step, failure.traceback, kind != "STEP")
    if end is None or report.state in DONE:
        return None
    how = f"signal {end.signal}" if end.signal is not None else f"exit code {end.code}"
    if end.out_of_memory:
        return Cause("MEMORY", f"rank {rank} was killed for want of memory ({how})", report.applied, end.tail)
    text = f"rank {rank} ended with {how} and no end record"
    return Cause("RANK_CRASH", text, report.applied, end.tail)


def _judged(cause: Cause, past: tuple[Past, ...]) -> Cause:
    """The same trouble at the same step a second time is the program's."""
    again = [item for item in past if item.step == cause.step and cause.step >= 0]
    if cause.kind == "STEP":
        is_same = any(item.cause == cause.text for item in again)
        return Cause("USER", cause.text, cause.step, cause.traceback, is_final=is_same)
    if cause.kind == "MUSTER":
        return Cause("STARTUP", cause.text, cause.step, cause.traceback, is_final=True)
    # Signals 9 and 15 come from outside; everything else that ends a process at one step twice is the program's.
    is_own = not cause.text.endswith(("signal 9 and no end record", "signal 15 and no end record"))
    if cause.kind == "RANK_CRASH" and is_own and any(item.cause == cause.text for item in again):
        return Cause("USER", f"{cause.text}, a second time at step {cause.step}", cause.step, cause.traceback, True)
    return cause


def within_budget(spec: JobSpec, kind: str, past: Iterable[Past]) -> bool:
    """Say whether one more failure of this kind, on top of the past ones, is allowed."""
    budget = spec.budget(kind)
    return budget is None or sum(item.kind == kind for item in past) + 1 <= budget


def delay(spec: JobSpec, kind: str, past: Iterable[Past]) -> timedelta:
    """Return how long to wait before the next generation."""
    backoff = spec.backoff.get(kind, Backoff())  # type: ignore[call-overload]
    earlier = sum(item.kind == kind for item in past)
    return timedelta(seconds=min(backoff.most, backoff.initial * 2**earlier))


def budget_in_words(snapshot: Snapshot, kind: str) -> str:
    """Return how many failures of the kind there were, and how many are allowed."""
    budget = snapshot.job.spec.budget(kind)
    count = sum(item.kind == kind for item in snapshot.past) + 1
    return f"{count} of {'any number' if budget is None else budget} {kind} failures"
