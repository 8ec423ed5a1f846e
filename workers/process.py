"""How is a rank process spawned, watched, killed with all its children, and swept up?

Its tree is everything whose environment carries the host's mark. It must not know what the process computes.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil

from workers.environment import MARK
from workers.protocol import Exit

LOG_CAP = 16 << 20
TAIL = 4000


def mark_of(job: str, host: int) -> str:
    """Return what the environment of a host's whole process tree carries."""
    return f"{job}-h{host}"


def folder_of(scratch: Path, job: str, host: int) -> Path:
    """Return the working folder of a host's rank."""
    return scratch / job / f"h{host}"


def marks_below(scratch: Path) -> list[str]:
    """Return the marks of the hosts that have a working folder."""
    return [mark_of(folder.parent.name, int(folder.name[1:])) for folder in scratch.glob("*/h*")]


@dataclass(slots=True)
class RankProcess:
    """A running rank process and our end of its channel."""

    mark: str
    popen: subprocess.Popen[bytes]
    channel: socket.socket
    folder: Path

    def wait(self, limit: timedelta | None = None) -> Exit | None:
        """Wait for the end and tell how it came; None when it still runs after `limit`."""
        try:
            code = self.popen.wait(None if limit is None else limit.total_seconds())
        except subprocess.TimeoutExpired:
            return None
        return Exit(code if code >= 0 else None, -code if code < 0 else None, self._out_of_memory(code), self.tail())

    def tail(self) -> str:
        """Return the end of what the process wrote."""
        with contextlib.suppress(OSError):
            data = (self.folder / "output.log").read_bytes()
            return data[-TAIL:].decode(errors="replace")
        return ""

    def kill(self) -> None:
        """Kill the process and everything that carries its mark; return when none is left."""
        sweep(self.mark)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(5.0)

    def cap_output(self) -> None:
        """Keep the output file below its cap: the older half goes."""
        path = self.folder / "output.log"
        with contextlib.suppress(OSError):
            if path.stat().st_size > LOG_CAP:
                kept = path.read_bytes()[-LOG_CAP // 2 :]
                # The process appends, so it goes on at the new end.
                os.truncate(path, 0)
                with path.open("ab") as file:
                    file.write(b"[older output dropped]\n" + kept)

    @staticmethod
    def _out_of_memory(code: int) -> bool:
        if code != -signal.SIGKILL:
            return False
        with contextlib.suppress(OSError):
            for line in Path("/sys/fs/cgroup/memory.events").read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1]) > 0
        return False


def spawn(mark: str, folder: Path, env: Mapping[str, str], low_priority: bool = False) -> RankProcess:
    """Start a rank process in its own process group and folder; `env` is its whole environment.

    Not in its own session: Linux schedules each session as one group, and ranks that share cores then no longer
    yield to each other (docs/decisions/cores.md).
    Call it from a thread that lives as long as the process: the parent-death signal follows the thread.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mine, theirs = socket.socketpair()
    command = [sys.executable, "-m", "workers.rank_main", str(theirs.fileno()), str(os.getpid())]
    if low_priority:
        command = ["nice", "-n", "5", *command]
    with (folder / "output.log").open("ab") as output, theirs:
        popen = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            process_group=0,
        )
    return RankProcess(mark, popen, mine, folder)


def marked(*marks: str, name: str = MARK) -> list[psutil.Process]:
    """Return the live processes whose environment carries one of the marks, this one left out."""
    wanted = {f"{name}={mark}".encode() for mark in marks}
    found: list[psutil.Process] = []
    if not wanted:
        return found  # a first generation has nobody before it: no look at every process of the machine
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            if wanted.intersection(environ) and process.pid != os.getpid() and not _is_zombie(process):
                found.append(process)
    return found


def _is_zombie(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_ZOMBIE)


def sweep(*marks: str, name: str = MARK, limit: timedelta = timedelta(seconds=10)) -> bool:
    """Kill everything that carries one of the marks until nothing does; False when something outlived `limit`."""
    deadline = time.monotonic() + limit.total_seconds()
    while left := marked(*marks, name=name):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if time.monotonic() > deadline:
            return False
        psutil.wait_procs(left, timeout=0.2)
    return True
