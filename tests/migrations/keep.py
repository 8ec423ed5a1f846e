"""How are the database files of a release made, which the migrations of later releases must carry on?

`python -m tests.migrations.keep v0.1.0`: a real Muster trains, loses a rank, fails and cancels; its databases are kept
without this machine's names. It must run on the tree that the release is tagged on.
"""

import os
import signal
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from api.client import Client
from service.settings import ROOT
from tests.eventually import eventually
from tests.service_fixture import DIGITS, Muster, cli

KEPT = Path(__file__).parent
FILES = ("muster.db", "metrics.db")


def kill_one(muster: Muster, job: str) -> None:
    """SIGKILL the job's last rank once it has trained a while."""
    eventually(lambda: muster.client.job(job)["step"] > 50, 120)
    os.kill(muster.client.rows(job, "ranks")[-1]["pid"], signal.SIGKILL)


def live(muster: Muster) -> None:
    """Let jobs end in each of the three ways, and leave one in training."""
    trained = muster.submit(DIGITS, name="trained", checkpoint={"every_steps": 20})
    kill_one(muster, trained)
    failed = muster.submit(name="failed", params={"fault": "nan"})
    cancelled = muster.submit(name="cancelled", epochs=100_000)
    eventually(lambda: muster.client.job(cancelled)["phase"] == "RUNNING", 120)
    muster.client.cancel(cancelled)
    for job in (trained, failed, cancelled):
        muster.client.wait(job)
    running = muster.submit(name="running", epochs=100_000)
    eventually(lambda: muster.client.job(running)["step"] > 20, 120)


def keep(home: Path, folder: Path) -> None:
    """Copy both databases as single files, without the names of this machine."""
    folder.mkdir(exist_ok=True)
    for name in FILES:
        (folder / name).unlink(missing_ok=True)
        with closing(sqlite3.connect(home / name)) as source:
            source.execute("VACUUM INTO ?", (str(folder / name),))
    with closing(sqlite3.connect(folder / "muster.db", isolation_level=None)) as kept:
        kept.execute("UPDATE nodes SET name = 'node-a'")
        kept.execute("UPDATE lease SET holder = 'controller-a'")
        kept.execute("UPDATE jobs SET failure = replace(failure, ?, '/opt/muster')", (str(ROOT),))
        kept.execute("VACUUM")  # or the names before stay readable in free pages


def main() -> None:
    """Process entry."""
    with tempfile.TemporaryDirectory(prefix="muster-keep-") as name:
        home = Path(name)
        cli(home, "up", "--cpus", "4")
        try:
            with Client.of_home(home) as client:
                live(Muster(home, client))
            keep(home, KEPT / sys.argv[1])
        finally:
            cli(home, "down")


if __name__ == "__main__":
    main()
