"""How are the shards' values added along the canonical tree by the ranks of a group?

Two exchanges: each rank sends the sums of its maximal subtrees to the owner of each slice, the owner adds them in tree
order, the slices are gathered back. Only element-wise operations, so the bits do not depend on the cuts. It must not
know what the values mean.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workers.collectives.port import Group, Parcel
from workers.layout import Floats, Kind, Layout, slices
from workers.protocol import Header, decode, encode
from workers.reduction import Node, combine, cover, tree_sum

CHUNK = 1 << 16
"""Floats added at a time, so that partial sums stay in the second-level cache."""


def raw(flat: Floats) -> memoryview:
    """Return the bytes of a contiguous array without a copy."""
    return memoryview(flat.data).cast("B") if flat.size else memoryview(b"")


@dataclass(frozen=True, slots=True)
class Totals:
    """What all members know after the first exchange."""

    headers: tuple[Header, ...]
    weight: float
    samples: float


class TreeReduce:
    """The reduce of one generation: buffers are allocated once and live as long as the group."""

    def __init__(self, group: Group, layout: Layout, ranges: tuple[tuple[int, int], ...]) -> None:
        self._group = group
        self._layout = layout
        self._ranges = ranges
        self._slices = slices(layout.size, group.size)
        self._inbox: dict[tuple[int, Node], Floats] = {}
        self.exchanging = 0.0
        """Seconds spent in exchanges: sending, taking, and waiting for peers."""
        self.adding = 0.0
        """Seconds spent adding along the tree."""

    def talk(self, header: Header) -> tuple[Header, ...]:
        """Exchange only headers; return all members' in rank order."""
        parcel = Parcel(encode(header))
        peers = [rank for rank in range(self._group.size) if rank != self._group.rank]
        came = self._exchange(dict.fromkeys(peers, parcel), dict.fromkeys(peers, ()))
        return self._ordered(header, came)

    def collect(self, header: Header, shards: int, mine: Mapping[Node, Floats]) -> Totals:
        """First exchange: send `mine`, the sums of this rank's subtrees, slice by slice to their owners."""
        outgoing: dict[int, Parcel] = {}
        incoming: dict[int, list[memoryview]] = {}
        begin, end = self._slices[self._group.rank]
        text = encode(header)
        for peer in self._peers():
            low, high = self._slices[peer]
            outgoing[peer] = Parcel(text, [raw(flat[low:high]) for flat in mine.values()])
            incoming[peer] = [raw(self._box(peer, node, end - begin)) for node in cover(shards, *self._ranges[peer])]
        headers = self._ordered(header, self._exchange(outgoing, incoming))
        records = sorted((record for each in headers for record in each.shards), key=lambda record: record.shard)
        weight = tree_sum([record.weight for record in records])
        return Totals(headers, weight, tree_sum([float(record.samples) for record in records]))

    def finish(self, header: Header, shards: int, mine: Mapping[Node, Floats], totals: Totals, result: Floats) -> None:
        """Add the own slice in tree order into `result`, then gather all slices (second exchange)."""
        begin, end = self._slices[self._group.rank]
        parts = {node: flat[begin:end] for node, flat in mine.items()}
        for peer in self._peers():
            for node in cover(shards, *self._ranges[peer]):
                parts[node] = self._box(peer, node, end - begin)
        began = time.perf_counter()
        self._add(shards, parts, totals, result)
        self.adding += time.perf_counter() - began
        parcel = Parcel(encode(header), [raw(result[begin:end])])
        incoming = {peer: [raw(result[slice(*self._slices[peer])])] for peer in self._peers()}
        self._exchange(dict.fromkeys(self._peers(), parcel), incoming)

    def _exchange(
        self, outgoing: Mapping[int, Parcel], incoming: Mapping[int, Sequence[memoryview]]
    ) -> dict[int, bytes]:
        began = time.perf_counter()
        try:
            return self._group.exchange(outgoing, incoming)
        finally:
            self.exchanging += time.perf_counter() - began

    def _add(self, shards: int, parts: Mapping[Node, Floats], totals: Totals, result: Floats) -> None:
        base, limit = self._slices[self._group.rank]
        divisors: dict[Kind, np.float32] = {"gradient": np.float32(totals.weight), "mean": np.float32(totals.samples)}
        for kind, begin, end in self._stretches(base, limit):
            pieces = {node: part[begin - base : end - base] for node, part in parts.items()}
            target = result[begin:end]
            total = combine(shards, pieces, _into(target, pieces[min(pieces)], np.maximum if kind == "max" else np.add))
            if kind in divisors:
                np.divide(total, divisors[kind], out=target)
            elif total is not target:
                np.copyto(target, total)

    def _stretches(self, base: int, limit: int) -> Iterator[tuple[Kind, int, int]]:
        for section in self._layout.sections:
            first, last = max(base, section.begin), min(limit, section.end)
            for begin in range(first, last, CHUNK):
                yield section.kind, begin, min(begin + CHUNK, last)

    def _peers(self) -> list[int]:
        return [rank for rank in range(self._group.size) if rank != self._group.rank]

    def _box(self, peer: int, node: Node, size: int) -> Floats:
        key = (peer, node)
        if key not in self._inbox:
            self._inbox[key] = np.zeros(size, dtype=np.float32)
        return self._inbox[key]

    def _ordered(self, mine: Header, came: Mapping[int, bytes]) -> tuple[Header, ...]:
        theirs = {rank: decode(Header, data) for rank, data in came.items()}
        return tuple(mine if rank == self._group.rank else theirs[rank] for rank in range(self._group.size))


def _into(target: Floats, first: Floats, merge: np.ufunc) -> Callable[[Floats, Floats], Floats]:
    """Return a merge whose left spine runs in `target`: the tree's first part is read, not written and stored back."""

    def add(left: Floats, right: Floats) -> Floats:
        out = target if left is first or left is target else left
        merged: Floats = merge(left, right, out=out)
        return merged

    return add
