"""Which nodes can take how many ranks of which job?

Pure: first come, first served, over what the rows of all jobs already hold. It must not decide whether a job starts.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from service.control.job import Phase, Snapshot
from service.control.observation import Capacity
from service.control.spec import Resources


@dataclass(frozen=True, slots=True)
class Claim:
    """A job's wish: up to `most` new ranks of these resources; `held`: the nodes of the hosts it holds."""

    job: str
    resources: Resources
    most: int
    held: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """The nodes on which new ranks fit, one entry a rank, and the shortage in words."""

    nodes: tuple[str, ...]
    text: str


def claim_of(snapshot: Snapshot, now: datetime) -> Claim:
    """Return what a job holds, and how many ranks more it could use now."""
    job = snapshot.job
    held = tuple(host.node for host in snapshot.hosts)
    most = 0
    if job.phase is Phase.WAITING and (job.not_before is None or job.not_before <= now) and job.desired_run == "run":
        most = job.target
    elif job.phase is Phase.RUNNING and snapshot.generation is not None and not snapshot.generation.is_stopping:
        most = max(0, job.target - len(snapshot.generation.hosts))
    return Claim(job.id, job.spec.resources, most, held)


def allocate(claims: Iterable[Claim], capacity: Capacity) -> dict[str, Offer]:
    """Offer room to the claims in their order; a node's room is shared out once."""
    claims = tuple(claims)
    free = {node.id: dict(node.total) for node in capacity.nodes if node.is_alive}
    for claim in claims:
        for node in claim.held:
            if node in free:
                _take(free[node], claim.resources.wanted())
    offers = {}
    for claim in claims:
        wanted = claim.resources.wanted()
        text = _in_words(claim, free, capacity)
        placed: list[str] = []
        while len(placed) < claim.most and (roomiest := _roomiest(free, wanted)) is not None:
            _take(free[roomiest], wanted)
            placed.append(roomiest)
        offers[claim.job] = Offer(tuple(placed), text)
    return offers


def _take(free: dict[str, float], wanted: Mapping[str, float]) -> None:
    for name, amount in wanted.items():
        free[name] = free.get(name, 0.0) - amount


def _roomiest(free: Mapping[str, Mapping[str, float]], wanted: Mapping[str, float]) -> str | None:
    fitting = [
        node for node, room in free.items() if all(room.get(name, 0.0) >= amount for name, amount in wanted.items())
    ]
    return max(sorted(fitting), key=lambda node: free[node].get("CPU", 0.0), default=None)


def _in_words(claim: Claim, free: Mapping[str, Mapping[str, float]], capacity: Capacity) -> str:
    wanted = claim.resources.wanted()
    each = ", ".join(f"{name.lower()} {amount:g}" for name, amount in wanted.items()) or "nothing"
    names = {node.id: node.name for node in capacity.nodes}
    rooms = [
        f"{names[node]} " + ", ".join(f"{name.lower()} {max(0.0, room.get(name, 0.0)):g}" for name in wanted)
        for node, room in sorted(free.items())
    ]
    return f"{{{each}}}; free: {'; '.join(rooms) if rooms else 'no node (Ray is away or empty)'}"
