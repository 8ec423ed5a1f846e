"""A multilayer perceptron of five million parameters on fixed random data, for measuring steps."""

import numpy as np
from mindspore import nn, ops

WIDTHS = (256, 1512, 1512, 1512)


def loss(logits, labels):
    return ops.cross_entropy(logits, labels)


def build(ctx):
    random = np.random.default_rng(7)
    samples = int(ctx.params.get("samples", 4096))
    features = random.standard_normal((samples, WIDTHS[0])).astype(np.float32)
    labels = random.integers(0, 10, samples).astype(np.int32)
    layers = []
    for width, following in zip(WIDTHS, WIDTHS[1:]):
        layers += [nn.Dense(width, following), nn.ReLU()]
    return ctx.Program(
        network=nn.SequentialCell(*layers, nn.Dense(WIDTHS[-1], 10)), loss=loss, dataset=(features, labels),
        optimizer=lambda parameters: nn.Adam(parameters, learning_rate=0.001),
    )  # fmt: skip
