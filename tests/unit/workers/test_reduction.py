"""Are sums the same bits whoever adds which part?"""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.reduction import combine, cover, merges_after, tree_sum
from workers.sampling import deal

Value = np.float32


def reference(values: list[Value]) -> Value:
    """The tree, from its definition: the left part is the largest power of two below the count."""
    if len(values) == 1:
        return values[0]
    left = 1
    while left * 2 < len(values):
        left *= 2
    return Value(reference(values[:left]) + reference(values[left:]))


def add(left: Value, right: Value) -> Value:
    return Value(left + right)


values = st.lists(st.floats(-1e6, 1e6, width=32).map(lambda x: Value(x)), min_size=1, max_size=40)


@given(values, st.integers(1, 8), st.integers(0, 8))
def test_any_number_of_ranks_adds_along_one_tree(leaves: list[Value], ranks: int, absent: int) -> None:
    shards = len(leaves) + absent
    parts = {}
    for begin, end in deal(shards, min(ranks, shards)):
        for low, high in cover(len(leaves), begin, end):
            parts[(low, high)] = reference(leaves[low:high])
    total = combine(len(leaves), parts, add)
    assert total.tobytes() == reference(leaves).tobytes()


@given(values)
def test_a_stack_of_few_partial_sums_gives_the_same(leaves: list[Value]) -> None:
    stack: list[Value] = []
    most = 0
    for shard, leaf in enumerate(leaves):
        stack.append(leaf)
        for _ in range(merges_after((0, len(leaves)), shard)):
            right = stack.pop()
            stack[-1] = add(stack[-1], right)
        most = max(most, len(stack))
    assert len(stack) == 1
    assert stack[0].tobytes() == reference(leaves).tobytes()
    assert most <= len(leaves).bit_length() + 1


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_tree_sum_is_the_tree_in_double(leaves: list[float]) -> None:
    def doubled(part: list[float]) -> float:
        if len(part) == 1:
            return part[0]
        left = 1
        while left * 2 < len(part):
            left *= 2
        return doubled(part[:left]) + doubled(part[left:])

    assert tree_sum(leaves) == doubled(leaves)
    assert tree_sum([]) == 0.0
