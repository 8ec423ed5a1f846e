"""How does a Program become two compiled graphs over parameters whose memory we can see?

One graph gives a shard's (loss sum, weight, gradients), the other applies reduced gradients; a third evaluates. It must
not know shards' order, ranks or steps.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

from workers.dropout import HashDropout, swap
from workers.errors import ProgramError
from workers.layout import Floats, Layout, lay_out
from workers.program import Program

Array = NDArray[Any]

STATEFUL = (
    "Dropout", "Dropout2D", "Dropout3D", "DropoutDoMask", "DropoutGenMask", "DropoutExt", "StandardNormal",
    "StandardLaplace", "UniformReal", "UniformInt", "UniformExt", "NormalExt", "Multinomial", "MultinomialExt",
    "RandomShuffle", "RandomNormal", "Randperm", "RandpermV2", "RandpermExt", "RandExt", "RandLikeExt", "Randn",
    "RandnLike", "RandInt", "RandIntLike", "Gamma", "RandomGamma", "Poisson", "RandomPoisson", "Bernoulli",
    "BernoulliExt", "TruncatedNormal", "ParameterizedTruncatedNormal", "RandomChoiceWithMask", "RandomCategorical",
    "LogUniformCandidateSampler", "UniformCandidateSampler", "RandomUniform", "RandomUniformInt",
)  # fmt: skip


def choose_threads(threads: int) -> None:
    """Fix the kernel threads with MindSpore's own knob; before anything is built."""
    ms.set_device("CPU")
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.device_context.cpu.op_tuning.threads_num(threads)
    ms.runtime.dispatch_threads_num(threads)


def _shard_sum(program: Program) -> Callable[..., tuple[Tensor, Tensor]]:
    network, loss = program.network, program.loss

    def weigh(value: Any, count: int) -> tuple[Tensor, Tensor]:
        if isinstance(value, tuple):
            return value[0], ops.stop_gradient(value[1])
        samples = ops.cast(count, ms.float32)
        return value * samples, samples

    def forward(*batch: Tensor) -> tuple[Tensor, Tensor]:
        if loss is None:
            return weigh(network(*batch), batch[0].shape[0])
        return weigh(loss(network(*batch[:-1]), batch[-1]), batch[0].shape[0])

    return forward


class _Gradient(nn.Cell):  # type: ignore[misc]
    """The shard's graph. The network is held in a closure, so its parameters keep their names."""

    def __init__(self, program: Program, weights: Sequence[Parameter]) -> None:
        super().__init__()
        self.both = ms.value_and_grad(_shard_sum(program), None, weights, has_aux=True)

    def construct(self, *batch: Tensor) -> Any:
        return self.both(*batch)


class _Apply(nn.Cell):  # type: ignore[misc]
    def __init__(self, program: Program, optimizer: nn.Optimizer) -> None:
        super().__init__()
        self.update = _updater(program, optimizer)

    def construct(self, *gradients: Tensor) -> Any:
        return self.update(gradients)


def _updater(program: Program, optimizer: nn.Optimizer) -> Callable[..., Any]:
    on_gradients = program.on_gradients

    def update(gradients: tuple[Tensor, ...]) -> Any:
        if on_gradients is not None:
            gradients = on_gradients(gradients)
        # The caller waits for this tensor, and with it for the whole update.
        return ops.functional.depend(optimizer.global_step, optimizer(gradients))

    return update


class _Evaluate(nn.Cell):  # type: ignore[misc]
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.both = _evaluator(program)

    def construct(self, *batch: Tensor) -> Any:
        return self.both(*batch)


def _evaluator(program: Program) -> Callable[..., Any]:
    network = program.network
    sums = program.evaluate.sums if program.evaluate is not None else None

    def run(*batch: Tensor) -> Any:
        return sums(network(*batch[:-1]), batch[-1])  # type: ignore[misc]

    return run


@dataclass(frozen=True, slots=True)
class Buffer:
    """A non-trainable parameter that a forward pass changes, and how the shards' values are reduced."""

    parameter: Parameter
    kind: str


@dataclass(frozen=True, slots=True)
class ShardOutput:
    """What one shard's graph gave; the arrays are views that live as long as `holds`."""

    loss: float
    weight: float
    gradients: tuple[Floats, ...]
    holds: Any


