"""How does a test wait? It looks until something is true, and says what it saw last."""

import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


def eventually(check: Callable[[], Seen], limit: float = 5.0) -> Seen:
    """Return the first truthy answer of `check`; AssertionError with the last one after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not (seen := check()):
        if time.monotonic() > deadline:
            raise AssertionError(f"after {limit:g} s still {seen!r}")
        time.sleep(0.01)
    return seen
