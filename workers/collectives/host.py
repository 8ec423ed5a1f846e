"""How do rank processes exchange buffers through host memory?

One connection per pair, each-to-each, all directions at once, so that no order of sends can deadlock. A closed peer
raises at once. It must not interpret headers or payloads.
"""

import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from workers.collectives.links import Listener, accept, dial
from workers.collectives.port import Parcel
from workers.errors import PeerLost, WireError
from workers.protocol import Plan

FRAME = struct.Struct("!4sIQIQ")
MAGIC = b"MUST"
MAX_HEADER = 4 << 20
MAX_VECTORS = 64


@dataclass(slots=True)
class _Send:
    """The rest of one message to one peer."""

    pieces: list[memoryview]

    def advance(self, sock: socket.socket) -> bool:
        """Send what the socket takes; say whether all is sent."""
        while self.pieces:
            try:
                sent = sock.sendmsg(self.pieces[:MAX_VECTORS])
            except BlockingIOError:
                return False
            while self.pieces and sent >= len(self.pieces[0]):
                sent -= len(self.pieces.pop(0))
            if sent:
                self.pieces[0] = self.pieces[0][sent:]
        return True


@dataclass(slots=True)
class _Receive:
    """The rest of one message from one peer: first its frame, then header and buffers."""

    generation: int
    sequence: int
    buffers: Sequence[memoryview]
    frame: bytearray = field(default_factory=lambda: bytearray(FRAME.size))
    header: bytearray | None = None
    pieces: list[memoryview] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pieces = [memoryview(self.frame)]

    def advance(self, sock: socket.socket) -> bool:
        """Take what the socket has; say whether the message is whole."""
        while self.pieces:
            try:
                taken = sock.recvmsg_into(self.pieces[:MAX_VECTORS])[0]
            except BlockingIOError:
                return False
            if taken == 0:
                raise ConnectionResetError("closed its connection")
            while self.pieces and taken >= len(self.pieces[0]):
                taken -= len(self.pieces.pop(0))
            if taken:
                self.pieces[0] = self.pieces[0][taken:]
            if not self.pieces and self.header is None:
                self._open()
        return True

    def _open(self) -> None:
        magic, generation, sequence, header, payload = FRAME.unpack(self.frame)
        expected = sum(len(buffer) for buffer in self.buffers)
        if (magic, generation, sequence) != (MAGIC, self.generation, self.sequence):
            raise WireError(f"message {sequence} of generation {generation}, not {self.sequence} of {self.generation}")
        if header > MAX_HEADER or payload != expected:
            raise WireError(f"sizes {header} + {payload} bytes, expected at most {MAX_HEADER} + {expected}")
        self.header = bytearray(header)
        self.pieces = [memoryview(self.header)] if header else []
        self.pieces += [buffer for buffer in self.buffers if len(buffer)]


class HostGroup:
    """The Group of one generation over TCP (see port.Group for the contract)."""

    def __init__(self, plan: Plan, rank: int, links: Mapping[int, socket.socket]) -> None:
        self.rank = rank
        self.size = len(plan.members)
        self._generation = plan.generation
        self._sequence = 0
        self._links = dict(links)
        self._why: str | None = None
        self.waiting = 0.0
        """Seconds in which nothing could be sent or taken: waiting for peers."""
        self._bell, self._ring = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ, -1)

    def exchange(
        self, outgoing: Mapping[int, Parcel], incoming: Mapping[int, Sequence[memoryview]]
    ) -> dict[int, bytes]:
        """See port.Group.exchange."""
        self._sequence += 1
        sends = {peer: _Send(self._message(parcel)) for peer, parcel in outgoing.items()}
        takes = {peer: _Receive(self._generation, self._sequence, buffers) for peer, buffers in incoming.items()}
        parts: list[tuple[int, _Send | _Receive]] = [*sends.items(), *takes.items()]
        open_parts: dict[int, list[_Send | _Receive]] = {}
        for peer, part in parts:
            # Most small messages are sent whole here; what a peer sent earlier is taken without waiting.
            if not self._advance(peer, part):
                open_parts.setdefault(peer, []).append(part)
        self._wait_for(open_parts)
        return {peer: bytes(take.header or b"") for peer, take in takes.items()}

    def abort(self, why: str) -> None:
        """See port.Group.abort."""
        self._why = why
        try:
            self._ring.send(b"!")
        except OSError:
            return  # closed already: nobody waits in an exchange any more

    def close(self) -> None:
        """See port.Group.close."""
        self._selector.close()
        for sock in (*self._links.values(), self._bell, self._ring):
            sock.close()

    def _message(self, parcel: Parcel) -> list[memoryview]:
        payload = sum(len(buffer) for buffer in parcel.buffers)
        frame = FRAME.pack(MAGIC, self._generation, self._sequence, len(parcel.header), payload)
        return [memoryview(frame + parcel.header), *(buffer for buffer in parcel.buffers if len(buffer))]

    def _wait_for(self, open_parts: dict[int, list[_Send | _Receive]]) -> None:
        """Advance all open parts as their sockets allow. A peer that is done is not looked at again in it."""
        for peer, parts in open_parts.items():
            self._selector.register(self._links[peer], _interest(parts), peer)
        try:
            while open_parts:
                began = time.perf_counter()
                ready = self._selector.select()
                self.waiting += time.perf_counter() - began
                for key, _ in ready:
                    peer = int(key.data)
                    if peer < 0:
                        raise PeerLost(self.rank, self._why or "aborted")
                    self._serve(peer, open_parts)
        finally:
            for peer in open_parts:
                self._selector.unregister(self._links[peer])

    def _serve(self, peer: int, open_parts: dict[int, list[_Send | _Receive]]) -> None:
        before = _interest(open_parts[peer])
        open_parts[peer] = [part for part in open_parts[peer] if not self._advance(peer, part)]
        if not open_parts[peer]:
            self._selector.unregister(self._links[peer])
            del open_parts[peer]
        elif _interest(open_parts[peer]) != before:
            self._selector.modify(self._links[peer], _interest(open_parts[peer]), peer)

    def _advance(self, peer: int, part: _Send | _Receive) -> bool:
        try:
            return part.advance(self._links[peer])
        except (OSError, WireError) as error:
            raise PeerLost(peer, str(error)) from error


def _interest(parts: Sequence[_Send | _Receive]) -> int:
    events = 0
    for part in parts:
        events |= selectors.EVENT_WRITE if isinstance(part, _Send) else selectors.EVENT_READ
    return events


def form(plan: Plan, rank: int, listener: Listener, limit: timedelta) -> HostGroup:
    """Connect to every member of the plan; the higher rank dials. Raises PeerLost naming a missing rank."""
    deadline = time.monotonic() + limit.total_seconds()
    links: dict[int, socket.socket] = {}
    try:
        for member in plan.members[:rank]:
            links[member.rank] = dial(plan, rank, member.rank, member.address, deadline)
        missing = {member.rank for member in plan.members[rank + 1 :]}
        while missing:
            if time.monotonic() > deadline:
                raise PeerLost(min(missing), f"did not connect within {limit.total_seconds():g} s")
            came = accept(plan, rank, listener, timedelta(seconds=deadline - time.monotonic()))
            if came is not None and came[0] in missing:
                links[came[0]] = came[1]
                missing.discard(came[0])
            elif came is not None:
                came[1].close()
    except BaseException:
        for sock in links.values():
            sock.close()
        raise
    return HostGroup(plan, rank, links)
