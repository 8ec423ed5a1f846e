"""Which operators and optimizers are checked for equal bits? Each case: inputs' shapes and a function of them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One operator: float inputs that get gradients, and what is computed of them."""

    name: str
    shapes: tuple[Shape, ...]
    function: Callable[..., Any]


def _codes(count: int, most: int) -> Tensor:
    return Tensor(np.random.default_rng(3).integers(0, most, count).astype(np.int32))


def _cell(make: Callable[[], nn.Cell]) -> Callable[..., Any]:
    """A cell with weights drawn anew for each case, so that no case depends on another."""
    ms.set_seed(11)
    np.random.seed(11)
    cell = make().set_train()

    def run(*inputs: Tensor) -> Any:
        return cell(*inputs)

    return run


IMAGE: Shape = (8, 16, 24, 24)
ROWS: Shape = (128, 300)
LABELS = _codes(128, 300)
PICKED = _codes(500, 128)


def _attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = ops.matmul(query, key.swapaxes(-1, -2)) * 0.125
    return ops.matmul(ops.softmax(scores, -1), value)


def _rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * ops.rsqrt((x * x).mean(-1, keep_dims=True) + 1e-6) * gain


def _interpolate(x: Tensor) -> Tensor:
    return ops.interpolate(x, size=(48, 48), mode="bilinear", align_corners=False)


def _tensor_scatter(x: Tensor, update: Tensor) -> Tensor:
    return ops.index_add(x, PICKED, update, 0)


# Each a function of its own: MindSpore cannot parse a lambda that shares its line.


def _sum_over_all(x: Tensor) -> Tensor:
    return x.sum()


def _sum_over_rows(x: Tensor) -> Tensor:
    return x.sum(0)


def _mean_over_columns(x: Tensor) -> Tensor:
    return x.mean(1)


def _max_over_columns(x: Tensor) -> Tensor:
    return x.max(axis=1)


def _prod_over_columns(x: Tensor) -> Tensor:
    return ops.prod(x * 0.01 + 1.0, 1)


def _logsumexp(x: Tensor) -> Tensor:
    return ops.logsumexp(x, 1)


def _cumsum(x: Tensor) -> Tensor:
    return ops.cumsum(x, 1)


def _norm(x: Tensor) -> Tensor:
    return ops.sqrt((x * x).sum())


def _softmax(x: Tensor) -> Tensor:
    return ops.softmax(x, -1)


def _log_softmax(x: Tensor) -> Tensor:
    return ops.log_softmax(x, -1)


def _bias_add(x: Tensor, bias: Tensor) -> Tensor:
    return x + bias


def _cross_entropy_mean(x: Tensor) -> Tensor:
    return ops.cross_entropy(x, LABELS)


def _cross_entropy_sum(x: Tensor) -> Tensor:
    return ops.cross_entropy(x, LABELS, reduction="sum")


def _smooth_l1_loss(x: Tensor, y: Tensor) -> Tensor:
    return ops.smooth_l1_loss(x, y, reduction="mean")


def _kl_div(x: Tensor, y: Tensor) -> Tensor:
    return ops.kl_div(ops.log_softmax(x, -1), ops.softmax(y, -1))


def _embedding(x: Tensor) -> Tensor:
    return ops.gather(x, PICKED, 0)


def _concat(x: Tensor, y: Tensor) -> Tensor:
    return ops.cat((x, y), 0)


def _stack(x: Tensor, y: Tensor) -> Tensor:
    return ops.stack((x, y))


def _transpose(x: Tensor) -> Tensor:
    return x.transpose(0, 2, 3, 1)


def _tile(x: Tensor) -> Tensor:
    return ops.tile(x, (2, 3))


def _where(x: Tensor, y: Tensor) -> Tensor:
    return ops.where(x > 0, x, y)


def _clip(x: Tensor) -> Tensor:
    return ops.clamp(x, -0.5, 0.5)


def _clip_by_global_norm(x: Tensor, y: Tensor) -> Tensor:
    return ops.clip_by_global_norm((x, y), 1.0)[0]


def _topk(x: Tensor) -> Tensor:
    return ops.topk(x, 10)[0]


def _sort(x: Tensor) -> Tensor:
    return ops.sort(x)[0]


def elementwise() -> list[Case]:
    """Functions of each element."""
    plain: dict[str, Callable[[Tensor], Tensor]] = {
        "relu": ops.relu, "gelu": ops.gelu, "silu": ops.silu, "sigmoid": ops.sigmoid, "tanh": ops.tanh, "exp": ops.exp,
        "erf": ops.erf, "sin": ops.sin, "square": ops.square, "abs": ops.abs, "leaky_relu": ops.leaky_relu,
        "softplus": ops.softplus, "elu": ops.elu, "hardswish": ops.hardswish,
    }  # fmt: skip
    return [Case(name, (ROWS,), function) for name, function in plain.items()]


def reductions() -> list[Case]:
    """Sums and their kin, where an order of adding could show."""
    return [
        Case("sum over all", (ROWS,), _sum_over_all),
        Case("sum over rows", (ROWS,), _sum_over_rows),
        Case("mean over columns", (ROWS,), _mean_over_columns),
        Case("max over columns", (ROWS,), _max_over_columns),
        Case("prod over columns", (ROWS,), _prod_over_columns),
        Case("logsumexp", (ROWS,), _logsumexp),
        Case("cumsum", (ROWS,), _cumsum),
        Case("norm", (ROWS,), _norm),
        Case("softmax", (ROWS,), _softmax),
        Case("log_softmax", (ROWS,), _log_softmax),
    ]


