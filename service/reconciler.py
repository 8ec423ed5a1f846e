"""What happens in one turn of the loop: observe, decide, commit, perform, for each job with a reason to be looked at?

Commit, then act, from the committed row. Every effect is idempotent, so a crash anywhere only repeats. It must not
decide (control does), speak SQL (store does) or Ray (cluster does).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
import structlog

from service.cluster.names import HostName
from service.cluster.port import Cluster, Order
from service.control.allocate import Claim, Offer, allocate, claim_of
from service.control.decide import decide
from service.control.effects import Effect, EndHost, LaunchHost, SealLineage, Tell, required_effects, work_of
from service.control.job import TERMINAL, Event, GenerationState, HostState, Phase, Snapshot
from service.control.observation import Capacity, Dead, Reporting, SealSeen, Seen, Unknown
from service.errors import Deposed, Fenced
from service.store.bulk import BulkStore
from service.store.jobs import JobStore, RankRow, Versioned
from workers.lineage import Checkpoint, counting, read_lineage, read_result, retire, seal, sweep_debris, why_broken
from workers.outbox import MOST
from workers.protocol import Record
from workers.sampling import deal
from workers.storage import FolderStorage

NUMBERS_EVERY = timedelta(seconds=0.5)
"""How often the numbers of a training that only goes on are taken over."""
RECORDS_EVERY = timedelta(seconds=1)
"""How often each host's records are taken over."""
ORPHANS_EVERY = timedelta(seconds=10)
NODES_EVERY = timedelta(seconds=2)
AFTER_TROUBLE = timedelta(seconds=1)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Stores:
    """Where a controller keeps things: rows, bulk, and the storage with its name as ranks must open it."""

    jobs: JobStore
    bulk: BulkStore
    storage: FolderStorage
    storage_name: str


@dataclass(slots=True)
class _Memory:
    """What can be lost at any moment: caches of rows, and when to look where."""

    known: dict[str, Versioned] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)
    seals: dict[str, SealSeen] = field(default_factory=dict)
    shown: dict[str, tuple[RankRow, ...]] = field(default_factory=dict)
    look: dict[str, datetime] = field(default_factory=dict)
    records_due: dict[str, datetime] = field(default_factory=dict)
    again: set[str] = field(default_factory=set)
    nodes: Capacity | None = None
    nodes_due: datetime | None = None
    orphans_due: datetime | None = None


