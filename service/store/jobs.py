"""What does the controller read and commit about jobs?

One job's turn is one transaction: fence, row version, rows, events. It must not decide; the API's reads and wishes are
in queries.py and wishes.py.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from service.control.draft import Decision
from service.control.job import TERMINAL, Event, Host, HostState, Past, Snapshot
from service.control.observation import Node
from service.control.spec import FAILURES
from service.errors import Fenced
from service.store import tables as t
from service.store.engine import reading, writing
from service.store.lease import check_term
from service.store.rows import generation_from, host_from, job_from, row_of_generation, row_of_host, row_of_job


@dataclass(frozen=True, slots=True)
class Versioned:
    """A snapshot and the row version it was read at."""

    snapshot: Snapshot
    version: int
    desired_version: int


@dataclass(frozen=True, slots=True)
class RankRow:
    """What is shown of one rank."""

    host: int
    rank: int
    generation: int
    first_shard: int
    end_shard: int
    node: str
    pid: int
    state: str


class JobStore:
    """The controller's repository, fenced by its term."""

    def __init__(self, engine: Engine, term: int) -> None:
        self._engine = engine
        self.term = term

    def versions(self) -> dict[str, tuple[int, int]]:
        """Return (version, desired version) of every job not at its end; cheap, asked several times a second."""
        wanted = sa.select(t.jobs.c.id, t.jobs.c.version, t.jobs.c.desired_version).where(
            t.jobs.c.phase.not_in([phase.value for phase in TERMINAL])
        ).order_by(t.jobs.c.created)  # fmt: skip
        with reading(self._engine) as connection:
            return {row.id: (row.version, row.desired_version) for row in connection.execute(wanted)}

    def load(self, job: str) -> Versioned:
        """Return all rows that a decision about the job reads."""
        with reading(self._engine) as connection:
            return _load(connection, job)

    def commit(self, before: Versioned, decision: Decision, now: datetime) -> Versioned:
        """Write a decision in one transaction; an unchanged one writes nothing. Fenced when the row moved on."""
        old = before.snapshot
        if (decision.job, decision.generation, decision.hosts) == (
            old.job,
            old.generation,
            old.hosts,
        ) and not decision.events:
            return before
        job = decision.job.id
        with writing(self._engine) as connection:
            check_term(connection, self.term)
            self._update_job(connection, before, decision, now)
            if decision.generation is not None and decision.generation != old.generation:
                self._put_generation(connection, job, decision, old)
            known = {host.number: host for host in old.hosts}
            for host in decision.hosts:
                self._put_host(connection, job, host, known.get(host.number))
            _add_events(connection, job, decision.job.generation, decision.events, now)
            return _load(connection, job)

    def _update_job(self, connection: Connection, before: Versioned, decision: Decision, now: datetime) -> None:
        table = t.jobs
        changed = connection.execute(
            sa.update(table)
            .where(table.c.id == decision.job.id, table.c.version == before.version)
            .where(table.c.desired_version == before.desired_version)
            .values(version=before.version + 1, changed=now, **row_of_job(decision.job))
        )
        if changed.rowcount != 1:
            raise Fenced(f"job {decision.job.id} changed while it was decided")

    def _put_generation(self, connection: Connection, job: str, decision: Decision, old: Snapshot) -> None:
        generation = decision.generation
        assert generation is not None
        row = row_of_generation(job, generation)
        if old.generation is not None and old.generation.number == generation.number:
            where = (t.generations.c.job == job, t.generations.c.number == generation.number)
            connection.execute(sa.update(t.generations).where(*where).values(**row))
        else:
            connection.execute(sa.insert(t.generations).values(**row))

    def _put_host(self, connection: Connection, job: str, host: Host, known: Host | None) -> None:
        if host == known:
            return
        row = row_of_host(job, host)
        if known is None:
            connection.execute(sa.insert(t.hosts).values(**row))
        else:
            where = (t.hosts.c.job == job, t.hosts.c.number == host.number)
            connection.execute(sa.update(t.hosts).where(*where).values(**row))

    def add_events(self, job: str, generation: int, events: Sequence[Event], now: datetime) -> None:
        """Add events that no decision made (a divergence, a skipped file); none opens no transaction."""
        if not events:
            return
        with writing(self._engine) as connection:
            check_term(connection, self.term)
            _add_events(connection, job, generation, events, now)

    def show_ranks(self, job: str, ranks: Sequence[RankRow]) -> None:
        """Replace what is shown of a job's ranks; how far their records were drained stays."""
        with writing(self._engine) as connection:
            check_term(connection, self.term)
            drained = _drained(connection, job)
            connection.execute(sa.delete(t.ranks).where(t.ranks.c.job == job))
            for rank in ranks:
                values = {name: getattr(rank, name) for name in RankRow.__slots__}
                connection.execute(sa.insert(t.ranks).values(job=job, drained=drained.get(rank.host, 0), **values))

    def drained(self, job: str) -> dict[int, int]:
        """Return the last record number taken from each host."""
        with reading(self._engine) as connection:
            return _drained(connection, job)

    def show_nodes(self, nodes: Sequence[Node], now: datetime) -> None:
        """Replace what is shown of the cluster's nodes."""
        with writing(self._engine) as connection:
            check_term(connection, self.term)
            connection.execute(sa.delete(t.nodes))
            for node in nodes:
                values = {"id": node.id, "name": node.name, "total": dict(node.total), "is_alive": node.is_alive}
                connection.execute(sa.insert(t.nodes).values(seen=now, **values))

    def host_rows(self, jobs: Collection[str]) -> dict[str, tuple[Host, ...]]:
        """Return every host, gone ones too, of each of the jobs that has any."""
        wanted = sa.select(t.hosts).where(t.hosts.c.job.in_(list(jobs)))
        found: dict[str, tuple[Host, ...]] = {}
        with reading(self._engine) as connection:
            for row in connection.execute(wanted).mappings():
                found[row["job"]] = (*found.get(row["job"], ()), host_from(row))
        return found


def _load(connection: Connection, job: str) -> Versioned:
    row = connection.execute(sa.select(t.jobs).where(t.jobs.c.id == job)).mappings().one()
    past = sa.select(t.generations).where(t.generations.c.job == job).order_by(t.generations.c.number)
    found = [generation_from(item) for item in connection.execute(past).mappings()]
    hosts = sa.select(t.hosts).where(t.hosts.c.job == job, t.hosts.c.state != HostState.GONE.value)
    alive = tuple(host_from(item) for item in connection.execute(hosts.order_by(t.hosts.c.number)).mappings())
    current = next((item for item in reversed(found) if item.number == row["generation"]), None)
    failures = tuple(
        Past(item.outcome, int(item.seconds.get("cause_step", -1)), item.cause)
        for item in found if item.outcome in FAILURES
    )  # fmt: skip
    return Versioned(Snapshot(job_from(row), current, alive, failures), row["version"], row["desired_version"])


def _drained(connection: Connection, job: str) -> dict[int, int]:
    wanted = sa.select(t.ranks.c.host, t.ranks.c.drained).where(t.ranks.c.job == job)
    return {row.host: row.drained for row in connection.execute(wanted)}


def _add_events(connection: Connection, job: str, generation: int, events: Iterable[Event], now: datetime) -> None:
    for item in events:
        values = {"job": job, "generation": generation, "at": now, "kind": item.kind, "text": item.text}
        connection.execute(sa.insert(t.events).values(**values))
