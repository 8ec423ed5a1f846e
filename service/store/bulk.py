"""How do metric points, epoch ledgers and checkpoints that ranks report come into the store, each once?

Points go to the bulk database before their acknowledgement is committed, so that a crash between the two only repeats
them; a repeat with another value is a divergence. It must not decide what that means.
"""

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from service.control.job import Event
from service.store import tables as t
from service.store.engine import reading, writing
from service.store.lease import check_term
from workers.protocol import Record


class BulkStore:
    """Takes over the records of hosts."""

    def __init__(self, engine: Engine, bulk: Engine, term: int) -> None:
        self._engine, self._bulk, self._term = engine, bulk, term

    def take(self, job: str, host: int, last: int, records: Sequence[Record], now: datetime) -> list[Event]:
        """Store the records of a host up to number `last`, which acknowledges them; return divergences as events."""
        events = self._put_points(job, records)
        with writing(self._engine) as connection:
            events += self._put_rows(connection, job, records, now)
            where = (t.ranks.c.job == job, t.ranks.c.host == host)
            connection.execute(sa.update(t.ranks).where(*where).values(drained=last))
        return events

    def keep(self, job: str, records: Sequence[Record], now: datetime) -> list[Event]:
        """Store records that came with a checkpoint, whoever drained them before; return divergences as events."""
        events = self._put_points(job, records)
        with writing(self._engine) as connection:
            return events + self._put_rows(connection, job, records, now)

    def _put_rows(self, connection: Connection, job: str, records: Sequence[Record], now: datetime) -> list[Event]:
        check_term(connection, self._term)
        events: list[Event] = []
        for record in records:
            match record.kind:
                case "epoch":
                    events += _put_epoch(connection, job, record)
                case "checkpoint":
                    _put_checkpoint(connection, job, record, now)
                case _:
                    pass
        return events

    def _put_points(self, job: str, records: Sequence[Record]) -> list[Event]:
        metrics = [record for record in records if record.kind == "metric"]
        # All ranks report the same point of a step; the first is stored, the others are compared.
        events: list[Event] = []
        with writing(self._bulk) as connection:
            known = _known(connection, job, metrics)
            fresh: list[dict[str, Any]] = []
            for record in metrics:
                key, value = (record.name, record.step), _stored(record.value)
                if key not in known:
                    known[key] = value
                    names = {"job": job, "name": record.name, "step": record.step}
                    fresh.append(names | {"value": value, "generation": record.generation})
                elif known[key] != value:
                    text = f"{record.name} at step {record.step} is {record.value!r} in generation {record.generation}"
                    events.append(Event("DIVERGENCE", f"{text}, but {known[key]!r} was stored"))
            if fresh:
                connection.execute(sa.insert(t.points), fresh)
        return events

    def checkpoints(self, job: str) -> list[tuple[int, int]]:
        """Return (number, step) of the checkpoints not deleted, oldest first."""
        table = t.checkpoints
        wanted = sa.select(table.c.number, table.c.step).where(table.c.job == job, table.c.is_deleted.is_(False))
        with reading(self._engine) as connection:
            return [(row.number, row.step) for row in connection.execute(wanted.order_by(table.c.number))]

    def forget_checkpoint(self, job: str, number: int) -> None:
        """Mark a checkpoint deleted: the row first, its files second."""
        with writing(self._engine) as connection:
            check_term(connection, self._term)
            where = (t.checkpoints.c.job == job, t.checkpoints.c.number == number)
            connection.execute(sa.update(t.checkpoints).where(*where).values(is_deleted=True))


def _stored(value: float) -> float | None:
    return None if math.isnan(value) else value


def _known(connection: Connection, job: str, metrics: Sequence[Record]) -> dict[tuple[str, int], float | None]:
    if not metrics:
        return {}
    low, high = min(item.step for item in metrics), max(item.step for item in metrics)
    table = t.points
    wanted = sa.select(table.c.name, table.c.step, table.c.value).where(
        table.c.job == job, table.c.name.in_({item.name for item in metrics}), table.c.step.between(low, high)
    )
    return {(row.name, row.step): row.value for row in connection.execute(wanted)}


def _put_epoch(connection: Connection, job: str, record: Record) -> list[Event]:
    epoch, table = int(record.value), t.epochs
    known = connection.scalar(sa.select(table.c.ledger).where(table.c.job == job, table.c.epoch == epoch))
    if known is None:
        values = {"job": job, "epoch": epoch, "step": record.step, "ledger": record.name}
        connection.execute(sa.insert(table).values(**values))
    elif known != record.name:
        return [Event("DIVERGENCE", f"epoch {epoch} was fed other samples in generation {record.generation}")]
    return []


def _put_checkpoint(connection: Connection, job: str, record: Record, now: datetime) -> None:
    number, table = int(record.value), t.checkpoints
    if connection.scalar(sa.select(table.c.number).where(table.c.job == job, table.c.number == number)) is None:
        values = {"job": job, "number": number, "step": record.step, "generation": record.generation, "at": now}
        connection.execute(sa.insert(table).values(**values))
