"""Does the control plane keep its invariants whatever crashes when?

The real reconciler over the real repositories on SQLite, a fake cluster, and a crash before or after any store or
cluster call. `python -m tests.control_plane.simulation --schedules 100000` runs more than the test does.
"""

import argparse
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import Dialect, Engine

from service.cluster.port import Cluster
from service.control.job import TERMINAL
from service.errors import ClusterAway, Conflict, Deposed
from service.reconciler import Reconciler, Stores
from service.store import tables as t
from service.store.bulk import BulkStore
from service.store.engine import Schema, migrate, open_engine, reading
from service.store.jobs import JobStore
from service.store.lease import new_term
from service.store.wishes import WishStore
from tests.builders import NOW, spec
from tests.fakes.world import FakeCluster, World
from workers.lineage import Checkpoint, read_lineage
from workers.storage import FolderStorage

MOST_TURNS = 20
SETTLE = 300
TEMPLATES: tuple[tuple[Schema, str], ...] = (("truth", "muster.db"), ("bulk", "metrics.db"))


@cache
def compiled() -> tuple[Dialect, dict[Any, Any]]:
    """What all the engines of a process share, to compile each statement once: the cache's keys name the dialect."""
    engine = open_engine("sqlite://", "OFF")
    engine.connect().close()
    return engine.dialect, {}


def connect(path: Path) -> Engine:
    """A fresh connection to a database file."""
    engine = open_engine(f"sqlite:///{path}", "OFF")
    engine.dialect, statements = compiled()
    return engine.execution_options(compiled_cache=statements)


class Crash(BaseException):
    """The controller is killed here; not an Exception, since nothing may catch it."""


class Broken(AssertionError):
    """An invariant does not hold."""


@dataclass
class Fuse:
    """Counts calls, and burns at a chosen one, before or after it."""

    left: int | None = None
    is_after: bool = False

    def wrap(self, target: Any) -> Any:
        """The same object, each of whose calls may be the controller's last."""
        return _Wrapped(target, self)

    def around(self, call: Callable[[], Any]) -> Any:
        """Make one call."""
        burns = self.left == 0
        if self.left is not None:
            self.left -= 1
        if burns and not self.is_after:
            raise Crash
        result = call()
        if burns:
            raise Crash
        return result


class _Wrapped:
    def __init__(self, target: Any, fuse: Fuse) -> None:
        self._target, self._fuse = target, fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found
        return lambda *args, **options: self._fuse.around(lambda: found(*args, **options))


@dataclass
class Controller:
    """One life of the controller: fresh connections, a fresh view of the cluster."""

    engine: Engine
    bulk: Engine
    cluster: FakeCluster
    reconciler: Reconciler
    fuse: Fuse

    def close(self) -> None:
        """Drop the connections, as a killed process does."""
        self.engine.dispose()
        self.bulk.dispose()


