"""What must any road between the ranks of one generation offer?

Only exchange, abort and close: the canonical reduce is built on top (tree.py). It must not know trees or steps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Parcel:
    """One message to one peer: the header's bytes, and raw buffers that follow it."""

    header: bytes
    buffers: Sequence[memoryview] = ()


class Group(Protocol):
    """The members of one generation, connected each to each. A left group is never entered again."""

    @property
    def rank(self) -> int:
        """This member's rank."""
        ...

    @property
    def size(self) -> int:
        """How many members the generation has."""
        ...

    @property
    def waiting(self) -> float:
        """Seconds in which nothing could be sent or taken, since the group was formed."""
        ...

    def exchange(
        self, outgoing: Mapping[int, Parcel], incoming: Mapping[int, Sequence[memoryview]]
    ) -> dict[int, bytes]:
        """Send one parcel to each peer and fill `incoming[peer]` from the one it sends; return the peers' headers.

        Raises PeerLost as soon as a peer's connection ends or the group is aborted.
        """
        ...

    def abort(self, why: str) -> None:
        """Make a running or later exchange raise PeerLost; may be called from any thread."""
        ...

    def close(self) -> None:
        """Close every connection, which the peers see at once."""
        ...
