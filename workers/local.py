"""How does one run a program on this machine alone: `python -m workers.local FOLDER --ranks N`?

The ranks are real rank processes; this file takes the controller's part in the smallest way: one plan, and after an
aborted step a next plan with the same members. No Ray, SQL or HTTP.
"""

import argparse
import json
import os
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import yaml

from workers.desk import read_frame, send_frame, unpack
from workers.environment import environment
from workers.process import RankProcess, spawn, sweep
from workers.protocol import Cadence, Exit, Failure, Member, Plan, RankReport, Record, Restore, Result, Work, encode
from workers.sampling import deal

TERM = 1


class LocalFailed(Exception):
    """A rank failed; the text is its reason."""


@dataclass(slots=True)
class LocalRank:
    """One rank process as seen from here."""

    process: RankProcess
    report: RankReport = field(default_factory=RankReport)
    records: list[Record] = field(default_factory=list)
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class LocalResult:
    """What a local run left: the result, the records of all ranks, and the reports they ended with."""

    result: Result
    records: tuple[Record, ...]
    reports: tuple[RankReport, ...]
    generations: int


def read_spec(folder: Path) -> dict[str, Any]:
    """Return the job.yaml of a program's folder."""
    spec = yaml.safe_load((folder / "job.yaml").read_text())
    if not isinstance(spec, dict):
        raise LocalFailed(f"{folder / 'job.yaml'} must be a mapping")
    return spec


def work_of(spec: dict[str, Any], folder: Path, host: int, storage: str) -> Work:
    """Return the work of one rank of a local run."""
    checkpoint = spec.get("checkpoint", {})
    cadence = Cadence(int(checkpoint.get("every_steps", 0)), float(checkpoint.get("every_seconds", 0)))
    return Work(
        "local", host, str(folder), spec["program"], spec.get("params", {}), int(spec.get("seed", 0)),
        int(spec["shards"]), int(spec["shard_batch"]), spec.get("steps"), spec.get("epochs"),
        int(spec.get("threads", 1)), cadence, int(spec.get("evaluate_every", 0)),
        float(spec.get("pace_ms", 0)) / 1000, storage, "127.0.0.1", spec.get("environment", {}),
    )  # fmt: skip


class LocalRun:
    """The ranks of one local run, and what they have said."""

    def __init__(self, spec: dict[str, Any], folder: Path, ranks: int, scratch: Path) -> None:
        self.spec, self.folder, self.scratch = spec, folder, scratch
        self.changed = threading.Condition()
        self.mark = f"local-{os.getpid()}-{secrets.token_hex(4)}"
        self.ranks = [LocalRank(self._start(host)) for host in range(ranks)]
        # One long-lived thread a rank: the parent-death signal of a child follows the thread that made it, so the
        # children are made by this one, which outlives them.
        self._readers = [threading.Thread(target=self._read, args=(rank,), daemon=True) for rank in self.ranks]
        for reader in self._readers:
            reader.start()

    def _start(self, host: int) -> RankProcess:
        work = work_of(self.spec, self.folder, host, str(self.scratch / "storage"))
        env = environment(os.environ, work.environment, self.mark)
        process = spawn(self.mark, self.scratch / f"rank-{host}", env)
        send_frame(process.channel, encode(work))
        return process

    def _read(self, rank: LocalRank) -> None:
        while (frame := read_frame(rank.process.channel)) is not None:
            said = unpack(frame)
            with self.changed:
                if isinstance(said, RankReport):
                    rank.report = said
                else:
                    rank.records.extend(said)
                self.changed.notify_all()
        ended = rank.process.wait()
        with self.changed:
            rank.exit = ended
            self.changed.notify_all()

    def wait_all(self, states: Sequence[str], generation: int = 0) -> str:
        """Wait until every rank is in one of `states`; return the first rank's. LocalFailed when one cannot be."""

        def there() -> bool:
            _raise_failures(self.ranks)
            return all(r.report.state in states and r.report.generation >= generation for r in self.ranks)

        with self.changed:
            self.changed.wait_for(there)
            return max((rank.report.state for rank in self.ranks), key=states.index)

    def send_plan(self, generation: int) -> None:
        """Give every rank the next plan: the same members, dealt alike."""
        shares = deal(int(self.spec["shards"]), len(self.ranks))
        members = tuple(
            Member(index, index, rank.report.address, *shares[index]) for index, rank in enumerate(self.ranks)
        )
        plan = Plan("local", generation, TERM, members, secrets.token_hex(32), Restore(0))
        for rank in self.ranks:
            send_frame(rank.process.channel, encode(plan))

    def end(self) -> None:
        """Leave no process behind."""
        sweep(self.mark)
        for reader, rank in zip(self._readers, self.ranks, strict=True):
            reader.join()
            rank.process.channel.close()


def _raise_failures(ranks: Sequence[LocalRank]) -> None:
    for number, rank in enumerate(ranks):
        if rank.report.failure is not None:
            failure: Failure = rank.report.failure
            raise LocalFailed(f"rank {number} failed at step {failure.step}: {failure.summary}\n{failure.traceback}")
        if rank.exit is not None and rank.report.state not in ("finished", "stopped"):
            raise LocalFailed(f"rank {number} ended ({rank.exit.code or rank.exit.signal}): {rank.exit.tail}")


def run_local(spec: dict[str, Any], folder: Path, ranks: int, scratch: Path) -> LocalResult:
    """Run a program to its end with `ranks` rank processes. LocalFailed with the reason when it fails."""
    run = LocalRun(spec, folder.resolve(), ranks, scratch)
    generation = 0
    try:
        run.wait_all(("ready",))
        while True:
            generation += 1
            run.send_plan(generation)
            if run.wait_all(("finished", "parked"), generation) == "finished":
                break
    finally:
        run.end()
    results = [rank.report.result for rank in run.ranks if rank.report.result is not None]
    digests = {result.weights_sha256 for result in results}
    if len(digests) != 1:
        raise LocalFailed(f"the ranks ended with different weights: {sorted(digests)}")
    records = tuple(record for rank in run.ranks for record in rank.records)
    return LocalResult(results[0], records, tuple(rank.report for rank in run.ranks), generation)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line entry; prints the result as JSON."""
    parser = argparse.ArgumentParser(prog="python -m workers.local", description=__doc__)
    parser.add_argument("folder", type=Path, help="folder with job.yaml and the program")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON", help="change a field of job.yaml")
    parser.add_argument("--scratch", type=Path, help="keep logs and checkpoints here")
    chosen = parser.parse_args(arguments)
    spec = read_spec(chosen.folder) | {item.split("=", 1)[0]: json.loads(item.split("=", 1)[1]) for item in chosen.set}
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-local-") as temporary:
        try:
            ended = run_local(spec, chosen.folder, chosen.ranks, chosen.scratch or Path(temporary))
        except LocalFailed as error:
            print(error, file=sys.stderr)
            return 1
    body = msgspec.to_builtins(ended.result) | {"seconds": round(time.monotonic() - began, 2), "ranks": chosen.ranks}
    body["rank_seconds"] = [report.seconds for report in ended.reports]
    print(json.dumps(body, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