@dataclass
class Run:
    """One schedule: a world, a database, and what was seen so far."""

    folder: Path
    random: Random
    world: World = field(init=False)
    now: datetime = NOW
    phases: dict[str, str] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    jobs: list[str] = field(default_factory=list)
    controller: Controller | None = None
    sleeper: Controller | None = None
    log: list[str] = field(default_factory=list)
    looked: Any = None

    def __post_init__(self) -> None:
        storage = FolderStorage(self.folder / "storage")
        self.world = World(storage, self.random, {"a": 2.0, "b": 2.0})
        self.engine = connect(self.folder / "muster.db")

    def clock(self) -> datetime:
        return self.now

    def begin(self) -> Controller:
        """Start a controller."""
        engine, bulk = connect(self.folder / "muster.db"), connect(self.folder / "metrics.db")
        term, fuse = new_term(engine, "simulated", self.now), Fuse()
        cluster = FakeCluster(self.world)
        storage = FolderStorage(self.folder / "storage")
        stores = Stores(
            cast(JobStore, fuse.wrap(JobStore(engine, term))),
            cast(BulkStore, fuse.wrap(BulkStore(engine, bulk, term))), storage, "memory",
        )  # fmt: skip
        reconciler = Reconciler(stores, cast(Cluster, fuse.wrap(cluster)), self.clock, lambda: "ab" * 32)
        return Controller(engine, bulk, cluster, reconciler, fuse)

    def turn(self) -> None:
        """One turn of the loop; a crash ends this controller, and the next turn begins another."""
        if self.controller is None:
            try:
                self.controller = self.begin()
            except ClusterAway:
                return
        try:
            woken = self.controller.cluster.wait(timedelta(0))
            self.controller.reconciler.turn(woken)
        except Crash:
            self.log.append("crash")
            self.controller.close()
            self.controller = None
        except ClusterAway:
            pass
        self.check()

    def wake_sleeper(self) -> None:
        """A stopped controller resumes after its term: nothing it does may count."""
        if self.sleeper is None:
            return
        before = self.rows()
        with suppress(Deposed, ClusterAway, Crash):
            self.sleeper.reconciler.turn(frozenset(self.jobs))
        if self.rows() != before:
            raise Broken("a deposed controller wrote rows")
        self.sleeper.close()
        self.sleeper = None

    def rows(self) -> list[Any]:
        """All rows of the truth."""
        with reading(self.engine) as connection:
            return [tuple(map(tuple, connection.execute(sa.select(table)))) for table in t.metadata.sorted_tables]

    def check(self) -> None:
        """The invariants, read by SQL."""
        with reading(self.engine) as connection:
            for row in connection.execute(sa.select(t.jobs)).mappings():
                self._check_job(row)
            live = sa.select(t.generations.c.job, sa.func.count().label("open")).group_by(t.generations.c.job)
            for row in connection.execute(live.where(t.generations.c.state != "ENDED")).mappings():
                _hold(row["open"] == 1, f"{row['open']} open generations of {row['job']}")
            wanted = sa.select(t.checkpoints).where(t.checkpoints.c.is_deleted.is_(False))
            kept = [(row.job, row.number, row.step) for row in connection.execute(wanted)]
            wanted = sa.select(
                t.generations.c.job, t.generations.c.number, t.generations.c.seal, t.generations.c.from_step
            )
            generations = [dict(row) for row in connection.execute(wanted).mappings()]
        if (kept, generations) != self.looked:
            self._check_lineage(kept, generations)
            self.looked = (kept, generations)
        trains = [(h.order.work.job, h.plan.generation) for h in self.world.hosts.values()
                  if h.plan and h.is_well and h.has_tree and h.rank.state == "training"]  # fmt: skip
        for job in self.jobs:
            _hold(len({item for item in trains if item[0] == job}) <= 1, f"two generations of {job} train")

    def _check_lineage(self, kept: list[tuple[str, int, int]], generations: list[dict[str, Any]]) -> None:
        for job in self.jobs:
            there = {e.number: e.step for e in read_lineage(self.world.storage, job) if isinstance(e, Checkpoint)}
            for owner, number, step in kept:
                if owner == job:
                    _hold(there.get(number) == step, f"checkpoint {number} of {job} is lost")
            for row in generations:
                older = [step for owner, number, step in kept if owner == job and number < (row["seal"] or 0)]
                if row["job"] == job and row["from_step"] is not None and older:
                    _hold(
                        row["from_step"] >= max(older), f"generation {row['number']} of {job} went below a checkpoint"
                    )

    def _check_job(self, row: Any) -> None:
        job, phase = row["id"], row["phase"]
        known = self.phases.get(job)
        _hold(known not in TERMINAL or known == phase, f"{job} went from {known} to {phase}")
        _hold(row["step"] >= self.steps.get(job, 0), f"the step of {job} went back")
        _hold(bool(row["reason"]), f"{job} has no reason")
        self.phases[job], self.steps[job] = phase, row["step"]

    def settle(self) -> None:
        """Once nothing more goes wrong, every job comes to its end, and then all is quiet."""
        self.world.return_nodes()
        self.world.is_away = False
        for _ in range(SETTLE):
            if all(self.phases.get(job) in TERMINAL for job in self.jobs) and self.jobs:
                break
            self.world.advance()
            self.now += timedelta(seconds=self.random.choice((0.05, 0.3, 1.1)))
            self.turn()
        else:
            raise Broken(f"no end in sight: {self.phases}")
        if self.controller is not None:
            self.controller.fuse.left = None
        for _ in range(3):
            self.world.advance()
            self.now += timedelta(seconds=11)
            self.turn()
        before = self.rows()
        self.turn()
        _hold(self.rows() == before, "rows were written though nothing changed")
        left = [str(name) for name, host in self.world.hosts.items() if host.has_tree]
        _hold(not left, f"hosts are left: {left}")
        self.check_points()

    def check_points(self) -> None:
        """A job that succeeded has each point of its metric, once, and no divergence."""
        bulk = connect(self.folder / "metrics.db")
        with reading(bulk) as connection:
            points = [(row.job, row.step) for row in connection.execute(sa.select(t.points))]
        bulk.dispose()
        for job in self.jobs:
            if self.phases[job] == "SUCCEEDED":
                steps = sorted(step for owner, step in points if owner == job)
                _hold(steps == list(range(1, 13)), f"{job} has the points {steps}")
        with reading(self.engine) as connection:
            found = connection.execute(sa.select(t.events.c.text).where(t.events.c.kind == "DIVERGENCE")).all()
        _hold(not found, f"divergence: {found}")