class Reconciler:
    """The one leader's loop body. `now` and `secret` are the only sources of time and chance."""

    def __init__(
        self, stores: Stores, cluster: Cluster, now: Callable[[], datetime], secret: Callable[[], str]
    ) -> None:
        self._stores, self._cluster = stores, cluster
        self._now, self._secret = now, secret
        self._memory = _Memory()

    def turn(self, woken: frozenset[str]) -> None:
        """Visit every job that has news, a changed row, a changed offer or a due time. ClusterAway, Deposed."""
        now, memory = self._now(), self._memory
        capacity = self._cluster.capacity()
        due = {job for job, when in memory.look.items() if when <= now} | woken | memory.again | self._refresh()
        memory.again = set()
        offers = allocate(self._claims(now), capacity)
        due |= {job for job, offer in offers.items() if memory.offers.get(job) != offer}
        memory.offers = offers
        for job in [job for job in memory.known if job in due]:
            self._guarded(job, now)
        self._show_nodes(capacity, now)
        self._end_orphans(now)

    def pause(self, most: timedelta) -> timedelta:
        """Return how long nothing is due, at most `most`."""
        if self._memory.again:
            return timedelta(0)
        now = self._now()
        return max(timedelta(0), min([most, *(when - now for when in self._memory.look.values())]))

    def _refresh(self) -> set[str]:
        """Load the jobs whose rows changed, forget those at their end; return the changed ones."""
        memory, versions = self._memory, self._stores.jobs.versions()
        for job in [job for job in memory.known if job not in versions]:
            self._forget(job)
        changed = set()
        for job, version in versions.items():
            known = memory.known.get(job)
            if known is None or (known.version, known.desired_version) != version:
                memory.known[job] = self._stores.jobs.load(job)
                changed.add(job)
        return changed

    def _forget(self, job: str) -> None:
        memory = self._memory
        for part in (memory.known, memory.offers, memory.seals, memory.shown, memory.look, memory.records_due):
            part.pop(job, None)
        self._cluster.forget(job)

    def _claims(self, now: datetime) -> list[Claim]:
        return [claim_of(item.snapshot, now) for item in self._memory.known.values()]

    def _guarded(self, job: str, now: datetime) -> None:
        """One job's trouble is never another's: the per-job boundary."""
        try:
            self._visit(job, now)
        except Deposed:
            raise
        except Fenced:
            # Its user wished something meanwhile; the row is read anew and decided in the next turn.
            self._memory.known.pop(job, None)
            self._memory.again.add(job)
        except Exception:
            log.exception("a job's turn failed", job=job)
            self._memory.known.pop(job, None)
            self._memory.look[job] = now + AFTER_TROUBLE

    def _visit(self, job: str, now: datetime) -> None:
        memory = self._memory
        before = memory.known[job]
        seen = self._see(before.snapshot)
        decision = decide(before.snapshot, memory.offers[job], seen, now, self._secret)
        if before.snapshot.job.phase is Phase.DRAINING and decision.job.phase is not Phase.DRAINING:
            # Every host has ended, so nobody writes below the job's folder now.
            self._take_from_checkpoints(before.snapshot, now)
            sweep_debris(self._stores.storage, job)
        after = self._stores.jobs.commit(before, decision, now)
        memory.known[job] = after
        if after is not before:
            memory.again.add(job)
        self._show_ranks(after.snapshot, seen)
        for effect in required_effects(after.snapshot, seen, self._stores.jobs.term):
            self._perform(effect, after.snapshot, now)
        self._take_records(after.snapshot, seen, now)
        self._schedule(after.snapshot, decision.look_again, now)

    def _schedule(self, snapshot: Snapshot, look_again: datetime | None, now: datetime) -> None:
        times = [] if look_again is None else [look_again]
        if snapshot.job.phase in (Phase.RUNNING, Phase.REGROUPING):
            times.append(now + NUMBERS_EVERY)
        elif snapshot.job.phase in (Phase.LAUNCHING, Phase.DRAINING):
            times.append(now + AFTER_TROUBLE)
        if times:
            self._memory.look[snapshot.job.id] = min(times)
        else:
            self._memory.look.pop(snapshot.job.id, None)

    def _see(self, snapshot: Snapshot) -> Seen:
        job = snapshot.job
        hosts = self._cluster.observe(job.id)
        wanted = snapshot.generation.hosts if snapshot.generation is not None else ()
        may_be_over = job.phase is Phase.WAITING and job.generation > 0
        for number in wanted:
            match hosts.get(number, Unknown()):
                case Reporting(report):
                    may_be_over |= report.rank.result is not None or report.exit is not None
                case Dead() | Unknown():
                    may_be_over = True
                case _:
                    pass
        result = read_result(self._stores.storage, job.id) if may_be_over else None
        return Seen(hosts, self._memory.seals.get(job.id), result)

    def _perform(self, effect: Effect, snapshot: Snapshot, now: datetime) -> None:
        match effect:
            case LaunchHost(job, number, node, earlier):
                work = work_of(snapshot.job, number, self._stores.storage_name)
                self._cluster.launch(Order(work, node, snapshot.job.spec.resources, earlier))
            case EndHost(job, number, node):
                name = HostName(job, number)
                if isinstance(self._cluster.observe(job).get(number), Reporting):
                    self._take(snapshot, number, now)
                self._cluster.end(name, node)
            case Tell(job, number, command):
                self._cluster.tell(HostName(job, number), command)
            case SealLineage(job, generation, reported):
                done = seal(self._stores.storage, job, generation, reported)
                self._memory.seals[job] = SealSeen(done.generation, done.number, done.ended)
                self._memory.again.add(job)

    def _take_records(self, snapshot: Snapshot, seen: Seen, now: datetime) -> None:
        due = self._memory.records_due.get(snapshot.job.id)
        if due is not None and now < due:
            return
        self._memory.records_due[snapshot.job.id] = now + RECORDS_EVERY
        for host in snapshot.hosts:
            match seen.host(host.number):
                case Reporting(report) if report.pending > 0:
                    self._take(snapshot, host.number, now)
                case _:
                    pass

    def _take(self, snapshot: Snapshot, number: int, now: datetime) -> None:
        """Take over all records of a host: store, then acknowledge by asking after them."""
        job = snapshot.job.id
        last = self._stores.jobs.drained(job).get(number, 0)
        is_full = True
        while is_full and (batch := self._cluster.drain(HostName(job, number), last)) is not None and batch.records:
            events = self._stores.bulk.take(job, number, batch.last, batch.records, now)
            self._stores.jobs.add_events(job, snapshot.job.generation, events, now)
            if any(record.kind == "checkpoint" for record in batch.records):
                self._retain(snapshot, now)
            last, is_full = batch.last, len(batch.records) == MOST

    def _take_from_checkpoints(self, snapshot: Snapshot, now: datetime) -> None:
        """Take over what the checkpoints carry: a host that was lost took its last records with it."""
        job = snapshot.job
        for entry in counting(read_lineage(self._stores.storage, job.id)):
            if isinstance(entry, Checkpoint):
                carried = msgspec.convert(entry.manifest["head"].get("records", []), tuple[Record, ...])
                published = Record("checkpoint", entry.generation, entry.step, "", float(entry.number))
                events = self._stores.bulk.keep(job.id, (*carried, published), now)
                self._stores.jobs.add_events(job.id, job.generation, events, now)

    def _retain(self, snapshot: Snapshot, now: datetime) -> None:
        """Delete the oldest checkpoints beyond `keep`: row first, files second, never without a verified newer one."""
        job, keep = snapshot.job, snapshot.job.spec.checkpoint.keep
        stored = self._stores.bulk.checkpoints(job.id)
        old, kept = stored[:-keep], stored[-keep:]
        if not old:
            return
        entries = {
            item.number: item for item in read_lineage(self._stores.storage, job.id) if isinstance(item, Checkpoint)
        }
        # The newest first, and no further than the first that verifies: each look reads and hashes a whole state.
        newest = (entries[number] for number, _ in reversed(kept) if number in entries)
        if not any(why_broken(self._stores.storage, entry) is None for entry in newest):
            text = f"checkpoints {old[0][0]} to {old[-1][0]} stay: none of the newer ones verifies"
            self._stores.jobs.add_events(job.id, job.generation, [Event("CHECKPOINT_KEPT", text)], now)
            return
        started_from = snapshot.generation.from_step if snapshot.generation is not None else None
        for number, step in old:
            if step != started_from:
                self._stores.bulk.forget_checkpoint(job.id, number)
                retire(self._stores.storage, job.id, number)

    def _show_ranks(self, snapshot: Snapshot, seen: Seen) -> None:
        rows = tuple(_rank_rows(snapshot, seen))
        if self._memory.shown.get(snapshot.job.id) != rows:
            self._stores.jobs.show_ranks(snapshot.job.id, rows)
            self._memory.shown[snapshot.job.id] = rows

    def _show_nodes(self, capacity: Capacity, now: datetime) -> None:
        memory = self._memory
        if capacity != memory.nodes or memory.nodes_due is None or now >= memory.nodes_due:
            self._stores.jobs.show_nodes(capacity.nodes, now)
            memory.nodes, memory.nodes_due = capacity, now + NODES_EVERY

    def _end_orphans(self, now: datetime) -> None:
        """End hosts that no row wants: first the names, then the rows, and none above the highest row."""
        memory = self._memory
        if memory.orphans_due is not None and now < memory.orphans_due:
            return
        memory.orphans_due = now + ORPHANS_EVERY
        names = self._cluster.names()
        rows = self._stores.jobs.host_rows({name.job for name in names})
        for name in names:
            # A number without a row may be a launch that is under way: only what a row says is gone is ended.
            for host in rows.get(name.job, ()):
                if host.number == name.number and host.state is HostState.GONE:
                    log.warning("ending a host that no row wants", host=str(name))
                    self._cluster.end(name, host.node)


def _rank_rows(snapshot: Snapshot, seen: Seen) -> list[RankRow]:
    generation = snapshot.generation
    if generation is None or snapshot.job.phase in TERMINAL:
        return []
    shares = deal(snapshot.job.spec.shard_count, len(generation.hosts))
    rows = []
    for host in snapshot.hosts:
        if host.number not in generation.hosts:
            continue
        rank = generation.hosts.index(host.number)
        state, pid = "starting", 0
        match seen.host(host.number):
            case Reporting(report):
                state, pid = report.rank.state if report.exit is None else "ended", report.rank.pid
            case Dead():
                state = "dead"
            case _:
                pass
        if generation.state is GenerationState.ENDED:
            state = "ending"
        rows.append(RankRow(host.number, rank, generation.number, *shares[rank], host.node, pid, state))
    return rows
