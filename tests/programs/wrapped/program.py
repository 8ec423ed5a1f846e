"""Another program, built in a process to which something was done before: params say what."""

import dataclasses
import importlib.util
import random
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


def inner(path):
    """Import the wrapped program by its file."""
    spec = importlib.util.spec_from_file_location("inner_program", path)
    module = importlib.util.module_from_spec(spec)
    # MindSpore looks a traced function's names up in its module, by name.
    sys.modules["inner_program"] = module
    spec.loader.exec_module(module)
    return module


def train_something_else():
    """Train another network, with its own dropout and random numbers, in this very process."""
    network = nn.SequentialCell(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(p=0.5),
                                nn.Dense(8 * 100, 3))  # fmt: skip
    network.set_train()
    optimizer = nn.AdamWeightDecay(network.trainable_params(), learning_rate=0.01)

    def loss(x, y):
        return ops.cross_entropy(network(x), y)

    step = ms.value_and_grad(loss, None, optimizer.parameters)
    draw = np.random.default_rng(99)
    for _ in range(7):
        x = Tensor(draw.standard_normal((5, 1, 10, 10)).astype(np.float32))
        _, gradients = step(x, Tensor(draw.integers(0, 3, 5).astype(np.int32)))
        optimizer(gradients)


def abort_at(points):
    """Make the rank drop each of the (phase, step) points once, as an abort at that point does."""
    from workers.errors import StepAborted
    from workers.phases import PhasePage

    left = [tuple(point) for point in points]
    enter = PhasePage.enter

    def enter_or_abort(self, phase, step):
        enter(self, phase, step)
        if (phase.name, step) in left:
            left.remove((phase.name, step))
            raise StepAborted(f"told to stop in {phase.name} of step {step}")

    PhasePage.enter = enter_or_abort


def shift_dropout():
    """Draw every dropout key from another seed."""
    import workers.step

    keys = workers.step.keys

    def other_keys(seed, step, shard, layers):
        return keys(seed + 1, step, shard, layers)

    workers.step.keys = other_keys


def build(ctx):
    if ctx.params.get("used"):
        train_something_else()
    if ctx.params.get("shift_dropout"):
        shift_dropout()
    random.seed(ctx.seed)
    np.random.seed(ctx.seed)
    ms.set_seed(ctx.seed)
    program = inner(ctx.params["path"]).build(ctx)
    abort_at(ctx.params.get("aborts", []))
    if "momentum" in ctx.params:
        rate = ctx.params["momentum"]
        program = dataclasses.replace(program, optimizer=lambda weights: nn.Momentum(weights, rate, 0.9))
    return program
