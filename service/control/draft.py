"""What does a decision about one job look like, finished and in the making?

Pure values. It must not know when to decide what.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from service.control.job import MOVES, Event, Generation, Host, Job, Phase, Snapshot
from service.control.observation import Dead, Reporting, Seen, Starting, Unknown
from service.errors import ForbiddenMove
from workers.protocol import RankReport


@dataclass(frozen=True, slots=True)
class Decision:
    """The rows as they shall be, the events that tell why, and when to look again without news."""

    job: Job
    generation: Generation | None
    hosts: tuple[Host, ...]
    events: tuple[Event, ...] = ()
    look_again: datetime | None = None


@dataclass(slots=True)
class Draft:
    """A decision in the making."""

    job: Job
    generation: Generation | None
    hosts: tuple[Host, ...]
    seen: Seen
    now: datetime
    snapshot: Snapshot
    events: list[Event]
    look_again: datetime | None = None

    def say(self, kind: str, text: str) -> None:
        """Add an event."""
        self.events.append(Event(kind, text))

    def move(self, phase: Phase, reason: str, **changes: Any) -> None:
        """Go to another phase and say why. ForbiddenMove when no job may go there from here."""
        if phase not in MOVES[self.job.phase]:
            raise ForbiddenMove(f"job {self.job.id} cannot go from {self.job.phase} to {phase} ({reason})")
        self.job = replace(self.job, phase=phase, reason=reason, **changes)
        self.say(phase.value, reason)

    def look_at(self, when: datetime) -> None:
        """Look again at that time, if nothing asks for an earlier one."""
        self.look_again = when if self.look_again is None else min(self.look_again, when)

    @property
    def live(self) -> Generation:
        """The generation that the phase implies."""
        assert self.generation is not None, "the phase implies a generation"
        return self.generation

    @property
    def reached(self) -> int:
        """The newest step the generation is known to have committed: below the job's step while it redoes some."""
        if self.job.replaying_from is None:
            return self.job.step
        steps = [here.report.rank.step for number in self.live.hosts
                 if isinstance(here := self.seen.host(number), Reporting)
                 and here.report.rank.generation == self.live.number]  # fmt: skip
        return max(steps, default=self.job.replaying_from)

    def reports(self) -> list[RankReport] | None:
        """Return the rank reports of the generation's hosts in rank order, or None when one has not reported."""
        found = []
        for number in self.live.hosts:
            match self.seen.host(number):
                case Reporting(report):
                    found.append(report.rank)
                case Starting() | Dead() | Unknown():
                    return None
        return found
