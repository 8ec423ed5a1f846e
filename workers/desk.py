"""How does a rank process talk to its host?

Frames over one inherited socket: commands in, reports and records out. The newest plan and wishes are kept here for
the trainer to look at between two steps. It must not train, import mindspore or know peers.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from workers.errors import WireError
from workers.protocol import (
    MAX_FRAME,
    Command,
    FromRank,
    Plan,
    RankReport,
    Record,
    Save,
    Stop,
    Work,
    decode,
    decode_command,
    encode,
)

LENGTH = struct.Struct("!I")
QUIET = 0.1
"""Seconds between two reports that only say that training goes on."""


def send_frame(sock: socket.socket, data: bytes) -> None:
    """Send one frame whole."""
    sock.sendall(LENGTH.pack(len(data)) + data)


def read_frame(sock: socket.socket) -> bytes | None:
    """Read one frame; None at the end of the stream. WireError when it is above the bound."""
    head = _read(sock, LENGTH.size)
    if head is None:
        return None
    (size,) = LENGTH.unpack(head)
    if size > MAX_FRAME:
        raise WireError(f"a frame of {size} bytes is above the bound of {MAX_FRAME}")
    return _read(sock, size)


def _read(sock: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        try:
            piece = sock.recv(min(size - len(data), 1 << 20))
        except ConnectionError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


class Desk:
    """The rank's end of the channel to its host."""

    def __init__(self, sock: socket.socket, host_gone: Callable[[], None]) -> None:
        self._sock = sock
        self._host_gone = host_gone
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._plan: Plan | None = None
        self._stop_for = 0
        self._save_for = 0
        self._abort: Callable[[str], None] | None = None
        self._report = RankReport()
        self._records: list[Record] = []
        self._sent_at = 0.0

    def take_work(self) -> Work:
        """Read the first frame, the work; then listen for commands in the background."""
        data = read_frame(self._sock)
        if data is None:
            raise WireError("the host closed the channel before it said what to do")
        work = decode(Work, data)
        threading.Thread(target=self._listen, name="desk", daemon=True).start()
        return work

    @property
    def report(self) -> RankReport:
        """The report last made."""
        return self._report

    def say(self, **changes: Any) -> None:
        """Change the report; sent at once unless only numbers of a running training moved a moment ago."""
        fresh = msgspec.structs.replace(self._report, **changes)
        quiet = fresh.state == self._report.state == "training" and time.monotonic() - self._sent_at < QUIET
        self._report = fresh
        if not quiet:
            self.flush()

    def record(self, *records: Record) -> None:
        """Add bulk records; they travel with the next report."""
        self._records.extend(records)

    def flush(self) -> None:
        """Send records, then the report that stands on them."""
        with self._sending:
            records, self._records = tuple(self._records), []
            self._sent_at = time.monotonic()
            try:
                if records:
                    send_frame(self._sock, b"B" + encode(records))
                send_frame(self._sock, b"R" + encode(self._report))
            except OSError:
                self._host_gone()

    def newest_plan(self) -> int:
        """Return the generation of the newest plan held, 0 for none."""
        return self._plan.generation if self._plan else 0

    def stop_asked(self, generation: int) -> bool:
        """Say whether this generation is to stop."""
        return self._stop_for >= generation

    def take_save(self, generation: int) -> bool:
        """Say whether a checkpoint was asked for, once per asking."""
        asked = self._save_for == generation
        self._save_for = 0 if asked else self._save_for
        return asked

    def wait_plan(self, after: int) -> Plan | None:
        """Wait for a plan newer than generation `after`; None when told to stop instead."""
        with self._changed:
            self._changed.wait_for(lambda: self.newest_plan() > after or self._stop_for >= max(after, 1))
            return self._plan if self._plan is not None and self._plan.generation > after else None

    def interrupt_by(self, abort: Callable[[str], None] | None) -> None:
        """Name what is called when a newer plan must end an exchange under way."""
        self._abort = abort

    def _listen(self) -> None:
        while (data := read_frame(self._sock)) is not None:
            self._obey(decode_command(data))
        self._host_gone()

    def _obey(self, command: Command) -> None:
        with self._changed:
            match command:
                case Plan():
                    if command.generation > self.newest_plan():
                        self._plan = command
                case Stop():
                    self._stop_for = max(self._stop_for, command.generation)
                case Save():
                    self._save_for = command.generation
            self._changed.notify_all()


def unpack(frame: bytes) -> FromRank:
    """Decode what a rank sent: a report, or records. WireError when it is neither."""
    if frame[:1] == b"R":
        return decode(RankReport, frame[1:])
    if frame[:1] == b"B":
        return decode(tuple[Record, ...], frame[1:])
    raise WireError(f"a rank sent a frame of unknown kind {frame[:1]!r}")
