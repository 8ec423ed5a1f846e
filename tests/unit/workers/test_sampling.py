"""Does every sample get its one place in an epoch?"""

from hypothesis import given
from hypothesis import strategies as st

from workers.sampling import Sampling, deal, permutation

samplings = st.builds(
    Sampling,
    length=st.integers(1, 200),
    shards=st.integers(1, 9),
    shard_batch=st.integers(1, 9),
    seed=st.integers(0, 99),
)


@given(samplings, st.integers(0, 3))
def test_samples_twice_or_never(sampling: Sampling, epoch: int) -> None:
    """Every sample is used once an epoch, for any length, shards and batch."""
    first = epoch * sampling.steps_per_epoch
    used = [
        int(index)
        for step in range(first, first + sampling.steps_per_epoch)
        for shard in range(sampling.shards)
        for index in sampling.ids(step, shard)
    ]
    assert sorted(used) == list(range(sampling.length))


@given(samplings, st.integers(0, 50))
def test_shards_fill_in_order_and_at_most_one_is_partial(sampling: Sampling, step: int) -> None:
    sizes = [len(sampling.ids(step, shard)) for shard in range(sampling.shards)]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(0 < size < sampling.shard_batch for size in sizes) <= 1
    assert sampling.occupied(step) == sum(size > 0 for size in sizes)


@given(samplings, st.integers(0, 40))
def test_samples_before_counts_what_was_used(sampling: Sampling, steps: int) -> None:
    used = sum(len(sampling.ids(step, shard)) for step in range(steps) for shard in range(sampling.shards))
    assert sampling.samples_before(steps) == used


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    first = permutation(1, 0, 100).tolist()
    assert first == permutation(1, 0, 100).tolist()
    assert first not in (permutation(2, 0, 100).tolist(), permutation(1, 1, 100).tolist())


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_deal_is_contiguous_and_even(shards: int, ranks: int) -> None:
    dealt = deal(shards, ranks)
    assert [index for begin, end in dealt for index in range(begin, end)] == list(range(shards))
    sizes = [end - begin for begin, end in dealt]
    assert max(sizes) - min(sizes) <= 1
