"""How long does a step take: the service, bare rank processes, and plain MindSpore under msrun, in one run?

The time inside a rank outside its graphs and the reduce is what Muster adds to a step; only waiting for peers is left
out of it. The rank's own adding along the tree counts as reduce.
"""

import os
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from benchmarks.group import Ranges, run_group
from benchmarks.peers.msrun import run_patiently
from benchmarks.report import Report, median, options, p95
from benchmarks.service import DIGITS, MLP, Service, environment_of, running
from workers.collectives.host import HostGroup

SCRIPT = str(Path(__file__).parent / "peers" / "msrun_step.py")
PARTS = ("graph", "paced", "sum", "exchange", "add", "apply")
WARM = 5
Json = dict[str, Any]


def bare_steps(group: HostGroup, ranges: Ranges, code: str, batch: int, steps: int) -> list[float]:
    """Seconds of each step of a rank without host, desk, reports, ledger or headers that say anything."""
    from workers.collectives.tree import Totals, TreeReduce  # mindspore's import must not run in the parent
    from workers.phases import PhasePage
    from workers.protocol import Cadence, Header, Work
    from workers.session import prepare

    os.environ.update({"GLOG_v": "3"} | environment_of(Path(code)))  # before oneDNN looks
    shards = ranges[-1][1]
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        work = Work(
            "bench", 0, code, "program:build", {}, 7, shards, batch, steps, None, 1, Cadence(0, 0), 0, 0, folder, "", {}
        )
        prepared = prepare(work)
        phases = PhasePage(Path(folder) / "phase")
        prepared.probe(phases)
        step, header = prepared.step, Header(0, 0, 1, False, False, b"", ())
        tree, seconds = TreeReduce(group, step.model.layout, ranges), []
        samples = float(shards * batch)
        for index in range(steps):
            began = time.perf_counter()
            computed = step.compute(index, ranges[group.rank], phases, lambda: None)
            mine, occupied = dict(computed.sums), step.sampling.occupied(index)
            totals = tree.collect(header, occupied, mine)
            tree.finish(header, occupied, mine, Totals(totals.headers, samples, samples), step.model.reduced)
            step.release(list(mine.values()))
            step.apply()
            seconds.append(time.perf_counter() - began)
        os.chdir("/")
    return seconds[WARM:]


def bare(code: Path, shards: int, batch: int, steps: int) -> list[float]:
    """Seconds of each step of bare rank processes, the slower rank's."""
    results = run_group(2, shards, bare_steps, str(code), batch, steps)
    return [max(each) for each in zip(*results, strict=True)]


def served(service: Service, code: Path, ranks: int, **spec: Any) -> Json:
    """Median seconds a step of rank 0 under the service, by part; `over` is what no part accounts for."""
    job = service.submit(code, ranks={"initial": ranks, "min": ranks, "max": ranks}, **spec)
    seconds = service.finish(job)["seconds"]
    return {name: seconds[f"step_{name}"] for name in (*PARTS, "wait", "whole", "p95", "over")}


def msrun(model: str, threads: int, steps: int) -> list[float]:
    """Seconds of each step of the plain script."""
    args = ["--model", model, "--steps", str(steps), "--threads", str(threads)]
    env = environment_of({"mlp": MLP, "digits": DIGITS}[model])
    found: list[float] = run_patiently(SCRIPT, 2, args, timedelta(minutes=2), env=env)["seconds"]
    return found


def paced(service: Service, ranks: int, steps: int) -> Json:
    """Seconds a step of the paced digits job, by part, and the cores that the service used meanwhile."""
    job = service.submit(
        DIGITS,
        ranks={"initial": ranks, "min": ranks, "max": ranks},
        shards=4,
        shard_batch=4,
        steps=steps,
        pace_ms=50,
        seed=7,
    )
    while (found := service.client.job(job))["step"] < 5:
        time.sleep(0.02)
    first, began, used = found["step"], time.monotonic(), service.cpu_seconds()
    while (found := service.client.job(job))["step"] < steps - 5 and found["phase"] == "RUNNING":
        time.sleep(0.5)
    cores = (service.cpu_seconds() - used) / (time.monotonic() - began)
    seconds = service.finish(job)["seconds"]
    assert found["step"] > first
    return {name: seconds[f"step_{name}"] for name in ("whole", "p95", "paced", "graph", "apply")} | {"cores": cores}


