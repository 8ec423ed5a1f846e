"""Which sample belongs to which (epoch, step, shard)?

Pure: arithmetic on a seed. It must not know datasets, ranks or devices.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@lru_cache(maxsize=4)
def permutation(seed: int, epoch: int, length: int) -> Ids:
    """Return the order in which epoch `epoch` uses the samples 0..length-1.

    A counter-based generator keyed by (seed, epoch): no epoch depends on the draws of another.
    """
    bits = np.random.Philox(key=np.array([seed, epoch], dtype=np.uint64))
    order = np.random.Generator(bits).permutation(length).astype(np.int64)
    order.setflags(write=False)
    return order


@dataclass(frozen=True, slots=True)
class Sampling:
    """The fixed deal of a dataset's samples to steps and shards, for a job's whole life."""

    length: int
    shards: int
    shard_batch: int
    seed: int

    @property
    def global_batch(self) -> int:
        """Samples of a full step."""
        return self.shards * self.shard_batch

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch; the last may be smaller than the others."""
        return -(-self.length // self.global_batch)

    def epoch_of(self, step: int) -> int:
        """Return the epoch to which the step with index `step` (from 0) belongs."""
        return step // self.steps_per_epoch

    def ends_epoch(self, step: int) -> bool:
        """Say whether the step with index `step` is the last of its epoch."""
        return (step + 1) % self.steps_per_epoch == 0

    def occupied(self, step: int) -> int:
        """Return how many shards have samples in this step: shards fill in order, so they are the first ones."""
        first = (step % self.steps_per_epoch) * self.global_batch
        return min(self.shards, -(-(self.length - first) // self.shard_batch))

    def ids(self, step: int, shard: int) -> Ids:
        """Return the samples of one shard in one step: a slice of the epoch's order, at most one partial a step."""
        begin = (step % self.steps_per_epoch) * self.global_batch + shard * self.shard_batch
        end = min(begin + self.shard_batch, self.length)
        return permutation(self.seed, self.epoch_of(step), self.length)[begin : max(begin, end)]

    def samples_before(self, step: int) -> int:
        """Return how many samples the first `step` steps have used."""
        epochs, rest = divmod(step, self.steps_per_epoch)
        return epochs * self.length + min(rest * self.global_batch, self.length)


def deal(shards: int, ranks: int) -> tuple[tuple[int, int], ...]:
    """Deal `shards` to `ranks` as contiguous ranges [begin, end), the larger ones first."""
    small, extra = divmod(shards, ranks)
    borders = [rank * small + min(rank, extra) for rank in range(ranks + 1)]
    return tuple(pairwise(borders))
