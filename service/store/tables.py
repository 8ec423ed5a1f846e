"""Which tables hold the truth, and what do they forbid?

Constraints stand here wherever a database can say them. It must not query.
"""

from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import CheckConstraint, Column, ForeignKeyConstraint, Index, MetaData, Table

from service.control.job import GenerationState, HostState, Phase


class Utc(sa.types.TypeDecorator[datetime]):
    """Datetimes are UTC everywhere; a naive one is a bug."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Refuse naive values; store UTC."""
        if value is not None and value.tzinfo is None:
            raise ValueError("a naive datetime has no place in the store")
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        """Give SQLite's naive values their zone back."""
        return None if value is None else value.replace(tzinfo=UTC) if value.tzinfo is None else value


def _one_of(column: str, values: type[Phase] | type[GenerationState] | type[HostState]) -> CheckConstraint:
    listed = ", ".join(f"'{value.value}'" for value in values)
    return CheckConstraint(f"{column} IN ({listed})", name=f"{column}_known")


metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_name)s", "ck": "ck_%(table_name)s_%(constraint_name)s"}
)

jobs = Table(
    "jobs", metadata,
    Column("id", sa.String(40), primary_key=True),
    Column("name", sa.String(63), nullable=False),
    Column("spec", sa.JSON, nullable=False),
    Column("created", Utc, nullable=False),
    Column("desired_run", sa.String(10), nullable=False),
    Column("desired_ranks", sa.Integer),
    Column("desired_version", sa.Integer, nullable=False, server_default="1"),
    Column("phase", sa.String(12), nullable=False),
    Column("reason", sa.Text, nullable=False),
    Column("ending", sa.String(12)),
    Column("generation", sa.Integer, nullable=False, server_default="0"),
    Column("next_host", sa.Integer, nullable=False, server_default="1"),
    Column("step", sa.Integer, nullable=False, server_default="0"),
    Column("steps_total", sa.Integer, nullable=False, server_default="0"),
    Column("epoch", sa.Integer, nullable=False, server_default="0"),
    Column("samples", sa.BigInteger, nullable=False, server_default="0"),
    Column("replaying_from", sa.Integer),
    Column("not_before", Utc),
    Column("metrics", sa.JSON, nullable=False),
    Column("probe", sa.JSON, nullable=False),
    Column("numeric_class", sa.JSON, nullable=False),
    Column("result", sa.JSON(none_as_null=True)),
    Column("failure", sa.JSON(none_as_null=True)),
    Column("version", sa.Integer, nullable=False, server_default="1"),
    Column("changed", Utc, nullable=False),
    _one_of("phase", Phase),
    CheckConstraint("desired_run IN ('run', 'cancel')", name="desired_run_known"),
    CheckConstraint("(phase = 'DRAINING') = (ending IS NOT NULL)", name="ending_while_draining"),
    CheckConstraint("phase <> 'SUCCEEDED' OR result IS NOT NULL", name="success_has_a_result"),
)  # fmt: skip
Index("ix_jobs_created", jobs.c.created)

generations = Table(
    "generations", metadata,
    Column("job", sa.String(40), primary_key=True),
    Column("number", sa.Integer, primary_key=True, autoincrement=False),
    Column("state", sa.String(8), nullable=False),
    Column("hosts", sa.JSON, nullable=False),
    Column("why", sa.Text, nullable=False),
    Column("planned_at", Utc, nullable=False),
    Column("secret", sa.String(64), nullable=False),
    Column("seal", sa.Integer),
    Column("addresses", sa.JSON, nullable=False),
    Column("live_at", Utc),
    Column("ended_at", Utc),
    Column("from_step", sa.Integer),
    Column("ended_step", sa.Integer),
    Column("is_stopping", sa.Boolean, nullable=False, server_default=sa.false()),
    Column("stopping_since", Utc),
    Column("symptom_at", Utc),
    Column("outcome", sa.String(16), nullable=False, server_default=""),
    Column("cause", sa.Text, nullable=False, server_default=""),
    Column("seconds", sa.JSON, nullable=False),
    ForeignKeyConstraint(["job"], ["jobs.id"]),
    _one_of("state", GenerationState),
    CheckConstraint("(state = 'ENDED') = (ended_at IS NOT NULL)", name="ended_has_a_time"),
)  # fmt: skip
Index(
    "ix_generations_one_open", generations.c.job, unique=True,
    sqlite_where=generations.c.state != "ENDED", postgresql_where=generations.c.state != "ENDED",
)  # fmt: skip