class Model:
    """A built program: compiled on first use, its parameters visible through `views` after `bind`."""

    def __init__(self, program: Program) -> None:
        self.program = program
        network = program.network
        self.dropouts: tuple[HashDropout, ...] = swap(network)
        network.set_train()
        self.weights: list[Parameter] = list(network.trainable_params())
        self.buffers = tuple(_buffers(program))
        self.optimizer = program.optimizer(self.weights)
        if not isinstance(self.optimizer, nn.Optimizer):
            raise ProgramError(f"optimizer(parameters) returned {type(self.optimizer).__name__}, not an nn.Optimizer")
        self.layout: Layout = lay_out(
            [(item.name, "gradient", tuple(item.shape)) for item in self.weights]
            + [(item.parameter.name, item.kind, tuple(item.parameter.shape)) for item in self.buffers]
        )
        self.slots = {slot.name: slot for slot in self.layout.slots}
        self.reduced = self.layout.empty()
        self._gradients = [Tensor.from_numpy(slot.view(self.reduced)) for slot in self.layout.of("gradient")]
        self._gradient = _Gradient(program, self.weights).set_train()
        self._apply = _Apply(program, self.optimizer).set_train()
        self._evaluate = _Evaluate(program).set_train(False)
        self.views: dict[str, Array] = {}
        self.bind()

    def bind(self) -> None:
        """Look up the memory of every parameter anew: a first run may have moved it."""
        for name, parameter in self._state_parameters():
            self.views[name] = parameter.asnumpy()
        self.keys = [cell.key.asnumpy() for cell in self.dropouts]

    def detached(self) -> list[str]:
        """Return the names of parameters whose memory is no longer the one in `views` (must stay empty)."""
        pairs = self._state_parameters()
        return [name for name, item in pairs if item.asnumpy().ctypes.data != self.views[name].ctypes.data]

    def weight_names(self) -> tuple[str, ...]:
        """Return the names of the network's own parameters, dropout keys left out."""
        keys = {cell.key.name for cell in self.dropouts}
        return tuple(sorted(item.name for item in self.program.network.get_parameters() if item.name not in keys))

    def gradient(self, arrays: Sequence[Array]) -> ShardOutput:
        """Run the shard's graph on one batch."""
        outputs = self._gradient(*[Tensor.from_numpy(array) for array in arrays])
        (loss, weight), gradients = outputs
        views = tuple(part.asnumpy() for part in gradients)
        return ShardOutput(float(loss.asnumpy()), float(weight.asnumpy()), views, outputs)

    def apply(self) -> None:
        """Apply the gradients that stand in `reduced`."""
        self._apply(*self._gradients).asnumpy()

    def evaluate(self, arrays: Sequence[Array]) -> tuple[float, ...]:
        """Return the user's sums over one evaluation batch, the network in evaluation mode."""
        network = self.program.network
        network.set_train(False)
        try:
            sums = self._evaluate(*[Tensor.from_numpy(array) for array in arrays])
        finally:
            network.set_train(True)
        return tuple(float(part.asnumpy()) for part in (sums if isinstance(sums, tuple) else (sums,)))

    def refuse_stateful_random(self) -> None:
        """ProgramError naming each random operator in the shard's graph that keeps a state of its own."""
        proto: bytes = self._gradient.get_func_graph_proto()
        found = [name for name in STATEFUL if bytes([len(name)]) + name.encode() + b'"' in proto + b'"'
                 or bytes([len(name)]) + name.encode() in proto]  # fmt: skip
        if found:
            raise ProgramError(
                f"the graph draws random numbers with {', '.join(found)}, whose state cannot be reset; "
                "use an nn.Dropout cell (Muster swaps it for one that can)"
            )

    def _state_parameters(self) -> Iterator[tuple[str, Parameter]]:
        keys = {id(cell.key) for cell in self.dropouts}
        seen: set[int] = set(keys)
        groups = (("", self.program.network.get_parameters()), ("extra/", self.program.extra_state),
                  ("optimizer/", self.optimizer.get_parameters()))  # fmt: skip
        for prefix, parameters in groups:
            for parameter in parameters:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield prefix + parameter.name, parameter


def _buffers(program: Program) -> Iterator[Buffer]:
    known = {item.name: item for item in program.network.get_parameters()}
    for name in program.buffers:
        if name not in known:
            raise ProgramError(f"buffers names {name!r}, which is no parameter of the network")
    declared = dict(program.buffers)
    for _, cell in program.network.cells_and_names():
        for kept in ("moving_mean", "moving_variance"):
            if isinstance(getattr(cell, kept, None), Parameter):
                declared.setdefault(getattr(cell, kept).name, "mean")
    for name in sorted(declared):
        if known[name].requires_grad:
            raise ProgramError(f"buffers names {name!r}, which is trainable")
        if known[name].dtype != ms.float32:
            raise ProgramError(f"buffer {name!r} is {known[name].dtype}; only float32 buffers can be reduced")
        yield Buffer(known[name], declared[name])


def versions() -> dict[str, str]:
    """Return the library versions that the bits depend on."""
    return {"mindspore": ms.__version__, "numpy": np.__version__}
