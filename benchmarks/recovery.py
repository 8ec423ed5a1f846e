"""How long from kill -9 of a rank to the next new committed step, by an outside clock, and where does it go?"""

import os
import random
import signal
import sys
import time
from datetime import datetime

from benchmarks.report import Report, median, options, p95
from benchmarks.service import DIGITS, Service, running

PARTS = ("detect", "drain", "start", "import", "build", "compile", "load", "form and redo")


def one_kill(service: Service, ranks: int, at: int) -> dict[str, float]:
    """Kill the last rank at a step; return seconds by part, and the committed steps redone."""
    job = service.submit(
        DIGITS, ranks={"initial": ranks, "min": 1, "max": ranks}, shards=ranks, shard_batch=16, steps=at + 40,
        pace_ms=50, seed=7, checkpoint={"every_steps": 10, "every_seconds": 0},
    )  # fmt: skip
    while service.client.job(job)["step"] < at:
        time.sleep(0.005)
    victim = service.client.rows(job, "ranks")[-1]["pid"]
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    while service.client.job(job)["generation"] < 2:
        time.sleep(0.005)
    # Steps that were committed before the end was seen come in after the kill, too: only later ones are new.
    reached = service.client.rows(job, "generations")[0]["ended_step"]
    while service.client.job(job)["step"] <= reached:
        time.sleep(0.005)
    back = time.time()
    first, second = service.client.rows(job, "generations")[:2]
    service.client.cancel(job)
    service.client.wait(job, 60)
    ended, planned, live = (
        datetime.fromisoformat(text).timestamp()
        for text in (first["ended_at"], second["planned_at"], second["live_at"])
    )
    inner = second["seconds"]
    parts = {
        name: inner[key]
        for name, key in (("import", "import"), ("build", "build"), ("compile", "probe"), ("load", "load"))
    }
    return {
        "whole": back - killed, "detect": ended - killed, "drain": planned - ended,
        "start": live - planned - sum(parts.values()), **parts, "form and redo": back - live,
        "redone": float(first["ended_step"] - second["from_step"]),
    }  # fmt: skip


def main() -> int:
    """Kill ranks of jobs with two, three and four."""
    chosen = options(__doc__)
    report = Report("recovery", ("ranks", "kills", "whole s", "p95", *PARTS, "steps redone"))
    draw = random.Random(1)
    with running(cpus=4) as service:
        for ranks in (2, 3, 4):
            runs = [one_kill(service, ranks, draw.randint(12, 28)) for _ in range(10 if chosen.full else 2)]
            mid = {name: median([run[name] for run in runs]) for name in runs[0]}
            whole = [run["whole"] for run in runs]
            report.row(ranks, len(runs), mid["whole"], p95(whole), *[mid[part] for part in PARTS], mid["redone"])
            report.figures[f"{ranks} ranks"] = mid | {"p95": p95(whole)}
    return report.end(chosen.check)


if __name__ == "__main__":
    sys.exit(main())
