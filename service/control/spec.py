"""What may a user ask for?

One pydantic model: the job's spec, immutable after submit. Each refusal names field, value and remedy. It must not look
at a cluster or a bundle.
"""

import json
import re
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from workers.environment import FIXED

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
PROGRAM = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
DIGEST = re.compile(r"[0-9a-f]{64}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOST_VARIABLES, MOST_CHARACTERS = 64, 4096
FailureKind = Literal["USER", "RANK_CRASH", "MEMORY", "NODE_LOST", "PREEMPTED", "HANG", "STARTUP"]
FAILURES: tuple[str, ...] = get_args(FailureKind)
# Upper bounds: a larger number fits no column of the store and no timedelta, and would fail in the controller's turn.
MOST = 1 << 31
NonNegative = Annotated[float, Field(ge=0, lt=MOST, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, lt=MOST, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=MOST)]
PositiveInt = Annotated[int, Field(gt=0, lt=MOST)]


class Part(BaseModel):
    """A part of a spec: unknown fields are refused, a number is a number and not its text, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Ranks(Part):
    """How many ranks: starts with `initial` (at least `min` when there is no room), stays within min and max."""

    initial: PositiveInt = 1
    min: PositiveInt = 1
    max: PositiveInt | None = None

    @property
    def most(self) -> int:
        """The largest number of ranks; by default the initial one."""
        return self.max if self.max is not None else self.initial


class Resources(Part):
    """What one rank needs. `memory` in bytes; `custom`: Ray resources by name."""

    cpu: NonNegative = 1
    gpu: NonNegative = 0
    npu: NonNegative = 0
    memory: Annotated[int, Field(ge=0, lt=1 << 53)] = 0
    custom: dict[str, NonNegative] = {}

    @field_validator("gpu", "npu")
    @classmethod
    def _whole_above_one(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("must be whole above 1, since only a single device can be shared; round it")
        return value

    @field_validator("custom")
    @classmethod
    def _named(cls, value: dict[str, float]) -> dict[str, float]:
        for name in value:
            if not name.strip() or name in ("CPU", "GPU", "NPU", "memory"):
                raise ValueError(f"{name!r} is no name of a custom resource; use cpu, gpu, npu, memory, or a name")
        return value

    def wanted(self) -> dict[str, float]:
        """Return what is asked for, by Ray's names, zeros left out."""
        named = {"CPU": self.cpu, "GPU": self.gpu, "NPU": self.npu, "memory": float(self.memory), **self.custom}
        return {name: amount for name, amount in named.items() if amount > 0}


class CheckpointPolicy(Part):
    """How often to save (0: not by this measure) and how many checkpoints to keep."""

    every_steps: Count = 0
    every_seconds: NonNegative = 60
    keep: PositiveInt = 3


class Backoff(Part):
    """Seconds before the next generation after a failure: `initial`, doubled each time, at most `most`."""

    initial: NonNegative = 0.2
    most: NonNegative = 60


class Limits(Part):
    """Seconds after which a start, a stop or a lost node is given up."""

    start: Positive = 300
    stop: Positive = 120
    lost_node: Positive = 600


def default_budgets() -> dict[str, int | None]:
    """Return how many failures of each kind a job may have (None: any number)."""
    return {"USER": 1, "RANK_CRASH": 5, "MEMORY": 5, "HANG": 5, "STARTUP": 5, "NODE_LOST": 20, "PREEMPTED": None}


class JobSpec(Part):
    """A training request. The global batch is shards × shard_batch for the job's whole life, whatever the ranks."""

    name: str
    program: str = Field(description="module:function in the code folder")
    bundle: str = Field(description="SHA-256 of the uploaded code folder (the CLI fills it in)")
    labels: dict[str, str] = {}
    params: dict[str, Any] = {}
    ranks: Ranks = Ranks()
    shards: PositiveInt | None = None
    shard_batch: PositiveInt
    epochs: PositiveInt | None = None
    steps: PositiveInt | None = None
    seed: Count = 0
    resources: Resources = Resources()
    threads: PositiveInt = 1
    environment: dict[str, str] = Field(
        default={}, description="environment variables of every rank; no place for secrets"
    )
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    evaluate_every: Count = 0
    budgets: dict[FailureKind, Count | None] = {}
    backoff: dict[FailureKind, Backoff] = {}
    limits: Limits = Limits()
    pace_ms: NonNegative = 0
    determinism: Literal["strict"] = "strict"

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        if not NAME.fullmatch(value):
            raise ValueError("must be 1 to 63 of a-z, 0-9 and '-', with a letter or digit at both ends")
        return value

    @field_validator("program")
    @classmethod
    def _program(cls, value: str) -> str:
        if not PROGRAM.fullmatch(value):
            raise ValueError("must be 'module:function', for example 'program:build'")
        return value

    @field_validator("bundle")
    @classmethod
    def _bundle(cls, value: str) -> str:
        if not DIGEST.fullmatch(value):
            raise ValueError("must be the 64 hex digits of an uploaded bundle; `muster submit` uploads and fills it in")
        return value

    @field_validator("labels", "params")
    @classmethod
    def _storable(cls, value: dict[str, Any]) -> dict[str, Any]:
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        except ValueError as error:  # NaN, infinity, a lone surrogate, an integer of thousands of digits
            raise ValueError(f"cannot be stored as JSON in UTF-8 ({error}); leave that value out") from error
        if b"\\u0000" in text:
            raise ValueError("holds a NUL character, which no database column takes; leave it out")
        return value

    @field_validator("environment")
    @classmethod
    def _environment(cls, value: dict[str, str]) -> dict[str, str]:
        if len(value) > MOST_VARIABLES:
            raise ValueError(f"has {len(value)} variables, above {MOST_VARIABLES}; pass data through params")
        for name, text in value.items():
            if not VARIABLE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a variable; use letters, digits and '_', no digit first")
            if name in FIXED or name.startswith("MUSTER_"):
                raise ValueError(f"{name} is set by Muster, since equal bits or its own work rest on it; leave it out")
            if len(text) > MOST_CHARACTERS or "\0" in text:
                raise ValueError(f"{name} must be at most {MOST_CHARACTERS} characters, none of them NUL")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give exactly one of epochs and steps")
        low, first, most = self.ranks.min, self.ranks.initial, self.ranks.most
        if low > most:
            raise ValueError(f"ranks.min is {low}, above ranks.max {most}; lower min or raise max")
        if not low <= first <= most:
            raise ValueError(f"ranks.initial is {first}, outside [{low}, {most}]; choose it within min and max")
        if self.shard_count < most:
            raise ValueError(
                f"shards is {self.shard_count}, below ranks.max {most}; a rank without a shard has no work: "
                "raise shards or lower ranks.max"
            )
        return self

    @property
    def shard_count(self) -> int:
        """The number of shards; by default the largest number of ranks."""
        return self.shards if self.shards is not None else self.ranks.most

    def budget(self, kind: str) -> int | None:
        """Return how many failures of this kind end the job when exceeded (None: never)."""
        return self.budgets.get(kind, default_budgets()[kind])  # type: ignore[call-overload, no-any-return]
