"""What does a host keep until the control plane has acknowledged it?

Records by a number that only grows; asking after a number acknowledges everything up to it. It must not send.
"""

import threading
from collections import deque

from workers.protocol import Batch, Record

MOST = 5000
"""Records handed out in one batch."""


class Outbox:
    """The records of one host, safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[Record] = deque()
        self._first = 1

    def add(self, records: tuple[Record, ...]) -> None:
        """Keep records."""
        with self._lock:
            self._records.extend(records)

    def after(self, last: int) -> Batch:
        """Drop everything up to number `last`, and return what follows."""
        with self._lock:
            while self._records and self._first <= last:
                self._records.popleft()
                self._first += 1
            handed = tuple(self._records[index] for index in range(min(MOST, len(self._records))))
            return Batch(self._first + len(handed) - 1, handed)

    def __len__(self) -> int:
        with self._lock:
            return len(self._records)
