"""What does a rank process do from its first line to its last?

Read the work, build the program, prove itself by the probe, then train in one generation after another. It must not
decide who is in a generation.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from workers.desk import Desk
from workers.errors import PeerLost, ProgramError, StepAborted, WorkerError
from workers.phases import PhasePage
from workers.protocol import Failure, Lost, Plan, Work
from workers.storage import open_storage

if TYPE_CHECKING:
    from workers.collectives.links import Listener
    from workers.session import Session

PR_SET_PDEATHSIG = 1


def follow_parent(parent: int) -> None:
    """Ask the kernel to end this process with the thread that started it, and check that it still lives."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.getppid() != parent:
        os._exit(3)


@dataclass(slots=True)
class Stopwatch:
    """Seconds of the parts of a start, reported as they come."""

    desk: Desk
    since: float

    def lap(self, name: str) -> None:
        """Book the seconds since the last lap under `name`."""
        now = time.monotonic()
        self.desk.say(seconds=self.desk.report.seconds | {name: now - self.since})
        self.since = now


def run(desk: Desk, work: Work) -> None:
    """Build, probe, and train until the job is done or this rank is told to stop."""
    watch = Stopwatch(desk, time.monotonic())
    desk.say(state="importing", pid=os.getpid())
    from workers.collectives.links import listen  # after the first report: the import below takes seconds
    from workers.session import Session, prepare

    watch.lap("import")
    listener = listen(work.listen)
    phases = PhasePage(Path("phase"))
    desk.say(state="building")
    prepared = prepare(work)
    watch.lap("build")
    desk.say(state="compiling")
    digests = prepared.probe(phases)
    watch.lap("probe")
    desk.say(state="ready", address=listener.address, probe=digests, numeric_class=prepared.numeric_class)
    session = Session(work, prepared, desk, open_storage(work.storage), phases)
    generation = 0
    while (plan := desk.wait_plan(generation)) is not None:
        generation = plan.generation
        if _one_generation(session, plan, listener, desk):
            return
    desk.say(state="stopped")


def _one_generation(session: "Session", plan: Plan, listener: "Listener", desk: Desk) -> bool:
    """Train in one generation; say whether this rank is done for good."""
    member = plan.member(session.work.host)
    if member is None:
        desk.say(state="stopped", generation=plan.generation)
        return True
    desk.say(state="forming")
    try:
        return session.live(plan, member.rank, listener)
    except (PeerLost, StepAborted) as error:
        lost = error.rank if isinstance(error, PeerLost) else member.rank
        desk.say(state="parked", generation=plan.generation, lost=Lost((lost,), str(error)))
        return False


def _failure(error: BaseException, desk: Desk) -> Failure:
    match error:
        case ProgramError():
            kind = "user"
        case WorkerError():
            kind = "muster"
        case _:
            # Before the first step everything that goes wrong is the program's; within a step it may be the machine's.
            kind = "step" if desk.report.state in ("training", "evaluating", "saving") else "user"
    text = "".join(traceback.format_exception(error))
    cause = error.__cause__
    summary = str(error) if isinstance(error, WorkerError) else f"{type(error).__name__}: {error}"
    if cause is not None and str(cause) not in summary:
        summary += f" ({type(cause).__name__}: {cause})"
    return Failure(kind, summary[:2000], text[-16000:], desk.report.applied)


def main() -> int:
    """Process entry: `rank_main FD PARENT_PID`."""
    follow_parent(int(sys.argv[2]))
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    desk = Desk(socket.socket(fileno=int(sys.argv[1])), host_gone=lambda: os._exit(4))
    work = desk.take_work()
    try:
        run(desk, work)
    except Exception as error:
        desk.say(state="failed", failure=_failure(error, desk))
        traceback.print_exc()
        return 1
    desk.flush()
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # MindSpore's and the user's threads must not hold back an end that has been reported.
    os._exit(code)
