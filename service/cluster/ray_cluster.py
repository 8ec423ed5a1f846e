"""How are hosts kept as detached, named Ray actors?

One listener thread a host keeps its last report; endings run in the background. It must not decide, and knows no SQL.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import ray
import structlog
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    RayError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from service.cluster.names import NAMESPACE, HostName, parse
from service.cluster.port import Order
from service.cluster.sights import Sights
from service.control.observation import Capacity, Dead, HostSeen, Node, Reporting, Starting
from service.errors import ClusterAway
from workers.process import folder_of, mark_of
from workers.protocol import Batch, Command, HostReport, Refused, decode, encode
from workers.rank_host import RankHost, clear

LISTEN = 0.5
"""Seconds a report call waits for news; as often the numbers of a training that only goes on come in."""
PATIENCE = timedelta(seconds=10)
WATCH = 1.0
STALE = timedelta(seconds=10)

log = structlog.get_logger()


@ray.remote(num_cpus=0, max_retries=0)  # type: ignore[untyped-decorator]
def _clear(mark: str, folder: str) -> bool:
    return clear(mark, Path(folder))


class RayCluster:
    """The Cluster on Ray; this process must be the only driver of its kind (the lease sees to it)."""

    def __init__(self, address: str, scratch: Path) -> None:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="ERROR")
        self._scratch = scratch
        self._sights = Sights()
        self._handles: dict[HostName, Any] = {}
        self._ending: set[HostName] = set()
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._pool = ThreadPoolExecutor(max_workers=16, thread_name_prefix="cluster")
        self._nodes: tuple[Node, ...] = ()
        self._addresses: dict[str, str] = {}
        self._heard = 0.0
        self._threads: list[threading.Thread] = []
        self._watch_once()
        self._start(self._watch, "watch")

    def capacity(self) -> Capacity:
        """See Cluster.capacity."""
        if time.monotonic() - self._heard > STALE.total_seconds():
            raise ClusterAway(f"Ray has not answered for {STALE.total_seconds():g} s")
        return Capacity(self._nodes)

    def observe(self, job: str) -> Mapping[int, HostSeen]:
        """See Cluster.observe."""
        return self._sights.of(job)

    def names(self) -> tuple[HostName, ...]:
        """See Cluster.names."""
        self.capacity()
        return _listed()

    def launch(self, order: Order) -> None:
        """See Cluster.launch."""
        name = order.name
        if self._sights.get(name) is not None:
            return
        work = msgspec.structs.replace(order.work, listen=self._addresses.get(order.node, "127.0.0.1"))
        wanted = order.resources.wanted()
        handle = (
            ray.remote(RankHost)
            .options(
                name=str(name), namespace=NAMESPACE, lifetime="detached", get_if_exists=True,
                max_restarts=0, max_task_retries=0, max_concurrency=16, enable_task_events=False,
                num_cpus=wanted.pop("CPU", 0), num_gpus=wanted.pop("GPU", 0), memory=wanted.pop("memory", None),
                resources=wanted, scheduling_strategy=NodeAffinitySchedulingStrategy(order.node, soft=False),
            )
            .remote(encode(work), order.node, str(self._scratch), order.earlier)
        )  # fmt: skip
        self._adopt(name, handle)

    def end(self, name: HostName, node: str) -> None:
        """See Cluster.end."""
        with self._lock:
            if name in self._ending:
                return
            self._ending.add(name)
        self._pool.submit(self._end, name, node)

    def tell(self, name: HostName, command: Command) -> None:
        """See Cluster.tell."""
        self._pool.submit(self._tell, name, command)

    def drain(self, name: HostName, after: int) -> Batch | None:
        """See Cluster.drain."""
        handle = self._handles.get(name)
        if handle is None:
            return None
        try:
            return decode(Batch, ray.get(handle.drain.remote(after), timeout=PATIENCE.total_seconds()))
        except RayError as error:
            log.warning("drain failed", host=str(name), error=repr(error))
            return None

    def wait(self, limit: timedelta) -> frozenset[str]:
        """See Cluster.wait."""
        return self._sights.wait(limit)

    def forget(self, job: str) -> None:
        """See Cluster.forget."""
        self._sights.forget(job)

    def close(self) -> None:
        """See Cluster.close."""
        self._is_closed.set()
        # A call that is under way when Ray shuts down ends the process with a segmentation fault.
        for thread in self._threads:
            thread.join()
        self._pool.shutdown(wait=True, cancel_futures=True)
        ray.shutdown()

    def _start(self, target: Callable[..., None], name: str, *args: Any) -> None:
        thread = threading.Thread(target=target, args=args, name=name, daemon=True)
        with self._lock:
            self._threads = [item for item in self._threads if item.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _watch(self) -> None:
        while not self._is_closed.wait(WATCH):
            with contextlib.suppress(RayError, ValueError):
                self._watch_once()

    def _watch_once(self) -> None:
        """Look at nodes and names; these calls may block for long while the head is away, so they have a thread."""
        found = ray.nodes()
        self._nodes = tuple(
            Node(item["NodeID"], item["NodeName"], _own(item["Resources"]), item["Alive"]) for item in found
        )
        self._addresses = {item["NodeID"]: item["NodeManagerAddress"] for item in found}
        for name in _listed():
            if name not in self._handles:
                with contextlib.suppress(ValueError):
                    self._adopt(name, ray.get_actor(str(name), namespace=NAMESPACE))
        self._heard = time.monotonic()

    def _adopt(self, name: HostName, handle: Any) -> None:
        with self._lock:
            if name in self._handles:
                return
            self._handles[name] = handle
        self._sights.see(name, Starting())
        self._start(self._listen, str(name), name, handle)

    def _listen(self, name: HostName, handle: Any) -> None:
        after = 0
        while not self._is_closed.is_set():
            try:
                data = ray.get(handle.report.remote(after, LISTEN), timeout=PATIENCE.total_seconds())
            except (ActorUnavailableError, GetTimeoutError):
                # Not a death: the call may run on. The last report stays, marked as not confirmed.
                self._mark_unreachable(name)
                self._is_closed.wait(LISTEN)
            except (ActorDiedError, ActorUnschedulableError) as error:
                self._sights.see(name, self._dead(name, str(error)))
                break
            except RayError as error:
                log.warning("report failed", host=str(name), error=repr(error))
                self._is_closed.wait(LISTEN)
            else:
                report = decode(HostReport, data)
                self._sights.see(name, Reporting(report), is_news=report.seq > after)
                after = report.seq
        with self._lock:
            self._handles.pop(name, None)

    def _mark_unreachable(self, name: HostName) -> None:
        sight = self._sights.get(name)
        if isinstance(sight, Reporting) and sight.is_reachable:
            self._sights.see(name, Reporting(sight.report, is_reachable=False))

    def _dead(self, name: HostName, why: str) -> Dead:
        sight = self._sights.get(name)
        node = sight.report.node if isinstance(sight, Reporting) else None
        return Dead(why.strip().splitlines()[0][:300], node is not None and not _is_alive(node), False)

    def _end(self, name: HostName, node: str) -> None:
        try:
            self._sights.see(name, self._ended(name, node))
        except RayError as error:
            log.warning("end failed", host=str(name), error=repr(error))
        finally:
            with self._lock:
                self._ending.discard(name)

    def _ended(self, name: HostName, node: str) -> Dead:
        """End a host in its own way if it answers, then as an actor, then sweep from outside what may be left."""
        is_swept = False
        handle = self._handles.get(name) or _found(name)
        if handle is not None:
            if isinstance(self._sights.get(name), Reporting):
                with contextlib.suppress(RayError):
                    is_swept = bool(ray.get(handle.end.remote(), timeout=PATIENCE.total_seconds() * 2))
            ray.kill(handle, no_restart=True)
        if not is_swept:
            if not _is_alive(node):
                return Dead("its node is gone", True, False)
            place = NodeAffinitySchedulingStrategy(node, soft=False)
            folder = str(folder_of(self._scratch, name.job, name.number))
            ref = _clear.options(scheduling_strategy=place).remote(mark_of(name.job, name.number), folder)
            is_swept = bool(ray.get(ref, timeout=PATIENCE.total_seconds() * 3))
        return Dead("ended", False, is_swept)

    def _tell(self, name: HostName, command: Command) -> None:
        handle = self._handles.get(name)
        if handle is None:
            return
        try:
            answer = ray.get(handle.tell.remote(encode(command)), timeout=PATIENCE.total_seconds())
        except RayError as error:
            log.warning("tell failed", host=str(name), error=repr(error))
            return
        if answer is not None:
            log.warning("the host refused", host=str(name), why=decode(Refused, answer).why)


def _listed() -> tuple[HostName, ...]:
    names = (parse(item) for item in ray.util.list_named_actors())
    return tuple(sorted(name for name in names if name is not None))


def _found(name: HostName) -> Any:
    try:
        return ray.get_actor(str(name), namespace=NAMESPACE)
    except ValueError:
        return None


def _is_alive(node: str) -> bool:
    return any(item["NodeID"] == node and item["Alive"] for item in ray.nodes())


def _own(resources: Mapping[str, float]) -> dict[str, float]:
    """Leave out what Ray invents for each node and for itself."""
    return {name: amount for name, amount in resources.items() if not name.startswith(("node:", "object_store"))}
