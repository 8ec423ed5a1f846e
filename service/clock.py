"""What time is it? The one place that asks, so that everything else can be told."""

from datetime import UTC, datetime


def utc_now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)
