"""What is a job, as the controller sees it: its phase, its generations, its hosts?

Frozen values, and the moves that are allowed between phases. It must not decide anything.
"""

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from service.control.spec import JobSpec

Json = dict[str, Any]


class Phase(StrEnum):
    """Where a job stands."""

    WAITING = "WAITING"
    LAUNCHING = "LAUNCHING"
    RUNNING = "RUNNING"
    REGROUPING = "REGROUPING"
    DRAINING = "DRAINING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return self in TERMINAL


TERMINAL = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED})
MOVES: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.LAUNCHING, *TERMINAL}),
    Phase.LAUNCHING: frozenset({Phase.RUNNING, Phase.DRAINING}),
    Phase.RUNNING: frozenset({Phase.REGROUPING, Phase.DRAINING}),
    Phase.REGROUPING: frozenset({Phase.RUNNING, Phase.DRAINING}),
    Phase.DRAINING: frozenset({Phase.WAITING, *TERMINAL}),
    **dict.fromkeys(TERMINAL, frozenset[Phase]()),
}


class GenerationState(StrEnum):
    """PLANNED until its members report that they train, then LIVE until it has ENDED."""

    PLANNED = "PLANNED"
    LIVE = "LIVE"
    ENDED = "ENDED"


class HostState(StrEnum):
    """WANTED hosts are launched if missing; DOOMED ones are ended, and never wanted again; GONE ones were seen gone."""

    WANTED = "WANTED"
    DOOMED = "DOOMED"
    GONE = "GONE"


@dataclass(frozen=True, slots=True)
class Host:
    """One RankHost: its number never repeats within the job."""

    number: int
    generation: int
    node: str
    state: HostState = HostState.WANTED


@dataclass(frozen=True, slots=True)
class Generation:
    """One fixed membership. `seal`: the lineage number before which its start is looked for; `addresses`: of the ranks,
    once all are ready; `outcome` and `cause`: the kind of its end, and why in words.
    """

    number: int
    state: GenerationState
    hosts: tuple[int, ...]
    why: str
    planned_at: datetime
    secret: str
    seal: int | None = None
    addresses: tuple[str, ...] = ()
    live_at: datetime | None = None
    ended_at: datetime | None = None
    from_step: int | None = None
    ended_step: int | None = None
    is_stopping: bool = False
    stopping_since: datetime | None = None
    symptom_at: datetime | None = None
    outcome: str = ""
    cause: str = ""
    seconds: Json = field(default_factory=dict)

    @property
    def ending(self) -> str:
        """Why it ended: with it the story of the next one begins."""
        return self.cause if self.outcome == "RESCALE" else f"{self.outcome}: {self.cause}"


@dataclass(frozen=True, slots=True)
class Job:
    """A job's row. `ending`: the phase after DRAINING; `desired_ranks`: None means auto."""

    id: str
    spec: JobSpec
    created: datetime
    desired_run: str = "run"
    desired_ranks: int | None = None
    phase: Phase = Phase.WAITING
    reason: str = "submitted"
    ending: Phase | None = None
    generation: int = 0
    next_host: int = 1
    step: int = 0
    steps_total: int = 0
    epoch: int = 0
    samples: int = 0
    replaying_from: int | None = None
    not_before: datetime | None = None
    metrics: Json = field(default_factory=dict)
    probe: Json = field(default_factory=dict)
    numeric_class: Json = field(default_factory=dict)
    result: Json | None = None
    failure: Json | None = None

    @property
    def target(self) -> int:
        """How many ranks are aimed for."""
        return self.desired_ranks if self.desired_ranks is not None else self.spec.ranks.initial


@dataclass(frozen=True, slots=True)
class Past:
    """A stored failure: what ended an earlier generation."""

    kind: str
    step: int
    cause: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All committed rows that a decision about one job reads."""

    job: Job
    generation: Generation | None
    hosts: tuple[Host, ...]
    past: tuple[Past, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a job's story."""

    kind: str
    text: str


def in_ranks(count: int) -> str:
    """Return a number of ranks in words."""
    return "1 rank" if count == 1 else f"{count} ranks"