def best(one: Json, ranks: int) -> float:
    """The efficiency that this machine's cores allow: ranks that share a core compute one after another."""
    queue = max(1.0, ranks / (os.cpu_count() or 1))
    least = one["paced"] / ranks + queue * (one["graph"] / ranks + one["apply"])
    return float(one["whole"] / (ranks * least))


def measure(rounds: int, steps: int) -> tuple[dict[str, list[float]], dict[str, list[Json]], dict[int, list[Json]]]:
    """Interleave all variants."""
    plain: dict[str, list[float]] = {}
    inside: dict[str, list[Json]] = {}
    pace: dict[int, list[Json]] = {}
    for _ in range(rounds):
        with running(cpus=4) as service:
            inside.setdefault("mlp", []).append(served(service, MLP, 2, shards=2, shard_batch=32, steps=steps, seed=7))
            digits = served(service, DIGITS, 2, shards=2, shard_batch=32, steps=steps * 2, seed=7)
            inside.setdefault("digits", []).append(digits)
            for ranks in (1, 2, 4):
                pace.setdefault(ranks, []).append(paced(service, ranks, 60))
        plain.setdefault("bare mlp", []).extend(bare(MLP, 2, 32, steps))
        plain.setdefault("bare digits", []).extend(bare(DIGITS, 2, 32, steps * 2))
        for threads in (0, 1):
            name = "defaults" if threads == 0 else "1 thread"
            plain.setdefault(f"msrun mlp, {name}", []).extend(msrun("mlp", threads, steps // 2))
            plain.setdefault(f"msrun digits, {name}", []).extend(msrun("digits", threads, steps))
    return plain, inside, pace


def middle(runs: list[Json]) -> Json:
    """The median of each figure."""
    return {name: median([run[name] for run in runs]) for name in runs[0]}


def report_paced(report: Report, pace: dict[int, Json]) -> None:
    """The gap between the pace and the step, the efficiency, and how much of it the machine's cores allow."""
    for ranks, mid in pace.items():
        share, most = pace[1]["whole"] / (ranks * mid["whole"]), best(pace[1], ranks)
        gap = 1000 * (mid["whole"] - mid["paced"])
        name = f"paced digits, {ranks} ranks, gap {gap:.1f} ms"
        whole, late, graph, apply = (1000 * mid[part] for part in ("whole", "p95", "graph", "apply"))
        report.row(name, whole, late, graph, *["-"] * 4, apply, "-", "-")
        report.figures[f"paced {ranks}"] = {
            "ms": 1000 * mid["whole"], "gap_ms": gap, "efficiency": share, "cores_allow": most,
            "service_cores": mid["cores"],
        }  # fmt: skip
        words = f"paced, {ranks} ranks: efficiency at least 90 % (the cores here allow {100 * most:.1f} %)"
        report.goal(words, 100 * share, share >= 0.9)
        report.goal(f"paced, {ranks} ranks: service at most 0.15 core", mid["cores"], mid["cores"] <= 0.15)


def main() -> int:
    """Measure and hold against the goals."""
    chosen = options(__doc__)
    plain, inside, pace = measure(5 if chosen.full else 1, 60)
    report = Report(
        "step",
        (
            "what",
            "ms a step",
            "p95",
            "graph",
            "sum",
            "exchange",
            "of it wait",
            "add",
            "apply",
            "over",
            "over % of 50 ms",
        ),
    )
    for name, runs in inside.items():
        mid = {part: 1000 * seconds for part, seconds in middle(runs).items()}
        shown = [mid[part] for part in ("whole", "p95", "graph", "sum", "exchange", "wait", "add", "apply", "over")]
        report.row(f"service {name}, 2 ranks", *shown, 2 * mid["over"])
        report.figures[f"service {name}"] = mid
        report.goal(f"{name}: outside graphs and reduce at most 2 % of 50 ms", 2 * mid["over"], 2 * mid["over"] <= 2)
    for name, seconds in plain.items():
        report.row(name, 1000 * median(seconds), 1000 * p95(seconds), *["-"] * 8)
        report.figures[name] = 1000 * median(seconds)
    mine = report.figures["service mlp"]["whole"]
    for name in ("defaults", "1 thread"):
        factor = report.figures[f"msrun mlp, {name}"] / mine
        report.goal(f"at least 4 × faster than msrun at 5 M parameters, {name}", factor, factor >= 4)
    report_paced(report, {ranks: middle(runs) for ranks, runs in pace.items()})
    return report.end(chosen.check)


if __name__ == "__main__":
    sys.exit(main())
