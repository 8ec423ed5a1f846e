"""Small parts: layout, regroup's judgements, state and ledger, outbox, desk, feed."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.desk import LENGTH, Desk, read_frame, send_frame, unpack
from workers.errors import DivergenceError, ProgramError, WireError
from workers.feed import Feed, aligned
from workers.layout import LINE, lay_out, slices
from workers.outbox import MOST, Outbox
from workers.program import Program
from workers.protocol import (
    MAX_FRAME,
    Cadence,
    Header,
    Member,
    Plan,
    RankReport,
    Record,
    Restore,
    Save,
    Stop,
    Work,
    decode,
    encode,
)
from workers.regroup import GoOn, LeaveFor, StopHere, after_step, committed, start_of
from workers.state import EMPTY, State, ids_digest, sha256_of


@given(st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=1, max_size=9))
def test_every_value_starts_on_a_line_of_its_own(shapes: list[list[int]]) -> None:
    layout = lay_out([(str(index), "gradient", tuple(shape)) for index, shape in enumerate(shapes)])
    assert all(slot.begin % LINE == 0 for slot in layout.slots)
    for left, right in pairwise(layout.slots):
        assert left.end <= right.begin
    assert layout.empty().ctypes.data % 64 == 0


@given(st.integers(1, 5000), st.integers(1, 9))
def test_slices_cover_the_vector_on_lines(size: int, ranks: int) -> None:
    cut = slices(size, ranks)
    assert len(cut) == ranks
    assert cut[0][0] == 0
    assert cut[-1][1] == size
    assert all((a[1] == b[0] and b[0] % LINE == 0) or b[0] == size for a, b in pairwise(cut))


def header(**changes: Any) -> Header:
    plain = Header(4, 4, 1, False, False, b"d", ())
    return msgspec.structs.replace(plain, **changes)


def test_all_leave_for_a_plan_only_when_all_hold_it() -> None:
    assert after_step(1, [header(plan=2), header(plan=2)]) == LeaveFor(2)
    assert after_step(1, [header(plan=2), header(plan=1)]) == GoOn(save=False)
    assert after_step(1, [header(plan=2), header(plan=3)]) == GoOn(save=False), "a superseded plan is not left for"
    assert after_step(1, [header(save=True), header()]) == GoOn(save=True)
    assert after_step(1, [header(stop=True), header(plan=2)]) == StopHere()


def test_a_step_is_committed_when_the_last_has_applied_it() -> None:
    assert committed([header(applied=5), header(applied=4)]) == 4


def test_the_highest_step_wins_and_two_states_of_it_stop_the_job() -> None:
    start = start_of([header(applied=4), header(applied=5, state=b"x"), header(applied=5, state=b"x")])
    assert (start.step, start.source, start.behind) == (5, 1, (0,))
    with pytest.raises(DivergenceError, match="rank 1"):
        start_of([header(applied=5, state=b"x"), header(applied=5, state=b"y")])


def state() -> State:
    return State({"a": np.zeros(3, np.float32), "b": np.ones((2, 2), np.int32)}, ("a",))


def test_a_state_is_written_in_place_or_not_at_all() -> None:
    mine = state()
    kept = mine.arrays["a"]
    mine.write({"a": np.full(3, 2, np.float32), "b": np.full((2, 2), 3, np.int32)})
    assert kept is mine.arrays["a"]
    assert kept.tolist() == [2, 2, 2]
    for wrong in (
        {"a": kept},
        {"a": kept, "b": np.ones((2, 2), np.int64)},
        {"a": np.zeros(4, np.float32), "b": np.ones((2, 2), np.int32)},
    ):
        with pytest.raises(DivergenceError):
            mine.write(wrong)


def test_the_ledger_depends_on_what_was_fed_and_in_which_order() -> None:
    def fed(*steps: tuple[tuple[int, bytes], ...]) -> bytes:
        mine = state()
        for step in steps:
            mine.feed(step, ends_epoch=False)
        return mine.ledger

    one, two = ((0, b"x"),), ((0, b"y"),)
    assert len({fed(one, two), fed(two, one), fed(one), fed(((1, b"x"),), two), EMPTY}) == 5


def test_an_epochs_ledger_is_told_at_its_end_and_begins_anew() -> None:
    mine = state()
    assert mine.feed(((0, b"x"),), ends_epoch=False) is None
    first = mine.feed(((0, b"y"),), ends_epoch=True)
    assert mine.epoch_ledger == EMPTY
    mine.feed(((0, b"x"),), ends_epoch=False)
    assert mine.feed(((0, b"y"),), ends_epoch=True) == first


def test_the_weights_hash_depends_on_name_type_shape_and_bytes() -> None:
    base = np.arange(4, dtype=np.float32)
    tensors: list[dict[str, np.ndarray[Any, Any]]] = [
        {"a": base}, {"b": base}, {"a": base.astype(np.float64)}, {"a": base.reshape(2, 2)}, {"a": base + 1},
        {"a": base.view(np.int32)}, {"a": base, "b": base},
    ]  # fmt: skip
    assert len({sha256_of(item) for item in tensors}) == len(tensors)
    assert sha256_of({"a": base, "b": base + 1}) == sha256_of({"b": base + 1, "a": base})


def test_the_digest_of_ids_is_that_of_little_endian_words() -> None:
    assert ids_digest(np.array([1, 2])) == ids_digest(np.array([1, 2], dtype=">i8").astype(np.int64))


def records(*steps: int) -> tuple[Record, ...]:
    return tuple(Record("metric", 1, step, "loss", 0.5) for step in steps)


def test_an_outbox_loses_nothing_and_repeats_until_acknowledged() -> None:
    box = Outbox()
    box.add(records(1, 2, 3))
    first = box.after(0)
    assert (first.last, first.records) == (3, records(1, 2, 3))
    assert box.after(0) == first
    box.add(records(4))
    assert box.after(2).records == records(3, 4)
    assert box.after(4) == msgspec.structs.replace(first, last=4, records=())
    assert len(box) == 0
    box.add(records(5))
    assert (box.after(4).last, box.after(4).records) == (5, records(5))


def test_an_outbox_hands_out_bounded_batches() -> None:
    box = Outbox()
    box.add(records(*range(MOST + 10)))
    first = box.after(0)
    assert len(first.records) == MOST
    assert len(box.after(first.last).records) == 10


def work() -> Work:
    return Work("j", 1, "code", "p:b", {}, 1, 2, 2, 3, None, 1, Cadence(0, 0), 0, 0.0, "s", "127.0.0.1", {})


@contextmanager
def desk() -> Iterator[tuple[Desk, socket.socket, threading.Event]]:
    """A desk with our end of its channel; when that is closed, the desk must notice."""
    mine, theirs = socket.socketpair()
    gone = threading.Event()
    with theirs:
        with mine:
            made = Desk(theirs, host_gone=gone.set)
            send_frame(mine, encode(work()))
            assert made.take_work() == work()
            yield made, mine, gone
        assert gone.wait(5), "a rank notices that its host is gone"


def test_records_travel_before_the_report_that_stands_on_them() -> None:
    with desk() as (made, mine, _):
        made.record(*records(1, 2))
        made.say(state="training", step=2)
        frames = [read_frame(mine), read_frame(mine)]
    assert unpack(frames[0] or b"") == records(1, 2)
    told = unpack(frames[1] or b"")
    assert isinstance(told, RankReport)
    assert (told.state, told.step) == ("training", 2)


def test_the_newest_plan_is_kept_and_a_stop_wakes_who_waits() -> None:
    with desk() as (made, mine, _):
        plan = Plan("j", 2, 1, (Member(0, 1, "a", 0, 2),), "ab", Restore(0))
        send_frame(mine, encode(plan))
        assert made.wait_plan(1) == plan
        send_frame(mine, encode(msgspec.structs.replace(plan, generation=1)))
        send_frame(mine, encode(Save(2, 1)))
        send_frame(mine, encode(Stop(2, 1)))
        assert made.wait_plan(2) is None
        assert made.newest_plan() == 2, "an older plan is not taken"
        assert made.stop_asked(2)
        assert not made.stop_asked(3)
        assert (made.take_save(2), made.take_save(2)) == (True, False)


def test_a_frame_above_the_bound_is_refused() -> None:
    mine, theirs = socket.socketpair()
    with mine, theirs:
        mine.sendall(LENGTH.pack(MAX_FRAME + 1))
        with pytest.raises(WireError, match="above the bound"):
            read_frame(theirs)
        with pytest.raises(WireError, match="unknown kind"):
            unpack(b"Xabc")
        with pytest.raises(msgspec.ValidationError):
            decode(Work, encode({"job": 5}))


def program(dataset: Any, **changes: Any) -> Program:
    return replace(Program(None, lambda parameters: None, dataset), **changes)


def feed(dataset: Any, **changes: Any) -> Feed:
    return Feed(dataset, program(dataset, **changes), seed=5)


def test_batches_are_aligned_and_hold_what_was_asked_for() -> None:
    x, y = np.arange(40, dtype=np.float32).reshape(10, 4), np.arange(10)
    fed = feed((x, y)).fetch(np.array([7, 2]), 0)
    assert fed.ids.tolist() == [7, 2]
    assert np.array_equal(fed.arrays[0], x[[7, 2]])
    assert fed.arrays[1].tolist() == [7, 2]
    assert all(array.ctypes.data % 64 == 0 for array in fed.arrays)
    odd = np.frombuffer(bytearray(68), dtype=np.float32)[1:]
    assert aligned(odd).ctypes.data % 64 == 0


def test_a_transform_draws_by_seed_epoch_and_index_alone() -> None:
    def jitter(item: Any, rng: np.random.Generator) -> Any:
        return (np.float32(item[0] + rng.random()),)

    x = np.zeros(10, np.float32)
    one = feed((x,), transform=jitter)
    alone = one.fetch(np.array([4]), 2).arrays[0][0]
    assert one.fetch(np.array([1, 4, 5]), 2).arrays[0][1] == alone
    assert one.fetch(np.array([4]), 3).arrays[0][0] != alone


def test_datasets_that_are_none_are_refused_in_words() -> None:
    for dataset, words in (
        ({"a": 1}, "arrays, or have __len__"),
        (5, "arrays, or have __len__"),
        ((np.zeros(3), np.zeros(4)), "different lengths"),
        (np.zeros((0, 3)), "empty"),
    ):
        with pytest.raises(ProgramError, match=words):
            feed(dataset)


def test_a_collate_that_loses_samples_is_refused() -> None:
    with pytest.raises(ProgramError, match="collate returned 1 samples for 2 items"):
        feed([1, 2, 3], collate=lambda items: (np.array(items[:1]),)).fetch(np.array([0, 1]), 0)
