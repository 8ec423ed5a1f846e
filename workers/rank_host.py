"""What does the actor that owns one rank process do?

Spawn it, pass on commands that are not of an older term, keep its reports and records, see its end, and end it with its
whole tree. Neither Ray nor mindspore here: the cluster room makes an actor of this class.
"""

import contextlib
import os
import shutil
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import msgspec

from workers.bundle import unpack
from workers.desk import read_frame, send_frame
from workers.desk import unpack as unpack_frame
from workers.environment import environment
from workers.errors import WorkerError
from workers.outbox import Outbox
from workers.process import RankProcess, folder_of, mark_of, spawn, sweep
from workers.protocol import (
    Exit,
    Failure,
    HostReport,
    RankReport,
    Refused,
    Save,
    Stop,
    Work,
    decode,
    decode_command,
    encode,
)
from workers.storage import open_storage


def clear(mark: str, folder: Path) -> bool:
    """Kill what carries a host's mark and remove its folder; True once nothing carries it."""
    is_gone = sweep(mark)
    shutil.rmtree(folder, ignore_errors=True)
    with contextlib.suppress(OSError):
        folder.parent.rmdir()  # the job's folder, once its last host on this node is gone
    return is_gone


class RankHost:
    """Owns one rank process; every method may be called from any thread."""

    def __init__(self, work: bytes, node: str, folder: str, earlier: tuple[int, ...]) -> None:
        self._work = decode(Work, work)
        self._mark = mark_of(self._work.job, self._work.host)
        self._folder = folder_of(Path(folder), self._work.job, self._work.host)
        self._changed = threading.Condition()
        self._telling = threading.Lock()
        self._outbox = Outbox()
        self._process: RankProcess | None = None
        self._is_ending = False
        self._report = HostReport(self._work.host, 1, node, 0, 0, 0, RankReport(), None, 0)
        # The kernel's parent-death signal follows the thread that spawns, so that thread stays until the rank's end.
        threading.Thread(target=self._own, args=(earlier,), name="owner", daemon=True).start()

    def report(self, after: int, wait: float) -> bytes:
        """Return the newest report as soon as there is news above number `after`, or after `wait` seconds.

        Numbers of a training that only goes on are no news: they are in the report that the wait ends with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._report.seq > after, timeout=wait)
            return encode(msgspec.structs.replace(self._report, pending=len(self._outbox)))

    def drain(self, after: int) -> bytes:
        """Return the records after number `after`; those up to it are acknowledged and dropped."""
        return encode(self._outbox.after(after))

    def tell(self, command: bytes) -> bytes | None:
        """Pass a command to the rank; a Refused when its term or generation is below one seen."""
        told = decode_command(command)
        # One at a time: between the look at the term and the sending, no newer controller's command may slip in.
        with self._telling:
            seen = (self._report.term, self._report.generation)
            if told.term < seen[0] or told.generation < seen[1]:
                return encode(Refused(f"term {told.term}, generation {told.generation}: this host has seen {seen}"))
            if self._process is None:
                return encode(Refused("the rank process has not started"))
            try:
                send_frame(self._process.channel, command)
            except OSError as error:
                return encode(Refused(f"the rank process is gone: {error}"))
            match told:
                case Stop(generation, term):
                    self._change(term=term, stopping=generation)
                case Save(_, term):
                    self._change(term=term)
                case _:
                    self._change(term=told.term, generation=told.generation)
        return None

    def end(self) -> bool:
        """Kill the rank with its whole tree; True once nothing that carries the mark is left."""
        self._is_ending = True
        return clear(self._mark, self._folder)

    def _change(self, *, is_news: bool = True, **changes: object) -> None:
        # Reports and commands come from different threads: outside the lock one would undo the other's change.
        with self._changed:
            self._report = msgspec.structs.replace(self._report, seq=self._report.seq + is_news, **changes)
            if is_news:
                self._changed.notify_all()

    def _own(self, earlier: tuple[int, ...]) -> None:
        # Devices of a dead host's children are free only when they are gone.
        sweep(*(mark_of(self._work.job, host) for host in earlier))
        try:
            process = self._start()
        except (OSError, WorkerError) as error:
            failure = Failure("user", f"the rank could not be started: {error}", "", 0)
            self._change(rank=RankReport(state="failed", failure=failure))
            return
        threading.Thread(target=self._tend, args=(process,), name="tender", daemon=True).start()
        self._listen(process)
        ended = process.wait() or Exit(None, None, False, "")
        process.channel.close()
        self._change(exit=ended)

    def _start(self) -> RankProcess:
        storage = open_storage(self._work.storage)
        self._folder.mkdir(parents=True, exist_ok=True)
        digest = self._work.code
        code = unpack(storage, digest, self._folder / f"code-{digest[:12]}")
        process = spawn(self._mark, self._folder, environment(os.environ, self._work.environment, self._mark))
        if self._is_ending:
            process.kill()
        send_frame(process.channel, encode(msgspec.structs.replace(self._work, code=str(code))))
        self._process = process
        return process

    def _listen(self, process: RankProcess) -> None:
        while (frame := _frame(process.channel)) is not None:
            said = unpack_frame(frame)
            if isinstance(said, RankReport):
                self._change(is_news=not _goes_on(self._report.rank, said), rank=said)
            else:
                self._outbox.add(said)

    def _tend(self, process: RankProcess) -> None:
        while process.wait(timedelta(0)) is None:
            process.cap_output()
            time.sleep(1.0)


def _goes_on(before: RankReport, now: RankReport) -> bool:
    return now.state == before.state == "training" and (now.generation, now.saved) == (before.generation, before.saved)


def _frame(channel: socket.socket) -> bytes | None:
    try:
        return read_frame(channel)
    except OSError:
        return None
