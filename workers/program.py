"""What does user code get, and what must it return?

`build(ctx)` returns `ctx.Program(...)`. The context offers nothing that depends on rank or world size: what depends on
them breaks the promise. It must not compile or run anything.
"""

import importlib
import logging
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from workers.errors import ProgramError

BufferKind = Literal["mean", "sum", "max"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How a job is evaluated: `sums(outputs, *labels)`, traced with the network in evaluation mode, returns one scalar
    sum per name, over a batch; reported is each sum divided by the number of samples.
    """

    dataset: Any
    names: tuple[str, ...]
    sums: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Program:
    """What trains. `optimizer` is given the trainable parameters. A scalar `loss(outputs, labels)` is its shard's mean;
    a (sum, weight) is used as given; without a loss the network returns it. `transform(item, rng)` sees one sample,
    `on_gradients(gradients)` the reduced gradients inside the optimizer's graph. `buffers` names how each non-trainable
    parameter that a forward pass changes is reduced (batch normalisation is declared already).
    """

    network: Any
    optimizer: Callable[[Sequence[Any]], Any]
    dataset: Any
    loss: Callable[..., Any] | None = None
    collate: Callable[[Sequence[Any]], tuple[Any, ...]] | None = None
    transform: Callable[[Any, np.random.Generator], Any] | None = None
    on_gradients: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    buffers: Mapping[str, BufferKind] = field(default_factory=dict)
    extra_state: Sequence[Any] = ()
    evaluate: Evaluation | None = None


class Context:
    """What `build` is given: seed, params, the code folder, and a place for metrics and log lines."""

    Program = Program
    Evaluation = Evaluation

    def __init__(self, seed: int, params: Mapping[str, Any], code: Path) -> None:
        self.seed = seed
        self.params = dict(params)
        self._code = code
        self._metrics: dict[str, tuple[float, float]] = {}

    def asset(self, name: str) -> Path:
        """Return the path of a file that came with the code; ProgramError when it leaves the code folder."""
        path = (self._code / name).resolve()
        if not path.is_relative_to(self._code.resolve()) or not path.exists():
            raise ProgramError(f"asset {name!r} is not a file in the job's code folder")
        return path

    def metric(self, name: str, value: float, weight: float = 1.0) -> None:
        """Add a value to the named metric of the shard being computed; reported is the weighted mean over shards."""
        total, weights = self._metrics.get(name, (0.0, 0.0))
        self._metrics[name] = (total + float(value) * weight, weights + weight)

    def log(self, text: str) -> None:
        """Write one line to the rank's log."""
        logging.getLogger("program").info(text)

    def take_metrics(self) -> dict[str, tuple[float, float]]:
        """Return what `metric` gathered since the last call (the trainer calls this once per shard)."""
        taken, self._metrics = self._metrics, {}
        return taken


def load(entry: str, code: Path) -> Callable[[Context], Any]:
    """Import `module:function` from the code folder. ProgramError when there is no such thing."""
    module_name, _, function = entry.partition(":")
    sys.path.insert(0, str(code))
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ProgramError(f"the program {entry!r} does not import: {error!r}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise ProgramError(f"the program's module {module_name!r} has no function {function!r}")
    return found  # type: ignore[no-any-return]


def seed_everything(seed: int) -> None:
    """Seed the generators that a user's build may draw initial values from."""
    import mindspore as ms

    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    ms.set_seed(seed % (1 << 31))


def build(entry: str, code: Path, context: Context) -> Program:
    """Import and call the user's build. ProgramError, with the user's exception as its cause, when it fails."""
    function = load(entry, code)
    seed_everything(context.seed)
    try:
        program = function(context)
    except Exception as error:
        raise ProgramError(f"{entry} raised {type(error).__name__}: {error}") from error
    if not isinstance(program, Program):
        raise ProgramError(f"{entry} returned {type(program).__name__}; it must return ctx.Program(...)")
    return program
