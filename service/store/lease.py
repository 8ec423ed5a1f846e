"""Who leads, and how do the rows know?

Leadership on one machine is a file lock; each tenure has a term that every write of the controller is checked against.
"""

import fcntl
import os
from datetime import datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import Connection, Engine

from service.errors import Deposed
from service.store.engine import writing
from service.store.tables import lease


class FileLease:
    """The lock file of one machine's controllers; held until the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def is_held(self) -> bool:
        """Try to hold the lock; say whether this process does."""
        if self._file is None:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                return False
            self._file = handle
        return True

    def release(self) -> None:
        """Let the next controller lead."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def new_term(engine: Engine, holder: str, now: datetime) -> int:
    """Begin a tenure: return a term above all earlier ones."""
    with writing(engine) as connection:
        term = int(connection.scalar(sa.select(lease.c.term)) or 0) + 1
        connection.execute(sa.delete(lease))
        connection.execute(sa.insert(lease).values(id=1, term=term, holder=holder, taken=now))
        return term


def check_term(connection: Connection, term: int) -> None:
    """Deposed unless `term` is the newest; called first within every transaction of the controller."""
    newest = connection.scalar(sa.select(lease.c.term))
    if newest != term:
        raise Deposed(f"term {term} is over, the newest is {newest}")
