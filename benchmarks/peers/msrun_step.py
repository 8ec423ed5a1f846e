"""How long does one data-parallel training step take in plain MindSpore under msrun?

The script an engineer would write without any other system: DATA_PARALLEL with averaged gradients, graph mode, one
compiled step. Run by msrun, one process a rank; rank 0 writes one JSON line to standard output or to --out.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.communication import get_group_size, get_rank, init

BATCH = 32
CLASSES = 10
MLP_WIDTHS = (256, 1512, 1512, 1512)
SEED = 7

Step = Callable[[ms.Tensor, ms.Tensor], ms.Tensor]


def parse_options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("mlp", "digits"), default="mlp")
    parser.add_argument("--steps", type=int, default=50, help="timed steps")
    parser.add_argument("--warmup", type=int, default=5, help="untimed steps, the compilation among them")
    parser.add_argument("--threads", type=int, default=0, help="kernel threads; 0 leaves the default of MindSpore")
    parser.add_argument("--out", type=Path, default=None, help="file for the JSON line instead of standard output")
    return parser.parse_args()


def mlp() -> nn.Cell:
    """A multilayer perceptron of about five million parameters."""
    layers: list[nn.Cell] = []
    for width, following in pairwise(MLP_WIDTHS):
        layers += [nn.Dense(width, following), nn.ReLU()]
    return nn.SequentialCell(*layers, nn.Dense(MLP_WIDTHS[-1], CLASSES))


def digits() -> nn.Cell:
    """A small convolutional network for images of 8 by 8 pixels."""
    return nn.SequentialCell(
        nn.Conv2d(1, 16, 3),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.Conv2d(16, 32, 3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(p=0.25),
        nn.Dense(32 * 4 * 4, CLASSES),
    )


def fixed_batch(model: str, rank: int) -> tuple[ms.Tensor, ms.Tensor]:
    """This rank's share of the data: random, and the same on every run."""
    shape = (BATCH, MLP_WIDTHS[0]) if model == "mlp" else (BATCH, 1, 8, 8)
    random = np.random.default_rng(SEED + rank)
    features = random.standard_normal(shape).astype(np.float32)
    return ms.Tensor(features), ms.Tensor(random.integers(0, CLASSES, BATCH).astype(np.int32))


def compiled_step(network: nn.Cell) -> Step:
    """Forward, backward, averaged gradients and Adam in one graph."""
    network.set_train()
    criterion = nn.CrossEntropyLoss()
    optimizer = nn.Adam(network.trainable_params(), learning_rate=1e-3)
    reducer = nn.DistributedGradReducer(optimizer.parameters)

    def loss_of(features: ms.Tensor, labels: ms.Tensor) -> ms.Tensor:
        return criterion(network(features), labels)

    gradients_of = ms.value_and_grad(loss_of, None, optimizer.parameters)

    def step(features: ms.Tensor, labels: ms.Tensor) -> ms.Tensor:
        loss, gradients = gradients_of(features, labels)
        optimizer(reducer(gradients))
        return loss

    compiled: Step = ms.jit(step)
    return compiled


def time_steps(step: Step, batch: tuple[ms.Tensor, ms.Tensor], count: int) -> tuple[list[float], list[float]]:
    """Seconds and loss of each step, waiting for the loss."""
    seconds, losses = [], []
    for _ in range(count):
        started = time.perf_counter()
        loss = step(*batch).asnumpy()
        seconds.append(time.perf_counter() - started)
        losses.append(float(loss))
    return seconds, losses


def check_same_weights(network: nn.Cell) -> None:
    """Refuse figures of ranks that did not train one model."""
    total = sum(float(np.abs(weight.asnumpy()).sum(dtype=np.float64)) for weight in network.trainable_params())
    mean = float(ops.AllReduce()(ms.Tensor([total], ms.float32)).asnumpy()[0]) / get_group_size()
    if not np.isclose(total, mean, rtol=1e-5):
        raise ArithmeticError(f"the ranks hold different weights: {total} here, {mean} on average")


def write_line(report: dict[str, object], out: Path | None) -> None:
    """Hand the report over as one JSON line."""
    line = json.dumps(report) + "\n"
    if out is None:
        sys.stdout.write(line)
        sys.stdout.flush()
    else:
        out.write_text(line, encoding="utf-8")


def main() -> None:
    """Train on this rank, and report from rank 0."""
    options = parse_options()
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("CPU")
    if options.threads:
        ms.device_context.cpu.op_tuning.threads_num(options.threads)
    init("mccl")
    ms.set_auto_parallel_context(parallel_mode=ms.ParallelMode.DATA_PARALLEL, gradients_mean=True)
    ms.set_seed(SEED)
    network = mlp() if options.model == "mlp" else digits()
    step, batch = compiled_step(network), fixed_batch(options.model, get_rank())
    time_steps(step, batch, options.warmup)
    seconds, losses = time_steps(step, batch, options.steps)
    check_same_weights(network)
    if get_rank() == 0:
        report = {"ranks": get_group_size(), "threads": options.threads or None, "mindspore": ms.__version__}
        parameters = sum(weight.size for weight in network.trainable_params())
        report |= {"model": options.model, "parameters": parameters, "first_loss": losses[0], "last_loss": losses[-1]}
        write_line({**report, "seconds": seconds}, options.out)


if __name__ == "__main__":
    main()
