"""A small network with dropout on a small fixed dataset; params make it misbehave."""

import os
import time

import numpy as np
from mindspore import nn, ops


class Network(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense1 = nn.Dense(12, 32)
        self.dropout = nn.Dropout(p=0.2)
        self.dense2 = nn.Dense(32, 4)

    def construct(self, x):
        return self.dense2(self.dropout(ops.relu(self.dense1(x))))


def data():
    """101 fixed samples, which no batch divides."""
    random = np.random.default_rng(5)
    return random.standard_normal((101, 12)).astype(np.float32), random.integers(0, 4, 101).astype(np.int32)


def faulty(fault, bad):
    """A transform that does harm when it sees the sample `bad`."""

    def transform(item, rng):
        x, y = item
        if fault == "slow":
            time.sleep(0.002)
        elif np.array_equal(x, bad):
            if fault == "raise":
                raise ValueError("sample 50 is bad")
            if fault == "exit":
                os._exit(0)
            if fault == "nan":
                x = x * np.float32(3e38)
        return x, y

    return transform


def loss(logits, labels):
    return ops.cross_entropy(logits, labels)


def build(ctx):
    fault = ctx.params.get("fault", "")
    if fault == "import":
        import there_is_no_such_module  # noqa: F401
    if fault == "build":
        return "not a program"
    if fault == "hold":
        # A child that outlives its rank and holds a lock, as a process that keeps a device does.
        os.system(f"setsid sh -c 'exec 9>{ctx.params['lock']}; flock 9; sleep 600' >/dev/null 2>&1 &")
    samples = data()
    return ctx.Program(
        network=Network(), loss=loss, dataset=samples, transform=faulty(fault, samples[0][50]) if fault else None,
        optimizer=lambda parameters: nn.Momentum(parameters, learning_rate=0.05, momentum=0.9),
    )  # fmt: skip
