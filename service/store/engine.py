"""How are the databases opened, and when does a transaction begin?

SQLite: write-ahead log, BEGIN IMMEDIATE for writers, FULL for the truth and NORMAL for bulk. It must not know tables.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, Engine, event

from service.errors import Unsupported

Durability = Literal["FULL", "NORMAL", "OFF"]
Schema = Literal["truth", "bulk"]
"""The folder of migrations: what must never be lost, and metric points."""
NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "lustre", "ceph", "glusterfs"})


def open_engine(url: str, durability: Durability = "FULL") -> Engine:
    """Open a database by SQLAlchemy's address. Unsupported for an SQLite file on a network file system."""
    engine = sa.create_engine(url, future=True)
    if engine.dialect.name == "sqlite":
        _refuse_network(url)
        _prepare_sqlite(engine, durability)
    return engine


def _prepare_sqlite(engine: Engine, durability: Durability) -> None:
    @event.listens_for(engine, "connect")
    def _connect(raw: Any, _record: Any) -> None:
        # SQLAlchemy begins transactions itself, below; the driver must not.
        raw.isolation_level = None
        cursor = raw.cursor()
        for pragma in ("busy_timeout=10000", "journal_mode=WAL", f"synchronous={durability}", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        is_writer = connection.get_execution_options().get("muster_writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """One writing transaction: the lock is taken at its start, so that it never fails half-way for another writer."""
    with engine.connect().execution_options(muster_writes=True) as connection, connection.begin():
        yield connection


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """One reading transaction: one consistent view."""
    with engine.connect() as connection, connection.begin():
        yield connection


def migrate(engine: Engine, schema: Schema) -> None:
    """Bring a database to the newest form of its schema."""
    config, scripts = Config(), Path(__file__).parent / "migrations"
    options = {"script_location": scripts, "version_locations": scripts / schema, "path_separator": "newline"}
    for name, value in options.items():
        config.set_main_option(name, str(value).replace("%", "%%"))
    with engine.connect().execution_options(muster_writes=True) as connection:
        config.attributes.update(connection=connection, schema=schema)
        command.upgrade(config, "head")
        connection.commit()


def _refuse_network(url: str) -> None:
    path = Path(sa.make_url(url).database or ".").resolve()
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    holding = [(Path(point), kind) for point, kind in mounts if path.is_relative_to(point)]
    kind = max(holding, key=lambda item: len(item[0].parts), default=(Path("/"), ""))[1]
    if kind in NETWORK_FILE_SYSTEMS:
        raise Unsupported(f"{path} is on {kind}; SQLite needs a local disk (or use PostgreSQL)")
