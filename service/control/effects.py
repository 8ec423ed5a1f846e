"""What must be done, given the committed rows and what was seen?

Pure and idempotent: the same rows and sights give the same effects, and an effect done twice does no harm. It must not
decide or perform.
"""

from dataclasses import dataclass

from service.control.job import Generation, HostState, Job, Phase, Snapshot
from service.control.observation import Dead, Reporting, Seen, Starting, Unknown
from workers.protocol import Cadence, Command, Member, Plan, Restore, Stop, Work
from workers.sampling import deal

EARLIER_SWEPT = 64


@dataclass(frozen=True, slots=True)
class LaunchHost:
    """Create the named host on its node if it is not there; `earlier` are the numbers of the generations before."""

    job: str
    number: int
    node: str
    earlier: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndHost:
    """End a doomed host with its whole process tree, or sweep what a dead one left."""

    job: str
    number: int
    node: str


@dataclass(frozen=True, slots=True)
class Tell:
    """Pass a command to a host's rank."""

    job: str
    number: int
    command: Command


@dataclass(frozen=True, slots=True)
class SealLineage:
    """Seal the border before a generation in storage."""

    job: str
    generation: int
    reported: int


Effect = LaunchHost | EndHost | Tell | SealLineage


def required_effects(snapshot: Snapshot, seen: Seen, term: int) -> tuple[Effect, ...]:
    """Return what the rows call for and the sights do not show yet."""
    job, generation = snapshot.job, snapshot.generation
    effects: list[Effect] = []
    for host in snapshot.hosts:
        sight = seen.host(host.number)
        # Once addresses are known the host was there: a missing one is lost then, not to be launched again.
        is_missing = host.state is HostState.WANTED and isinstance(sight, Unknown)
        if is_missing and generation is not None and not generation.addresses:
            effects.append(LaunchHost(job.id, host.number, host.node, _earlier(generation)))
        if host.state is HostState.DOOMED and not (isinstance(sight, Dead) and sight.is_swept):
            effects.append(EndHost(job.id, host.number, host.node))
    if generation is None:
        return tuple(effects)
    if job.phase is Phase.LAUNCHING and generation.seal is None:
        effects.append(SealLineage(job.id, generation.number, job.step))
    if job.phase is Phase.LAUNCHING and generation.addresses:
        effects += _tell(job.id, generation, seen, plan_of(snapshot, generation, term))
    if job.phase is Phase.RUNNING and generation.is_stopping:
        effects += _tell(job.id, generation, seen, Stop(generation.number, term))
    return tuple(effects)


def _earlier(generation: Generation) -> tuple[int, ...]:
    """Return the hosts before this generation's that may have left children; the node it comes to sweeps them."""
    first = min(generation.hosts)
    return tuple(range(max(1, first - EARLIER_SWEPT), first))


def work_of(job: Job, number: int, storage: str) -> Work:
    """Return what the rank of host `number` works on; where it listens is the cluster's to say."""
    spec = job.spec
    cadence = Cadence(spec.checkpoint.every_steps, spec.checkpoint.every_seconds)
    return Work(
        job.id, number, spec.bundle, spec.program, spec.params, spec.seed, spec.shard_count, spec.shard_batch,
        spec.steps, spec.epochs, spec.threads, cadence, spec.evaluate_every, spec.pace_ms / 1000, storage, "",
        spec.environment,
    )  # fmt: skip


def _tell(job: str, generation: Generation, seen: Seen, command: Plan | Stop) -> list[Effect]:
    told: list[Effect] = []
    for number in generation.hosts:
        match seen.host(number):
            case Reporting(report):
                known = report.generation if isinstance(command, Plan) else report.stopping
                if known < command.generation:
                    told.append(Tell(job, number, command))
            case Starting() | Dead() | Unknown():
                pass
    return told


def plan_of(snapshot: Snapshot, generation: Generation, term: int) -> Plan:
    """Return the plan of a generation whose addresses are committed."""
    shares = deal(snapshot.job.spec.shard_count, len(generation.hosts))
    members = tuple(
        Member(rank, host, generation.addresses[rank], *shares[rank]) for rank, host in enumerate(generation.hosts)
    )
    restore = Restore(generation.seal or 0)
    return Plan(snapshot.job.id, generation.number, term, members, generation.secret, restore)
