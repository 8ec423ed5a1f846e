"""The first tables"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bundles",
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("name", sa.String(length=63), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("desired_run", sa.String(length=10), nullable=False),
        sa.Column("desired_ranks", sa.Integer(), nullable=True),
        sa.Column("desired_version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("phase", sa.String(length=12), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ending", sa.String(length=12), nullable=True),
        sa.Column("generation", sa.Integer(), server_default="0", nullable=False),
        sa.Column("next_host", sa.Integer(), server_default="1", nullable=False),
        sa.Column("step", sa.Integer(), server_default="0", nullable=False),
        sa.Column("steps_total", sa.Integer(), server_default="0", nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("samples", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("replaying_from", sa.Integer(), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("probe", sa.JSON(), nullable=False),
        sa.Column("numeric_class", sa.JSON(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("failure", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("version", sa.Integer(), server_default="1", nullable=False),
        sa.Column("changed", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("(phase = 'DRAINING') = (ending IS NOT NULL)", name=op.f("ck_jobs_ending_while_draining")),
        sa.CheckConstraint("desired_run IN ('run', 'cancel')", name=op.f("ck_jobs_desired_run_known")),
        sa.CheckConstraint("phase <> 'SUCCEEDED' OR result IS NOT NULL", name=op.f("ck_jobs_success_has_a_result")),
        sa.CheckConstraint(
            "phase IN ('WAITING', 'LAUNCHING', 'RUNNING', 'REGROUPING', 'DRAINING', 'SUCCEEDED', 'FAILED', 'CANCELLED')",
            name=op.f("ck_jobs_phase_known"),
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.create_index("ix_jobs_created", ["created"], unique=False)

    op.create_table(
        "lease",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("term", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(length=120), nullable=False),
        sa.Column("taken", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("id = 1", name=op.f("ck_lease_one_row")),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "nodes",
        sa.Column("id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=120), nullable=False),
        sa.Column("total", sa.JSON(), nullable=False),
        sa.Column("is_alive", sa.Boolean(), nullable=False),
        sa.Column("seen", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("is_deleted", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job", "number"),
    )
    op.create_table(
        "epochs",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("epoch", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("ledger", sa.String(length=64), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job", "epoch"),
    )
    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("kind", sa.String(length=32), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("events", schema=None) as batch_op:
        batch_op.create_index("ix_events_job", ["job", "id"], unique=False)

    op.create_table(
        "generations",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.Column("hosts", sa.JSON(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("planned_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("secret", sa.String(length=64), nullable=False),
        sa.Column("seal", sa.Integer(), nullable=True),
        sa.Column("addresses", sa.JSON(), nullable=False),
        sa.Column("live_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("from_step", sa.Integer(), nullable=True),
        sa.Column("ended_step", sa.Integer(), nullable=True),
        sa.Column("is_stopping", sa.Boolean(), server_default=sa.text("0"), nullable=False),
        sa.Column("stopping_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("symptom_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=16), server_default="", nullable=False),
        sa.Column("cause", sa.Text(), server_default="", nullable=False),
        sa.Column("seconds", sa.JSON(), nullable=False),
        sa.CheckConstraint("(state = 'ENDED') = (ended_at IS NOT NULL)", name=op.f("ck_generations_ended_has_a_time")),
        sa.CheckConstraint("state IN ('PLANNED', 'LIVE', 'ENDED')", name=op.f("ck_generations_state_known")),
        sa.ForeignKeyConstraint(
            ["job"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job", "number"),
    )
    with op.batch_alter_table("generations", schema=None) as batch_op:
        batch_op.create_index(
            "ix_generations_one_open",
            ["job"],
            unique=True,
            sqlite_where=sa.text("state != 'ENDED'"),
            postgresql_where=sa.text("state != 'ENDED'"),
        )

    op.create_table(
        "hosts",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("state", sa.String(length=8), nullable=False),
        sa.CheckConstraint("state IN ('WANTED', 'DOOMED', 'GONE')", name=op.f("ck_hosts_state_known")),
        sa.ForeignKeyConstraint(
            ["job"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job", "number"),
    )
    op.create_table(
        "ranks",
        sa.Column("job", sa.String(length=40), nullable=False),
        sa.Column("host", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("first_shard", sa.Integer(), nullable=False),
        sa.Column("end_shard", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(length=64), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("drained", sa.BigInteger(), server_default="0", nullable=False),
        sa.ForeignKeyConstraint(
            ["job"],
            ["jobs.id"],
        ),
        sa.PrimaryKeyConstraint("job", "host"),
    )
