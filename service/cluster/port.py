"""What does the reconciler ask of a cluster?

Nothing here waits for a rank; what is seen is what listeners kept. The fake of the tests and Ray keep one contract.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from service.cluster.names import HostName
from service.control.observation import Capacity, HostSeen
from service.control.spec import Resources
from workers.protocol import Batch, Command, Work


@dataclass(frozen=True, slots=True)
class Order:
    """A host to be launched: what its rank works on, where, with what; `earlier` hosts' processes are swept first."""

    work: Work
    node: str
    resources: Resources
    earlier: tuple[int, ...]

    @property
    def name(self) -> HostName:
        """Return the host's name."""
        return HostName(self.work.job, self.work.host)


class Cluster(Protocol):
    """Named hosts on nodes."""

    def capacity(self) -> Capacity:
        """Return the nodes as last seen. ClusterAway when nothing has been heard for a while."""
        ...

    def observe(self, job: str) -> Mapping[int, HostSeen]:
        """Return the last sight of each of the job's hosts by number; one that is not there is Unknown."""
        ...

    def names(self) -> tuple[HostName, ...]:
        """Return every host that exists right now. ClusterAway when that cannot be known."""
        ...

    def launch(self, order: Order) -> None:
        """Create the host unless it is there."""
        ...

    def end(self, name: HostName, node: str) -> None:
        """Begin to end a host with its whole process tree; done when it is seen Dead and swept, or its node lost."""
        ...

    def tell(self, name: HostName, command: Command) -> None:
        """Pass a command on; its report shows when it came."""
        ...

    def drain(self, name: HostName, after: int) -> Batch | None:
        """Return the host's records after number `after`, which acknowledges the others; None when it cannot answer."""
        ...

    def wait(self, limit: timedelta) -> frozenset[str]:
        """Sleep until a host has news, at most `limit`; return the jobs with news since the last call."""
        ...

    def forget(self, job: str) -> None:
        """Drop what is remembered of an ended job's dead hosts."""
        ...

    def close(self) -> None:
        """Leave the cluster; its hosts stay."""
        ...
