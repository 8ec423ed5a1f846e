"""What do the control plane, a rank's host and the ranks say to each other?

The only wire contract, and its only codec (MessagePack through msgspec: typed, bounded, no pickle). It must not act.
"""

from typing import Any, TypeVar

import msgspec

MAX_FRAME = 16 << 20
"""The largest control message, in bytes; tensors never travel in one."""

Counts = dict[str, float]
Json = dict[str, Any]


class Member(msgspec.Struct, frozen=True):
    """One rank of a generation: who hosts it, where it listens, which shards [begin, end) it computes."""

    rank: int
    host: int
    address: str
    begin: int
    end: int


class Restore(msgspec.Struct, frozen=True):
    """Start from the newest checkpoint that counts and verifies below lineage number `below`; 0: from the beginning."""

    below: int


class Plan(msgspec.Struct, frozen=True, tag="plan"):
    """The membership of one generation, as the controller of `term` committed it."""

    job: str
    generation: int
    term: int
    members: tuple[Member, ...]
    secret: str
    restore: Restore

    def member(self, host: int) -> Member | None:
        """Return the rank that host number `host` is to be, or None."""
        return next((member for member in self.members if member.host == host), None)


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    """Leave at an agreed step, all members together, after saving there."""

    generation: int
    term: int


class Save(msgspec.Struct, frozen=True, tag="save"):
    """Begin a checkpoint at the next agreed step."""

    generation: int
    term: int


Command = Plan | Stop | Save


class Cadence(msgspec.Struct, frozen=True):
    """How often a rank saves: every so many committed steps or seconds (0: never)."""

    every_steps: int
    every_seconds: float


class Work(msgspec.Struct, frozen=True):
    """All a rank process must know before it has a plan."""

    job: str
    host: int
    code: str
    entry: str
    params: Json
    seed: int
    shards: int
    shard_batch: int
    steps: int | None
    epochs: int | None
    threads: int
    checkpoint: Cadence
    evaluate_every: int
    pace_seconds: float
    storage: str
    listen: str
    environment: dict[str, str]


class Failure(msgspec.Struct, frozen=True):
    """Why a rank cannot go on. `kind`: 'user' (never retried), 'step' (an exception within a step), 'muster'."""

    kind: str
    summary: str
    traceback: str
    step: int


class Lost(msgspec.Struct, frozen=True):
    """Peers that a rank could not reach, with its own words for it."""

    ranks: tuple[int, ...]
    why: str


class Restored(msgspec.Struct, frozen=True):
    """What a rank started from: lineage number 0 means the beginning; `skipped` names each rejected checkpoint."""

    lineage: int
    step: int
    skipped: tuple[str, ...]


class Result(msgspec.Struct, frozen=True):
    """What a finished job left: the durable end record says the same."""

    steps: int
    samples: int
    evaluation: Counts
    weights_sha256: str
    ledger: str
    checkpoint: int


RANK_STATES = ("starting", "importing", "building", "compiling", "ready", "forming", "training", "evaluating",
               "saving", "parked", "stopped", "finished", "failed")  # fmt: skip


class RankReport(msgspec.Struct, frozen=True):
    """Where a rank process stands; the newest one replaces the one before."""

    state: str = "starting"
    generation: int = 0
    step: int = 0
    """Committed steps."""
    applied: int = 0
    steps_total: int = 0
    epoch: int = 0
    samples: int = 0
    address: str = ""
    pid: int = 0
    probe: dict[str, str] = {}
    numeric_class: dict[str, str] = {}
    seconds: Counts = {}
    metrics: Counts = {}
    restored: Restored | None = None
    saved: int = 0
    """The newest lineage number this rank published."""
    lost: Lost | None = None
    failure: Failure | None = None
    result: Result | None = None


class Record(msgspec.Struct, frozen=True, tag="record"):
    """One line of bulk: a metric point, an epoch's ledger, or a published checkpoint.

    `kind`: 'metric' (name, step, value), 'epoch' (step, value = samples, name = ledger digest),
    'checkpoint' (step, value = lineage number), 'note' (name = text).
    """

    kind: str
    generation: int
    step: int
    name: str
    value: float


class Exit(msgspec.Struct, frozen=True):
    """How a rank process ended: a code, or the number of the signal that ended it."""

    code: int | None
    signal: int | None
    out_of_memory: bool
    tail: str


class HostReport(msgspec.Struct, frozen=True):
    """What a host knows: its rank's last report, how the process ended, and what waits to be drained."""

    host: int
    seq: int
    node: str
    term: int
    generation: int
    """The newest plan it passed on."""
    stopping: int
    """The newest generation it passed a stop for."""
    rank: RankReport
    exit: Exit | None
    pending: int


class Batch(msgspec.Struct, frozen=True):
    """Records with the number of the last one, to be acknowledged by asking after it."""

    last: int
    records: tuple[Record, ...]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """A call with a term or generation below the highest one seen."""

    why: str


class ShardRecord(msgspec.Struct, frozen=True, array_like=True):
    """What one shard did in one step: sums as floats, and the digest of the ids really fed."""

    shard: int
    samples: int
    loss: float
    weight: float
    ids: bytes
    metrics: dict[str, tuple[float, float]]


class Header(msgspec.Struct, frozen=True, array_like=True):
    """What rides on every message of an exchange between ranks."""

    step: int
    applied: int
    plan: int
    stop: bool
    save: bool
    state: bytes
    shards: tuple[ShardRecord, ...]


FromRank = RankReport | tuple[Record, ...]
Message = TypeVar("Message")


def encode(message: Any) -> bytes:
    """Encode any message of this file."""
    return msgspec.msgpack.encode(message)


def decode(kind: type[Message], data: bytes | bytearray | memoryview) -> Message:
    """Decode a message of type `kind`; msgspec.ValidationError when the bytes are not one."""
    if len(data) > MAX_FRAME:
        raise msgspec.ValidationError(f"a message of {len(data)} bytes is above the bound of {MAX_FRAME}")
    return msgspec.msgpack.decode(data, type=kind)


def decode_command(data: bytes) -> Command:
    """Decode what a host tells its rank."""
    return msgspec.msgpack.decode(data, type=Command)
