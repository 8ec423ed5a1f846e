"""What has been seen of a job's hosts and storage?

Values only: the last report of each host, and what storage says. Absence of news is no news. It must not look anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from workers.protocol import HostReport


@dataclass(frozen=True, slots=True)
class Reporting:
    """The host's last report; `is_reachable` says whether the last call to it was answered."""

    report: HostReport
    is_reachable: bool = True


@dataclass(frozen=True, slots=True)
class Starting:
    """The actor exists but has not reported yet."""


@dataclass(frozen=True, slots=True)
class Dead:
    """The actor is gone (Ray says so), and `is_swept` when its process tree was seen gone."""

    why: str
    node_lost: bool
    is_swept: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """No such actor is known."""


HostSeen = Reporting | Starting | Dead | Unknown


@dataclass(frozen=True, slots=True)
class SealSeen:
    """The seal before a generation: its lineage number, and where the line before it ends."""

    generation: int
    number: int
    ended: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything observed of one job."""

    hosts: Mapping[int, HostSeen] = field(default_factory=dict)
    seal: SealSeen | None = None
    result: Mapping[str, Any] | None = None

    def host(self, number: int) -> HostSeen:
        """Return what was seen of a host."""
        return self.hosts.get(number, Unknown())


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the cluster: resources by Ray's names."""

    id: str
    name: str
    total: Mapping[str, float]
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class Capacity:
    """All nodes, or none while Ray is away."""

    nodes: tuple[Node, ...] = ()
