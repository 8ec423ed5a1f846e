"""What does the API show? Reads only, each in one consistent view."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from service.control.job import GenerationState
from service.errors import NotFound
from service.store import tables as t
from service.store.engine import reading

Rows = list[dict[str, Any]]
SHOWN = (
    "id", "name", "created", "changed", "phase", "reason", "step", "steps_total", "epoch", "samples", "generation",
    "replaying_from", "desired_run", "desired_ranks", "metrics", "result", "failure", "spec", "version",
    "desired_version",
)  # fmt: skip


class Queries:
    """The API's reads."""

    def __init__(self, engine: Engine, bulk: Engine) -> None:
        self._engine, self._bulk = engine, bulk

    def job(self, job: str) -> dict[str, Any]:
        """Return one job with its number of ranks. NotFound when there is none."""
        with reading(self._engine) as connection:
            row = connection.execute(sa.select(*_columns()).where(t.jobs.c.id == job)).mappings().one_or_none()
            if row is None:
                raise NotFound(f"there is no job {job!r}")
            return _shown(dict(row), _members(connection, [job]))

    def etag(self, job: str) -> str:
        """Return what changes whenever the job does. NotFound when there is none."""
        wanted = sa.select(t.jobs.c.version, t.jobs.c.desired_version).where(t.jobs.c.id == job)
        with reading(self._engine) as connection:
            row = connection.execute(wanted).one_or_none()
        if row is None:
            raise NotFound(f"there is no job {job!r}")
        return f"{row.version}.{row.desired_version}"

    def jobs(self, limit: int) -> Rows:
        """Return the newest jobs."""
        wanted = sa.select(*_columns()).order_by(t.jobs.c.created.desc()).limit(limit)
        with reading(self._engine) as connection:
            rows = [dict(row) for row in connection.execute(wanted).mappings()]
            members = _members(connection, [row["id"] for row in rows])
        return [_shown(row, members) for row in rows]

    def generations(self, job: str) -> Rows:
        """Return the job's generations, without their secrets."""
        columns = [column for column in t.generations.c if column.name not in ("secret", "job")]
        return self._of(job, sa.select(*columns).where(t.generations.c.job == job).order_by(t.generations.c.number))

    def ranks(self, job: str) -> Rows:
        """Return the job's live ranks in rank order."""
        columns = [column for column in t.ranks.c if column.name not in ("drained", "job")]
        return self._of(job, sa.select(*columns).where(t.ranks.c.job == job).order_by(t.ranks.c.rank))

    def events(self, job: str, after: int, limit: int) -> Rows:
        """Return events after the given id, oldest first."""
        wanted = sa.select(t.events).where(t.events.c.job == job, t.events.c.id > after)
        return self._of(job, wanted.order_by(t.events.c.id).limit(limit))

    def checkpoints(self, job: str) -> Rows:
        """Return the job's checkpoints, oldest first."""
        columns = [column for column in t.checkpoints.c if column.name != "job"]
        return self._of(job, sa.select(*columns).where(t.checkpoints.c.job == job).order_by(t.checkpoints.c.number))

    def epochs(self, job: str) -> Rows:
        """Return the ledger of each finished epoch."""
        columns = [column for column in t.epochs.c if column.name != "job"]
        return self._of(job, sa.select(*columns).where(t.epochs.c.job == job).order_by(t.epochs.c.epoch))

    def metrics(self, job: str, name: str | None, after: int, limit: int) -> Rows:
        """Return metric points above step `after`, in order of step and name."""
        self.etag(job)
        table = t.points
        wanted = sa.select(table.c.name, table.c.step, table.c.value, table.c.generation)
        wanted = wanted.where(table.c.job == job, table.c.step > after)
        if name is not None:
            wanted = wanted.where(table.c.name == name)
        with reading(self._bulk) as connection:
            ordered = wanted.order_by(table.c.step, table.c.name).limit(limit)
            return [dict(row) for row in connection.execute(ordered).mappings()]

    def nodes(self) -> Rows:
        """Return the cluster's nodes as last seen, with the ranks on each."""
        counted = sa.select(t.ranks.c.node, sa.func.count().label("ranks")).group_by(t.ranks.c.node).subquery()
        wanted = sa.select(t.nodes, sa.func.coalesce(counted.c.ranks, 0).label("ranks"))
        return self._rows(wanted.select_from(t.nodes.outerjoin(counted, counted.c.node == t.nodes.c.id)))

    def term(self) -> dict[str, Any]:
        """Return the newest term and its holder; term 0 when no controller ever led."""
        rows = self._rows(sa.select(t.lease.c.term, t.lease.c.holder, t.lease.c.taken))
        return rows[0] if rows else {"term": 0, "holder": "", "taken": None}

    def _of(self, job: str, wanted: sa.Select[Any]) -> Rows:
        self.etag(job)
        return self._rows(wanted)

    def _rows(self, wanted: sa.Select[Any]) -> Rows:
        with reading(self._engine) as connection:
            return [dict(row) for row in connection.execute(wanted).mappings()]


def _members(connection: Connection, jobs: Sequence[str]) -> dict[str, int]:
    """Return how many ranks the open generation of each job has."""
    wanted = sa.select(t.generations.c.job, t.generations.c.hosts)
    wanted = wanted.where(t.generations.c.job.in_(jobs), t.generations.c.state != GenerationState.ENDED.value)
    return {row.job: len(row.hosts) for row in connection.execute(wanted)}


def _shown(row: dict[str, Any], members: dict[str, int]) -> dict[str, Any]:
    version, desired = row.pop("version"), row.pop("desired_version")
    return row | {"ranks": members.get(row["id"], 0), "etag": f"{version}.{desired}"}


def _columns() -> list[sa.Column[Any]]:
    return [t.jobs.c[name] for name in SHOWN]
