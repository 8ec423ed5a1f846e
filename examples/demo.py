"""What does Muster promise, shown in two minutes?

A real service on free ports of this machine trains the handwritten digits with two ranks; one is killed, the job goes
to three ranks and to one; beside it an undisturbed run of one rank. Both end with the same weights.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from api.client import Client, read_spec
from service.settings import ROOT

Json = dict[str, Any]
KILL_AT, GROW_AT, SHRINK_AT = 50, 100, 170
TASKS = "4"
"""Ranks share this machine's cores; three of them must fit on two."""

console = Console()


def muster(home: Path, *words: str) -> None:
    """Run one command of the CLI, as a user would."""
    environment = os.environ | {"MUSTER_HOME": str(home), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "api.cli", *words], env=environment, check=True)


def disturb(client: Client, job: str) -> Json:
    """Follow a job to its end, and disturb it on the way."""
    told: set[str] = set()
    said = ""
    for found in client.watch(job):
        if found["reason"] != said:
            said = found["reason"]
            console.print(f"  step {found['step']:>3}  {found['phase']:<10} {said}", markup=False, highlight=False)
        if found["phase"] != "RUNNING" or found["replaying_from"] is not None:
            continue
        if found["step"] >= KILL_AT and "kill" not in told:
            told.add("kill")
            victim = client.rows(job, "ranks")[-1]
            console.print(f"  step {found['step']:>3}  [red]kill -9 {victim['pid']}[/] (rank {victim['rank']})")
            os.kill(victim["pid"], signal.SIGKILL)
        for name, at, ranks in (("grow", GROW_AT, 3), ("shrink", SHRINK_AT, 1)):
            if found["step"] >= at and "kill" in told and name not in told:
                told.add(name)
                console.print(f"  step {found['step']:>3}  [cyan]muster scale {job} {ranks}[/]")
                client.scale(job, ranks)
                break
    return found


def seconds(row: Json) -> str:
    """How long a generation took to start, and how long it trained."""
    planned, live, ended = (
        row[name] and datetime.fromisoformat(row[name]) for name in ("planned_at", "live_at", "ended_at")
    )
    if live is None:
        return f"{(ended - planned).total_seconds():.1f} + 0"
    return f"{(live - planned).total_seconds():.1f} + {(ended - live).total_seconds():.1f}"


def generations(client: Client, job: str) -> Table:
    """The generations of a job, with reasons and seconds."""
    table = Table(title="Generations", title_justify="left")
    for column in ("generation", "ranks", "steps", "seconds to start + trained", "why"):
        table.add_column(column)
    for row in client.rows(job, "generations"):
        steps = f"{row['from_step']} → {row['ended_step']}"
        table.add_row(str(row["number"]), str(len(row["hosts"])), steps, seconds(row), row["why"])
    return table


def epochs(client: Client, job: Json) -> str:
    """How many epochs a job has finished, and of how many samples each."""
    count = len(client.rows(job["id"], "epochs"))
    return f"{count} × {job['result']['samples'] // count} samples"


def outcome(client: Client, disturbed: Json, undisturbed: Json) -> Table:
    """Both jobs side by side."""
    table = Table(title="Result", title_justify="left")
    for column in ("", "disturbed: 2 ranks, one killed, 3, 1", "undisturbed: 1 rank"):
        table.add_column(column)
    both = (disturbed, undisturbed)
    table.add_row("steps", *[str(job["result"]["steps"]) for job in both])
    table.add_row("accuracy", *[f"{job['result']['evaluation']['eval_accuracy']:.4f}" for job in both])
    table.add_row("epochs, each sample once", *[epochs(client, job) for job in both])
    table.add_row("ledger of fed samples", *[job["result"]["ledger"][:32] + "…" for job in both])
    table.add_row("weights_sha256", *[f"[bold]{job['result']['weights_sha256'][:32]}…[/]" for job in both])
    return table


def run(home: Path) -> bool:
    """Run both jobs; say whether they ended alike."""
    muster(home, "up", "--cpus", TASKS)
    spec, code = read_spec(ROOT / "examples" / "digits")
    with Client.of_home(home) as client:
        console.print("\n[bold]digits, 2 ranks, disturbed[/]")
        first = client.submit(spec, code)["id"]
        disturbed = disturb(client, first)
        console.print("\n[bold]digits, 1 rank, undisturbed[/]")
        second = client.submit(spec | {"ranks": {"initial": 1, "min": 1, "max": 1}}, code)["id"]
        undisturbed = client.wait(second)
        for job in (disturbed, undisturbed):
            if job["phase"] != "SUCCEEDED":
                console.print(f"job {job['id']} is {job['phase']}: {job['reason']}", markup=False)
                return False
        console.print(generations(client, first), outcome(client, disturbed, undisturbed))
    return bool(
        disturbed["result"]["weights_sha256"] == undisturbed["result"]["weights_sha256"]
        and disturbed["result"]["ledger"] == undisturbed["result"]["ledger"]
    )


def main() -> int:
    """Process entry: 0 when the weights are equal."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-demo-") as folder:
        try:
            are_equal = run(Path(folder))
        finally:
            muster(Path(folder), "down")
    verdict = "[green]equal: no trace of the cluster in the result[/]" if are_equal else "[red]NOT EQUAL[/]"
    console.print(f"{verdict}   ({time.monotonic() - began:.0f} s)")
    return 0 if are_equal else 1


if __name__ == "__main__":
    sys.exit(main())
