"""What may the API write? Specs and desires, nothing else.

One request is one transaction. It must not touch what the reconciler writes after submission.
"""

from datetime import datetime

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from service.control.job import Phase, in_ranks
from service.control.spec import JobSpec
from service.errors import Conflict, NotFound
from service.store import tables as t
from service.store.engine import reading, writing


class WishStore:
    """The API's writes."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def submit(self, job: str, spec: JobSpec, now: datetime) -> None:
        """Store a new job."""
        with writing(self._engine) as connection:
            connection.execute(
                sa.insert(t.jobs).values(
                    id=job, name=spec.name, spec=spec.model_dump(mode="json"), created=now, changed=now,
                    desired_run="run", phase=Phase.WAITING.value, reason="submitted",
                    metrics={}, probe={}, numeric_class={},
                )
            )  # fmt: skip
            text = f"{spec.name}: {in_ranks(spec.ranks.initial)}, {spec.shard_count} shards"
            _event(connection, job, now, "SUBMITTED", text)

    def cancel(self, job: str, now: datetime) -> None:
        """Ask for the job's end; asking again changes nothing. Conflict when it has ended otherwise."""
        with writing(self._engine) as connection:
            phase, wish = _standing(connection, job)
            if phase is Phase.CANCELLED or wish == "cancel":
                return
            if phase.is_terminal:
                raise Conflict(f"job {job} has already {phase.value.lower()}; there is nothing to cancel")
            _wish(connection, job, desired_run="cancel")
            _event(connection, job, now, "CANCEL", "its user asks for the end")

    def scale(self, job: str, ranks: int | None, now: datetime) -> None:
        """Pin the number of ranks, or let it be automatic again (None). Conflict when the job has ended."""
        with writing(self._engine) as connection:
            phase, wish = _standing(connection, job)
            if phase.is_terminal or wish == "cancel":
                raise Conflict(f"job {job} is ending or has ended ({phase.value}); it cannot be scaled")
            _wish(connection, job, desired_ranks=ranks)
            text = "the number of ranks is automatic again" if ranks is None else f"its operator pins {in_ranks(ranks)}"
            _event(connection, job, now, "SCALE", text)

    def add_bundle(self, digest: str, size: int, now: datetime) -> None:
        """Note an uploaded bundle; noting it again changes nothing."""
        with writing(self._engine) as connection:
            if connection.scalar(sa.select(t.bundles.c.digest).where(t.bundles.c.digest == digest)) is None:
                connection.execute(sa.insert(t.bundles).values(digest=digest, size=size, created=now))

    def has_bundle(self, digest: str) -> bool:
        """Say whether the bundle was uploaded."""
        with reading(self._engine) as connection:
            return connection.scalar(sa.select(t.bundles.c.digest).where(t.bundles.c.digest == digest)) is not None


def _standing(connection: Connection, job: str) -> tuple[Phase, str]:
    row = connection.execute(sa.select(t.jobs.c.phase, t.jobs.c.desired_run).where(t.jobs.c.id == job)).one_or_none()
    if row is None:
        raise NotFound(f"there is no job {job!r}")
    return Phase(row.phase), row.desired_run


def _wish(connection: Connection, job: str, **values: object) -> None:
    connection.execute(
        sa.update(t.jobs).where(t.jobs.c.id == job).values(desired_version=t.jobs.c.desired_version + 1, **values)
    )


def _event(connection: Connection, job: str, now: datetime, kind: str, text: str) -> None:
    generation = sa.select(t.jobs.c.generation).where(t.jobs.c.id == job).scalar_subquery()
    connection.execute(sa.insert(t.events).values(job=job, generation=generation, at=now, kind=kind, text=text))