def _hold(is_true: bool, text: str) -> None:
    if not is_true:
        raise Broken(text)


def happenings(run: Run) -> list[tuple[float, str, Callable[[], None]]]:  # noqa: C901 - one small act after another
    """What may happen between two turns, with weights."""
    random, world, wishes = run.random, run.world, WishStore(run.engine)

    def submit() -> None:
        job = f"j{len(run.jobs)}"
        run.jobs.append(job)
        if random.random() < 0.15:
            world.bugs[job] = random.randint(0, 11)
        first = random.randint(1, 3)
        wishes.submit(job, spec(ranks={"initial": first, "min": random.randint(1, first), "max": 4}), run.now)

    def wish(kind: str) -> None:
        job = random.choice(run.jobs)
        with suppress(Conflict):
            if kind == "cancel":
                wishes.cancel(job, run.now)
            else:
                wishes.scale(job, random.choice((1, 2, 3, None)), run.now)

    def strike(act: Callable[[Any], None]) -> None:
        if world.hosts:
            act(random.choice(sorted(world.hosts)))

    def burn() -> None:
        if run.controller is not None:
            run.controller.fuse.left, run.controller.fuse.is_after = random.randint(0, 25), random.random() < 0.5

    def sleep() -> None:
        if run.controller is not None and run.sleeper is None:
            run.controller.fuse.left = None
            run.sleeper, run.controller = run.controller, None

    def away() -> None:
        world.is_away = not world.is_away

    return [
        (1.0, "submit", submit), (1.5, "scale", lambda: wish("scale")), (0.4, "cancel", lambda: wish("cancel")),
        (2.0, "kill rank", lambda: strike(world.kill_rank)), (1.0, "kill host", lambda: strike(world.kill_host)),
        (0.5, "lose node", lambda: world.lose_node(random.choice(("a", "b")))), (0.7, "nodes", world.return_nodes),
        (4.0, "fuse", burn), (0.6, "sleep", sleep), (0.8, "wake", run.wake_sleeper), (0.3, "away", away),
        (8.0, "nothing", lambda: None),
    ]  # fmt: skip


def run_schedule(folder: Path, seed: int) -> list[str]:
    """Run one schedule; Broken, with what happened, when an invariant does not hold."""
    run = Run(folder, Random(seed))
    options = happenings(run)
    options[0][2]()
    try:
        for _ in range(run.random.randint(5, MOST_TURNS)):
            name, act = run.random.choices([(n, a) for _, n, a in options], [w for w, _, _ in options])[0]
            run.log.append(name)
            act()
            run.world.advance()
            run.now += timedelta(seconds=run.random.choice((0.05, 0.3, 1.1, 3.0)))
            run.turn()
        run.wake_sleeper()
        run.settle()
    except Broken as error:
        raise Broken(f"seed {seed}: {error}; happened: {run.log}") from error
    finally:
        run.engine.dispose()
        for controller in (run.controller, run.sleeper):
            if controller is not None:
                controller.close()
    return run.log


@contextmanager
def template() -> Iterator[Path]:
    """Migrated empty databases, in memory-backed storage where there is one."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="muster-sim-", dir=base) as name:
        root = Path(name)
        for schema, file in TEMPLATES:
            engine = open_engine(f"sqlite:///{root / file}", "OFF")
            migrate(engine, schema)
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
            engine.dispose()
        yield root


def _one(job: tuple[str, int]) -> str | None:
    root, seed = Path(job[0]), job[1]
    folder = root / f"run-{seed}"
    folder.mkdir()
    for _, file in TEMPLATES:
        shutil.copy(root / file, folder / file)
    try:
        run_schedule(folder, seed)
    except Broken as error:
        return str(error)
    finally:
        shutil.rmtree(folder)
    return None


def run_many(first: int, count: int) -> list[str]:
    """Run schedules, one process per core; return what broke."""
    with template() as root, multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        jobs = ((str(root), seed) for seed in range(first, first + count))
        return [text for text in pool.imap_unordered(_one, jobs, chunksize=5) if text is not None]


def main() -> int:
    """Process entry."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    began = time.monotonic()
    broken = run_many(chosen.first, chosen.schedules)
    for text in broken[:20]:
        sys.stdout.write(text + "\n")
    sys.stdout.write(f"{chosen.schedules} schedules, {len(broken)} broken, {time.monotonic() - began:.0f} s\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
