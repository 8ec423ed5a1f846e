"""Plain MindSpore, nothing of Muster: twenty steps of the digits network over eight shards, written out by hand.

Batch normalisation is per shard and spelled in elementary operators; dropout is off; gradients are summed over the
shards and divided by the number of samples; the optimizer is MindSpore's own Momentum (Adam divides by gradients near
zero, so that the last bits of a sum grow to 1e-4 within twenty steps). Writes the weights to the file named first.
"""

import random
import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from sklearn.datasets import load_digits

SEED, SHARDS, BATCH, STEPS, RATE = 7, 8, 16, 20, 0.02
MOMENTUM, EPSILON = 0.9, 1e-5


class Norm(nn.Cell):  # type: ignore[misc]
    """Batch normalisation over one shard, with the statistics it saw as extra outputs."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(np.ones(channels, np.float32)), name="gamma")
        self.beta = Parameter(Tensor(np.zeros(channels, np.float32)), name="beta")

    def construct(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = x.shape[0] * x.shape[2] * x.shape[3]
        mean = x.sum(axis=(0, 2, 3)) / count
        centred = x - mean.reshape(1, -1, 1, 1)
        variance = (centred * centred).sum(axis=(0, 2, 3)) / count
        scale = self.gamma / ops.sqrt(variance + EPSILON)
        out = centred * scale.reshape(1, -1, 1, 1) + self.beta.reshape(1, -1, 1, 1)
        return out, mean, variance * count / (count - 1)


class Network(nn.Cell):  # type: ignore[misc]
    """The digits network, built in the same order, so that its initial weights are drawn alike."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, pad_mode="same", has_bias=False)
        self.norm1 = Norm(16)
        self.conv2 = nn.Conv2d(16, 32, 3, pad_mode="same", has_bias=False)
        self.norm2 = Norm(32)
        self.pool = nn.MaxPool2d(2, 2)
        self.dense1 = nn.Dense(32 * 4 * 4, 64)
        self.dense2 = nn.Dense(64, 10)

    def construct(self, images: Tensor) -> tuple[Tensor, ...]:
        x, mean1, variance1 = self.norm1(self.conv1(images))
        x, mean2, variance2 = self.norm2(self.conv2(ops.relu(x)))
        x = self.pool(ops.relu(x))
        x = ops.relu(self.dense1(x.reshape(x.shape[0], -1)))
        return self.dense2(x), mean1, variance1, mean2, variance2


def main() -> None:
    """Train and write."""
    random.seed(SEED)
    np.random.seed(SEED)
    ms.set_seed(SEED)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    ms.device_context.cpu.op_tuning.threads_num(1)
    ms.runtime.dispatch_threads_num(1)
    digits = load_digits()
    images = (digits.images[:, None] / 16.0).astype(np.float32)
    labels = digits.target.astype(np.int32)
    training = np.arange(len(labels)) % 6 != 5
    images, labels = images[training], labels[training]

    network = Network()
    weights = network.trainable_params()
    optimizer = nn.Momentum(weights, RATE, 0.9)

    def loss(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        logits, *statistics = network(x)
        return (ops.cross_entropy(logits, y), *statistics)

    gradient = ms.value_and_grad(loss, None, weights, has_aux=True)
    running = {"norm1": [np.zeros(16), np.ones(16)], "norm2": [np.zeros(32), np.ones(32)]}
    steps_per_epoch = -(-len(images) // (SHARDS * BATCH))
    for step in range(STEPS):
        epoch, within = divmod(step, steps_per_epoch)
        key = np.array([SEED, epoch], dtype=np.uint64)
        order = np.random.Generator(np.random.Philox(key=key)).permutation(len(images))
        chosen = order[within * SHARDS * BATCH : (within + 1) * SHARDS * BATCH]
        sums, seen = [np.zeros(w.shape) for w in weights], 0
        means = {name: [np.zeros_like(part) for part in parts] for name, parts in running.items()}
        for begin in range(0, len(chosen), BATCH):
            ids = chosen[begin : begin + BATCH]
            (_, *statistics), gradients = gradient(Tensor(images[ids]), Tensor(labels[ids]))
            for total, part in zip(sums, gradients, strict=True):
                total += part.asnumpy().astype(np.float64) * len(ids)
            for number, (name, index) in enumerate((n, i) for n in ("norm1", "norm2") for i in (0, 1)):
                fresh = MOMENTUM * running[name][index] + (1 - MOMENTUM) * statistics[number].asnumpy()
                means[name][index] += fresh * len(ids)
            seen += len(ids)
        optimizer(tuple(Tensor((total / seen).astype(np.float32)) for total in sums))
        running = {name: [part / seen for part in parts] for name, parts in means.items()}
    found = {weight.name: weight.asnumpy() for weight in weights}
    for name, (mean, variance) in running.items():
        found |= {f"{name}.moving_mean": mean, f"{name}.moving_variance": variance}
    np.savez(sys.argv[1], **found)


if __name__ == "__main__":
    main()
