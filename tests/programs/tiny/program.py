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


class Data:
    """101 fixed samples, which no batch divides; `fault` names what happens at sample 50."""

    def __init__(self, fault, folder):
        random = np.random.default_rng(5)
        self.x = random.standard_normal((101, 12)).astype(np.float32)
        self.y = random.integers(0, 4, 101).astype(np.int32)
        self.fault, self.folder = fault, folder

    def __len__(self):
        return 101

    def __getitem__(self, index):
        x = self.x[index]
        if index == 50 and self.fault == "raise":
            raise ValueError("sample 50 is bad")
        if index == 50 and self.fault == "exit":
            os._exit(0)
        if index == 50 and self.fault == "nan":
            x = x * np.float32("nan")
        if self.fault == "slow":
            time.sleep(0.002)
        return x, self.y[index]


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
    return ctx.Program(
        network=Network(), loss=loss, dataset=Data(fault, "."),
        optimizer=lambda parameters: nn.Momentum(parameters, learning_rate=0.05, momentum=0.9),
    )  # fmt: skip
