"""A small convolutional network, with batch normalisation and dropout, for 8 x 8 handwritten digits."""

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from sklearn.datasets import load_digits

HELD_OUT_EVERY = 6


class Network(nn.Cell):
    """Two convolutions, then two dense layers."""

    def __init__(self, dropout):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, pad_mode="same", has_bias=False)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, pad_mode="same", has_bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.pool = nn.MaxPool2d(2, 2)
        self.flatten = nn.Flatten()
        self.dense1 = nn.Dense(32 * 4 * 4, 64)
        self.dropout = nn.Dropout(p=dropout)
        self.dense2 = nn.Dense(64, 10)

    def construct(self, images):
        x = ops.relu(self.norm1(self.conv1(images)))
        x = self.pool(ops.relu(self.norm2(self.conv2(x))))
        x = ops.relu(self.dense1(self.flatten(x)))
        return self.dense2(self.dropout(x))


def data():
    """Return (training images, labels), (held-out images, labels)."""
    digits = load_digits()
    images = (digits.images[:, None] / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int32)
    held_out = np.arange(len(labels)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    return (images[~held_out], labels[~held_out]), (images[held_out], labels[held_out])


def loss(logits, labels):
    return ops.cross_entropy(logits, labels)


def sums(logits, labels):
    """How many are right, and the summed loss."""
    right = ops.cast(ops.equal(ops.argmax(logits, dim=1).astype(ms.int32), labels), ms.float32).sum()
    return right, ops.cross_entropy(logits, labels, reduction="sum")


def build(ctx):
    training, held_out = data()
    rate = float(ctx.params.get("learning_rate", 0.002))
    return ctx.Program(
        network=Network(float(ctx.params.get("dropout", 0.25))),
        loss=loss,
        optimizer=lambda parameters: nn.Adam(parameters, learning_rate=rate),
        dataset=training,
        evaluate=ctx.Evaluation(held_out, ("accuracy", "loss"), sums),
    )
