"""How do two ranks of one generation come to trust one connection?

A listener bound to port 0 (its address is told, never guessed), and a mutual challenge by HMAC over (job, generation,
ranks) with the plan's secret. It must not carry tensors.
"""

import hmac
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from datetime import timedelta

from workers.errors import PeerLost, WireError
from workers.protocol import Plan

NONCE = 16
DIGEST = 32
HELLO = struct.Struct("!4sIII")
MAGIC = b"MSTR"


@dataclass(frozen=True, slots=True)
class Listener:
    """A bound socket of this rank process; it outlives generations, its connections do not."""

    socket: socket.socket

    @property
    def address(self) -> str:
        """Return host:port as peers must dial it."""
        host, port = self.socket.getsockname()[:2]
        return f"{host}:{port}"


def listen(host: str) -> Listener:
    """Bind a listener on a free port of `host`."""
    sock = socket.create_server((host, 0), backlog=128)
    sock.setblocking(False)
    return Listener(sock)


def _proof(plan: Plan, speaker: int, hearer: int, nonce: bytes) -> bytes:
    text = f"{plan.job}|{plan.generation}|{speaker}|{hearer}|".encode() + nonce
    return hmac.digest(bytes.fromhex(plan.secret), text, "sha256")


def _take(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise WireError("the connection ended within the hello")
        data += piece
    return bytes(data)


def _tuned(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 4 << 20)
    sock.setblocking(False)
    return sock


def dial(plan: Plan, me: int, peer: int, address: str, deadline: float) -> socket.socket:
    """Connect to `peer`; both sides prove the plan's secret. Raises PeerLost after the (monotonic) deadline."""
    host, port = address.rsplit(":", 1)
    while True:
        try:
            sock = socket.create_connection((host, int(port)), timeout=max(0.05, deadline - time.monotonic()))
            try:
                _prove(sock, plan, me, peer)
                return _tuned(sock)
            except BaseException:
                sock.close()
                raise
        except (OSError, WireError) as error:
            # A peer that has not the plan yet refuses or closes; it is asked again until the deadline.
            if time.monotonic() > deadline:
                raise PeerLost(peer, f"could not connect to {address}: {error}") from error
            time.sleep(0.01)


def _prove(sock: socket.socket, plan: Plan, me: int, peer: int) -> None:
    nonce = secrets.token_bytes(NONCE)
    sock.sendall(HELLO.pack(MAGIC, plan.generation, me, peer) + nonce)
    theirs = _take(sock, NONCE + DIGEST)
    if not hmac.compare_digest(theirs[NONCE:], _proof(plan, peer, me, nonce)):
        raise WireError("the peer does not know this generation's secret")
    sock.sendall(_proof(plan, me, peer, theirs[:NONCE]))
    if _take(sock, 1) != b"\1":
        raise WireError("the peer refused")


def accept(plan: Plan, me: int, listener: Listener, wait: timedelta) -> tuple[int, socket.socket] | None:
    """Accept one proven peer of this plan within `wait`; None when there was none (others are closed)."""
    listener.socket.settimeout(max(0.001, wait.total_seconds()))
    try:
        sock, _ = listener.socket.accept()
    except (TimeoutError, BlockingIOError):
        return None
    try:
        sock.settimeout(1.0)
        magic, generation, peer, hearer = HELLO.unpack(_take(sock, HELLO.size))
        nonce = _take(sock, NONCE)
        if magic != MAGIC or generation != plan.generation or hearer != me:
            raise WireError(f"a hello of generation {generation} for rank {hearer}")
        mine = secrets.token_bytes(NONCE)
        sock.sendall(mine + _proof(plan, me, peer, nonce))
        if not hmac.compare_digest(_take(sock, DIGEST), _proof(plan, peer, me, mine)):
            raise WireError("the caller does not know this generation's secret")
        sock.sendall(b"\1")
        return peer, _tuned(sock)
    except (OSError, WireError):
        sock.close()
        return None
