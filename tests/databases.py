"""One migrated pair of SQLite databases for a test."""

from pathlib import Path

from service.store.engine import migrate, open_engine


class Databases:
    """The truth and the bulk, without waiting for the disk."""

    def __init__(self, folder: Path) -> None:
        self.engine = open_engine(f"sqlite:///{folder / 'muster.db'}", "OFF")
        self.bulk_engine = open_engine(f"sqlite:///{folder / 'metrics.db'}", "OFF")
        migrate(self.engine, "truth")
        migrate(self.bulk_engine, "bulk")

    def close(self) -> None:
        """Drop the connections."""
        self.engine.dispose()
        self.bulk_engine.dispose()