def products() -> list[Case]:
    """Products of matrices, and attention."""
    heads: Shape = (8, 4, 64, 32)
    return [
        Case("matmul", ((128, 300), (300, 200)), ops.matmul),
        Case("batch matmul", ((16, 64, 48), (16, 48, 32)), ops.matmul),
        Case("Dense", (ROWS,), _cell(lambda: nn.Dense(300, 256))),
        Case("bias add", (ROWS, (300,)), _bias_add),
        Case("attention", (heads, heads, heads), _attention),
    ]


def convolutions() -> list[Case]:
    """Convolutions and pooling."""
    return [
        Case("Conv2d same", (IMAGE,), _cell(lambda: nn.Conv2d(16, 24, 3))),
        Case("Conv2d valid, stride 2", (IMAGE,), _cell(lambda: nn.Conv2d(16, 24, 3, stride=2, pad_mode="valid"))),
        Case("Conv2d with bias", (IMAGE,), _cell(lambda: nn.Conv2d(16, 24, 1, has_bias=True))),
        Case("Conv1d", ((8, 16, 200),), _cell(lambda: nn.Conv1d(16, 24, 5))),
        Case("Conv2dTranspose", (IMAGE,), _cell(lambda: nn.Conv2dTranspose(16, 8, 3))),
        Case("Conv2d by groups", (IMAGE,), _cell(lambda: nn.Conv2d(16, 16, 3, group=16))),
        Case("MaxPool2d", (IMAGE,), _cell(lambda: nn.MaxPool2d(2, 2))),
        Case("AvgPool2d", (IMAGE,), _cell(lambda: nn.AvgPool2d(2, 2))),
        Case("AdaptiveAvgPool2d", (IMAGE,), _cell(lambda: nn.AdaptiveAvgPool2d(6))),
        Case("interpolate bilinear", (IMAGE,), _interpolate),
    ]


def norms() -> list[Case]:
    """Normalisations, in training mode."""
    return [
        Case("BatchNorm2d", (IMAGE,), _cell(lambda: nn.BatchNorm2d(16))),
        Case("BatchNorm1d", (ROWS,), _cell(lambda: nn.BatchNorm1d(300))),
        Case("LayerNorm", (ROWS,), _cell(lambda: nn.LayerNorm((300,)))),
        Case("GroupNorm", (IMAGE,), _cell(lambda: nn.GroupNorm(4, 16))),
        Case("RMS norm", (ROWS, (300,)), _rms_norm),
    ]


def losses() -> list[Case]:
    """Losses."""
    return [
        Case("cross_entropy mean", (ROWS,), _cross_entropy_mean),
        Case("cross_entropy sum", (ROWS,), _cross_entropy_sum),
        Case("mse_loss", (ROWS, ROWS), ops.mse_loss),
        Case("smooth_l1_loss", (ROWS, ROWS), _smooth_l1_loss),
        Case("kl_div", (ROWS, ROWS), _kl_div),
    ]


def movements() -> list[Case]:
    """Operators that move values about; gradients of gathers are sums."""
    table: Shape = (128, 64)
    return [
        Case("Embedding", (table,), _embedding),
        Case("index_add", (table, (500, 64)), _tensor_scatter),
        Case("concat", (ROWS, ROWS), _concat),
        Case("stack", (ROWS, ROWS), _stack),
        Case("transpose", (IMAGE,), _transpose),
        Case("tile", (ROWS,), _tile),
        Case("where", (ROWS, ROWS), _where),
        Case("clip", (ROWS,), _clip),
        Case("clip by global norm", (ROWS, (300,)), _clip_by_global_norm),
        Case("topk", (ROWS,), _topk),
        Case("sort", (ROWS,), _sort),
        Case("LSTM", ((20, 8, 32),), _cell(lambda: _First(nn.LSTM(32, 24)))),
    ]


class _First(nn.Cell):  # type: ignore[misc]
    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        self.inner = inner

    def construct(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]


def cases() -> list[Case]:
    """Every operator's case."""
    groups = (elementwise, reductions, products, convolutions, norms, losses, movements)
    return [case for group in groups for case in group()]


OPTIMIZERS: dict[str, Callable[[list[Parameter]], nn.Optimizer]] = {
    "SGD": lambda weights: nn.SGD(weights, 0.01),
    "Momentum": lambda weights: nn.Momentum(weights, 0.01, 0.9),
    "Adam": lambda weights: nn.Adam(weights, 0.01),
    "AdamWeightDecay": lambda weights: nn.AdamWeightDecay(weights, 0.01),
    "RMSProp": lambda weights: nn.RMSProp(weights, 0.01),
    "Adagrad": lambda weights: nn.Adagrad(weights, learning_rate=0.01),
    "AdaMax": lambda weights: nn.AdaMax(weights, 0.01),
    "Lamb": lambda weights: nn.Lamb(weights, 0.01),
    "ASGD": lambda weights: nn.ASGD(weights, 0.01),
}
