"""What was last seen of each host, and which jobs have news?

A table that listeners write and the loop reads. It must not call anything.
"""

import threading
from datetime import timedelta

from service.cluster.names import HostName
from service.control.observation import Dead, HostSeen


class Sights:
    """The last sight of every host; safe for many threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._seen: dict[HostName, HostSeen] = {}
        self._news: set[str] = set()

    def see(self, name: HostName, sight: HostSeen, is_news: bool = True) -> None:
        """Keep a sight. What was seen dead and swept stays so: its number never lives again."""
        with self._changed:
            known = self._seen.get(name)
            if isinstance(known, Dead) and not isinstance(sight, Dead):
                return
            if isinstance(known, Dead) and known.is_swept:
                return
            self._seen[name] = sight
            if is_news:
                self._news.add(name.job)
                self._changed.notify_all()

    def get(self, name: HostName) -> HostSeen | None:
        """Return the last sight of a host, if any."""
        with self._changed:
            return self._seen.get(name)

    def of(self, job: str) -> dict[int, HostSeen]:
        """Return the sights of a job's hosts by number."""
        with self._changed:
            return {name.number: sight for name, sight in self._seen.items() if name.job == job}

    def forget(self, job: str) -> None:
        """Drop the dead hosts of a job."""
        with self._changed:
            gone = [name for name, sight in self._seen.items() if name.job == job and isinstance(sight, Dead)]
            for name in gone:
                del self._seen[name]

    def wait(self, limit: timedelta) -> frozenset[str]:
        """Wait for news, at most `limit`; return and clear them."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._news), timeout=limit.total_seconds())
            news, self._news = frozenset(self._news), set()
            return news
