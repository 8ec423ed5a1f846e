"""In which order are the shards' values added?

Pure. The sum of m shards runs along one fixed binary tree: the left part takes the largest power of two below m,
recursively, without padding. Ranks hold contiguous ranges of shards, so each holds whole subtrees of that tree; adding
those in tree order gives the same bits for every number of ranks. It must not know who holds what, or send anything.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

Value = TypeVar("Value")
Node = tuple[int, int]
"""A subtree, as the range [begin, end) of the shards below it."""


def split(begin: int, end: int) -> int:
    """Return where the children of the node [begin, end) meet."""
    return begin + (1 << ((end - begin - 1).bit_length() - 1))


@lru_cache(maxsize=1024)
def cover(shards: int, begin: int, end: int) -> tuple[Node, ...]:
    """Return the maximal subtrees, of the tree over `shards`, that lie within [begin, end), in order."""

    def within(left: int, right: int) -> Iterator[Node]:
        if begin <= left and right <= end:
            yield (left, right)
        elif left < end and begin < right:
            middle = split(left, right)
            yield from within(left, middle)
            yield from within(middle, right)

    return tuple(within(0, shards)) if shards > 0 and begin < end else ()


def combine(shards: int, parts: Mapping[Node, Value], add: Callable[[Value, Value], Value]) -> Value:
    """Add the `parts`, a set of subtrees that together cover the tree, in tree order.

    `add(left, right)` may reuse `left`.
    """

    def total(node: Node) -> Value:
        if node in parts:
            return parts[node]
        middle = split(*node)
        left = total((node[0], middle))
        return add(left, total((middle, node[1])))

    return total((0, shards))


def tree_sum(values: Sequence[float]) -> float:
    """Add one float per shard in tree order; 0.0 for none."""
    if not values:
        return 0.0
    parts = {(index, index + 1): value for index, value in enumerate(values)}
    return combine(len(values), parts, lambda left, right: left + right)


def merges_after(node: Node, shard: int) -> int:
    """Return how many merges of neighbours are due once `shard`, fed in order from `node`'s first, has been pushed.

    Feeding the leaves of a subtree in order and merging the top two of a stack that many times gives its sum in tree
    order with at most log2 partial sums alive.
    """
    begin, end = node
    path: list[int] = []
    while end - begin > 1:
        middle = split(begin, end)
        if shard < middle:
            end = middle
            path.append(0)
        else:
            begin = middle
            path.append(1)
    due = 0
    for turn in reversed(path):
        if turn == 0:
            break
        due += 1
    return due