hosts = Table(
    "hosts", metadata,
    Column("job", sa.String(40), primary_key=True),
    Column("number", sa.Integer, primary_key=True, autoincrement=False),
    Column("generation", sa.Integer, nullable=False),
    Column("node", sa.String(64), nullable=False),
    Column("state", sa.String(8), nullable=False),
    ForeignKeyConstraint(["job"], ["jobs.id"]),
    _one_of("state", HostState),
)  # fmt: skip

events = Table(
    "events", metadata,
    Column("id", sa.Integer, primary_key=True, autoincrement=True),
    Column("job", sa.String(40), nullable=False),
    Column("generation", sa.Integer, nullable=False),
    Column("at", Utc, nullable=False),
    Column("kind", sa.String(32), nullable=False),
    Column("text", sa.Text, nullable=False),
    ForeignKeyConstraint(["job"], ["jobs.id"]),
)  # fmt: skip
Index("ix_events_job", events.c.job, events.c.id)

checkpoints = Table(
    "checkpoints", metadata,
    Column("job", sa.String(40), primary_key=True),
    Column("number", sa.Integer, primary_key=True, autoincrement=False),
    Column("step", sa.Integer, nullable=False),
    Column("generation", sa.Integer, nullable=False),
    Column("at", Utc, nullable=False),
    Column("is_deleted", sa.Boolean, nullable=False, server_default=sa.false()),
    ForeignKeyConstraint(["job"], ["jobs.id"]),
)  # fmt: skip

epochs = Table(
    "epochs", metadata,
    Column("job", sa.String(40), primary_key=True),
    Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
    Column("step", sa.Integer, nullable=False),
    Column("ledger", sa.String(64), nullable=False),
    ForeignKeyConstraint(["job"], ["jobs.id"]),
)  # fmt: skip

bundles = Table(
    "bundles", metadata,
    Column("digest", sa.String(64), primary_key=True),
    Column("size", sa.Integer, nullable=False),
    Column("created", Utc, nullable=False),
)  # fmt: skip

lease = Table(
    "lease", metadata,
    Column("id", sa.Integer, primary_key=True, autoincrement=False),
    Column("term", sa.Integer, nullable=False),
    Column("holder", sa.String(120), nullable=False),
    Column("taken", Utc, nullable=False),
    CheckConstraint("id = 1", name="one_row"),
)  # fmt: skip

nodes = Table(
    "nodes", metadata,
    Column("id", sa.String(64), primary_key=True),
    Column("name", sa.String(120), nullable=False),
    Column("total", sa.JSON, nullable=False),
    Column("is_alive", sa.Boolean, nullable=False),
    Column("seen", Utc, nullable=False),
)  # fmt: skip

ranks = Table(
    "ranks", metadata,
    Column("job", sa.String(40), primary_key=True),
    Column("host", sa.Integer, primary_key=True, autoincrement=False),
    Column("rank", sa.Integer, nullable=False),
    Column("generation", sa.Integer, nullable=False),
    Column("first_shard", sa.Integer, nullable=False),
    Column("end_shard", sa.Integer, nullable=False),
    Column("node", sa.String(64), nullable=False),
    Column("pid", sa.Integer, nullable=False),
    Column("state", sa.String(16), nullable=False),
    Column("drained", sa.BigInteger, nullable=False, server_default="0"),
    ForeignKeyConstraint(["job"], ["jobs.id"]),
)  # fmt: skip

bulk_metadata = MetaData()

points = Table(
    "points", bulk_metadata,
    Column("job", sa.String(40), primary_key=True),
    Column("name", sa.String(120), primary_key=True),
    Column("step", sa.Integer, primary_key=True, autoincrement=False),
    Column("value", sa.Double),  # NULL is NaN, which SQLite cannot hold
    Column("generation", sa.Integer, nullable=False),
)  # fmt: skip
