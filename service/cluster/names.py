"""How is a host called in the cluster?

Names are functions of rows, so that a new controller finds every host of the one before. It must not look anything up.
"""

import re
from dataclasses import dataclass

NAMESPACE = "muster"
PATTERN = re.compile(r"job-(?P<job>[a-z0-9]+)-h(?P<number>[0-9]+)")


@dataclass(frozen=True, slots=True, order=True)
class HostName:
    """A job's host by its number, which never repeats within the job."""

    job: str
    number: int

    def __str__(self) -> str:
        """Return the actor's name."""
        return f"job-{self.job}-h{self.number}"


def parse(name: str) -> HostName | None:
    """Return the host of an actor's name; None for an actor that is not one of ours."""
    found = PATTERN.fullmatch(name)
    return HostName(found["job"], int(found["number"])) if found else None
