"""How is one step computed so that it can be dropped at any point without a trace?

Every shard starts from the pre-step buffers; what it changes is taken out and reset; only `apply` writes. It must not
know peers: what is sent is the trainer's and the tree's affair.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workers.dropout import keys
from workers.feed import Feed
from workers.layout import Floats
from workers.model import Model, ShardOutput
from workers.phases import Phase, PhasePage
from workers.program import Context
from workers.protocol import ShardRecord
from workers.reduction import Node, cover, merges_after
from workers.sampling import Sampling
from workers.state import Array, ids_digest


@dataclass(frozen=True, slots=True)
class Computed:
    """The sums of the subtrees this rank holds in one step, and what its shards did."""

    sums: Mapping[Node, Floats]
    records: tuple[ShardRecord, ...]


@dataclass(slots=True)
class Clock:
    """Seconds spent in parts of steps, since the start; benchmarks read it."""

    fetch: float = 0.0
    graph: float = 0.0
    paced: float = 0.0
    sum: float = 0.0
    """Adding the own shards' gradients along the tree."""
    exchange: float = 0.0
    """Sending and taking, with waiting for peers, of which `wait` is a part."""
    wait: float = 0.0
    add: float = 0.0
    """Adding the ranks' partial sums of the own slice."""
    apply: float = 0.0
    """The optimizer's graph."""
    whole: float = 0.0
    steps: int = 0
    shards: int = 0

    @property
    def over(self) -> float:
        """Seconds that no graph, sum, exchange or pace accounts for: what the trainer itself costs."""
        parts = self.graph + self.paced + self.sum + self.exchange + self.add + self.apply
        return self.whole - parts

    def since(self, before: "Clock") -> "Clock":
        """Return what was spent after `before` was read."""
        return Clock(*(getattr(self, name) - getattr(before, name) for name in self.__slots__))


class Step:
    """Computes and applies steps of one program on this rank."""

    def __init__(self, model: Model, feed: Feed, sampling: Sampling, context: Context, pace: float) -> None:
        self.model = model
        self.feed = feed
        self.sampling = sampling
        self.pace = pace
        self.clock = Clock()
        self._context = context
        self._pool: list[Floats] = []

    def compute(self, step: int, shards: tuple[int, int], phases: PhasePage, look: Callable[[], None]) -> Computed:
        """Compute this rank's shards of the step; `look` is called between shards and may raise to drop it."""
        sums: dict[Node, Floats] = {}
        records: list[ShardRecord] = []
        before = {item.parameter.name: self.model.views[item.parameter.name].copy() for item in self.model.buffers}
        stack: list[Floats] = []
        try:
            for node in cover(self.sampling.occupied(step), *shards):
                stack = []
                for shard in range(*node):
                    look()
                    output, record = self._shard(step, shard, phases)
                    self._push(stack, merges_after(node, shard), output, record, before)
                    records.append(record)
                sums[node] = stack.pop()
        except BaseException:
            self.release([*sums.values(), *stack])
            raise
        finally:
            self._reset(before)
        return Computed(sums, tuple(records))

    def release(self, buffers: list[Floats]) -> None:
        """Give flat vectors back for the next step."""
        self._pool.extend(buffers)

    def apply(self) -> None:
        """Write the reduced buffers and run the optimizer on the reduced gradients."""
        for kind in ("mean", "sum", "max"):
            for slot in self.model.layout.of(kind):
                view, value = self.model.views[slot.name], slot.view(self.model.reduced)
                view[...] = view + value if kind == "sum" else value
        began = time.perf_counter()
        self.model.apply()
        self.clock.apply += time.perf_counter() - began

    def _shard(self, step: int, shard: int, phases: PhasePage) -> tuple[ShardOutput, ShardRecord]:
        phases.enter(Phase.FETCH, step)
        began = time.perf_counter()
        ids = self.sampling.ids(step, shard)
        fed = self.feed.fetch(ids, self.sampling.epoch_of(step))
        if fed.ids is not ids and not np.array_equal(fed.ids, ids):
            raise ValueError(f"the feed gave samples {fed.ids[:4]}…, asked were {ids[:4]}…")
        for view, key in zip(self.model.keys, keys(self.sampling.seed, step, shard, self.model.dropouts), strict=True):
            view[...] = key
        phases.enter(Phase.COMPUTE, step)
        ready = time.perf_counter()
        output = self.model.gradient(fed.arrays)
        done = time.perf_counter()
        if self.pace:
            time.sleep(self.pace)
        self.clock.fetch += ready - began
        self.clock.graph += done - ready
        self.clock.paced += time.perf_counter() - done
        self.clock.shards += 1
        metrics = self._context.take_metrics()
        return output, ShardRecord(shard, len(ids), output.loss, output.weight, ids_digest(fed.ids), metrics)

    def _push(
        self, stack: list[Floats], merges: int, output: ShardOutput, record: ShardRecord, before: Mapping[str, Array]
    ) -> None:
        """Push a leaf on the stack of partial sums; the first merge adds it in place, without a copy of its own."""
        leaf = self._leaf(output, record.samples, before)
        self._reset(before)
        began = time.perf_counter()
        self._merge_leaf(stack, merges, leaf)
        self.clock.sum += time.perf_counter() - began

    def _merge_leaf(self, stack: list[Floats], merges: int, leaf: Mapping[str, Array]) -> None:
        if merges == 0:
            flat = self._take()
            for name, value in leaf.items():
                np.copyto(self._slots[name].view(flat), value)
            stack.append(flat)
            return
        top = stack[-1]
        for name, value in leaf.items():
            slot = self._slots[name]
            _merge(slot.kind, slot.view(top), value)
        for _ in range(merges - 1):
            right = stack.pop()
            for section in self.model.layout.sections:
                part = slice(section.begin, section.end)
                _merge(section.kind, stack[-1][part], right[part])
            self.release([right])

    def _leaf(self, output: ShardOutput, samples: int, before: Mapping[str, Array]) -> dict[str, Array]:
        leaf: dict[str, Array] = {
            slot.name: value for slot, value in zip(self.model.layout.of("gradient"), output.gradients, strict=True)
        }
        for item in self.model.buffers:
            name = item.parameter.name
            after = self.model.views[name]
            match item.kind:
                case "mean":
                    leaf[name] = after * np.float32(samples)
                case "sum":
                    leaf[name] = after - before[name]
                case _:
                    leaf[name] = after.copy()
        return leaf

    def _reset(self, before: Mapping[str, Array]) -> None:
        for name, value in before.items():
            self.model.views[name][...] = value

    def _take(self) -> Floats:
        return self._pool.pop() if self._pool else self.model.layout.empty()

    @property
    def _slots(self) -> Mapping[str, Any]:
        return self.model.slots


def _merge(kind: str, left: Array, right: Array) -> None:
    (np.maximum if kind == "max" else np.add)(left, right, out=left)
