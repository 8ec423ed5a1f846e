"""Do real groups over loopback reduce to the same bits, and notice a lost peer at once?"""

import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest

from workers.collectives.host import HostGroup, form
from workers.collectives.links import Listener, listen
from workers.collectives.port import Parcel
from workers.collectives.tree import TreeReduce
from workers.errors import PeerLost
from workers.layout import Floats, Layout, lay_out
from workers.protocol import Header, Member, Plan, Restore, ShardRecord
from workers.reduction import Node, combine, cover
from workers.sampling import deal

SHARDS = 5
LIMIT = timedelta(seconds=10)
LAYOUT: Layout = lay_out(
    [("w", "gradient", (7, 3)), ("v", "gradient", (40,)), ("m", "mean", (5,)), ("s", "sum", (3,)), ("x", "max", (2, 2))]
)


@dataclass
class Rank:
    plan: Plan
    rank: int
    listener: Listener


@contextmanager
def members(count: int, shards: int = SHARDS) -> Iterator[list[Rank]]:
    listeners = [listen("127.0.0.1") for _ in range(count)]
    shares = deal(shards, count)
    dealt = tuple(Member(rank, rank, item.address, *shares[rank]) for rank, item in enumerate(listeners))
    plan = Plan("job", 1, 1, dealt, secrets.token_hex(32), Restore(0))
    try:
        yield [Rank(plan, rank, listener) for rank, listener in enumerate(listeners)]
    finally:
        for listener in listeners:
            listener.socket.close()


def together(ranks: list[Rank], act: Callable[[Rank, HostGroup], Any]) -> list[Any]:
    """Form the group with a thread a member and run `act` in each; exceptions are results."""
    results: list[Any] = [None] * len(ranks)

    def one(rank: Rank) -> None:
        try:
            group = form(rank.plan, rank.rank, rank.listener, LIMIT)
            try:
                results[rank.rank] = act(rank, group)
            finally:
                group.close()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            results[rank.rank] = error

    threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a member hangs"
    return results


def leaf(shard: int) -> Floats:
    draw = np.random.default_rng(shard)
    flat = LAYOUT.empty()
    flat[:] = draw.standard_normal(LAYOUT.size).astype(np.float32) * np.float32(10.0 ** (shard % 4))
    return flat


def sums_of(shards: int, begin: int, end: int) -> dict[Node, Floats]:
    found = {}
    for low, high in cover(shards, begin, end):
        leaves = {(s - low, s - low + 1): leaf(s) for s in range(low, high)}
        total = LAYOUT.empty()
        for section in LAYOUT.sections:
            part = slice(section.begin, section.end)
            add = np.maximum if section.kind == "max" else np.add
            pieces = {node: value[part].copy() for node, value in leaves.items()}
            total[part] = combine(high - low, pieces, add)
        found[(low, high)] = total
    return found


def reduce_with(count: int, occupied: int) -> bytes:
    """Reduce over so many ranks; all must hold the same bytes."""

    def act(rank: Rank, group: HostGroup) -> bytes:
        ranges = tuple((member.begin, member.end) for member in rank.plan.members)
        tree = TreeReduce(group, LAYOUT, ranges)
        begin, end = ranges[rank.rank]
        records = tuple(ShardRecord(shard, 3 + shard, 0.5, 2.0, b"", {}) for shard in range(begin, min(end, occupied)))
        header = Header(0, 0, 1, False, False, b"", records)
        mine = sums_of(occupied, begin, end)
        totals = tree.collect(header, occupied, mine)
        assert totals.weight == 2.0 * occupied
        result = LAYOUT.empty()
        tree.finish(header, occupied, mine, totals, result)
        return result.tobytes()

    with members(count) as ranks:
        results = together(ranks, act)
    assert all(isinstance(item, bytes) for item in results), results
    assert len(set(results)) == 1
    found: bytes = results[0]
    return found


@pytest.mark.parametrize("occupied", [1, 3, 5])
def test_the_bits_do_not_depend_on_the_number_of_ranks(occupied: int) -> None:
    assert len({reduce_with(count, occupied) for count in (1, 2, 3, 4, 5)}) == 1


def test_a_peer_that_leaves_is_noticed_at_once() -> None:
    def act(rank: Rank, group: HostGroup) -> float:
        if rank.rank == 2:
            return 0.0
        began = time.monotonic()
        with pytest.raises(PeerLost) as caught:
            group.exchange({2: Parcel(b"x")}, {2: ()})
        assert caught.value.rank == 2
        return time.monotonic() - began

    with members(3) as ranks:
        waits = together(ranks, act)
    assert all(isinstance(wait, float) and wait < 1.0 for wait in waits), waits


def test_an_abort_ends_an_exchange_that_waits() -> None:
    def act(rank: Rank, group: HostGroup) -> str:
        if rank.rank == 1:
            time.sleep(0.5)
            return "slept"
        threading.Timer(0.1, group.abort, args=("a newer plan",)).start()
        with pytest.raises(PeerLost, match="a newer plan"):
            group.exchange({}, {1: ()})
        return "aborted"

    with members(2) as ranks:
        assert together(ranks, act) == ["aborted", "slept"]


@pytest.mark.parametrize("change", [{"secret": "cd" * 32}, {"generation": 2}, {"job": "other"}])
def test_a_stranger_is_not_let_in(change: dict[str, Any]) -> None:
    """Another secret, generation or job: no group is formed, and nothing is exchanged."""
    with members(2) as ranks:
        ranks[1].plan = msgspec.structs.replace(ranks[1].plan, **change)
        waits = timedelta(seconds=1)
        results: list[Any] = [None, None]

        def one(rank: Rank) -> None:
            with pytest.raises(PeerLost):
                form(rank.plan, rank.rank, rank.listener, waits)
            results[rank.rank] = "refused"

        threads = [threading.Thread(target=one, args=(rank,)) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert results == ["refused", "refused"]


def test_noise_at_the_door_does_not_disturb_a_formation() -> None:
    with members(2) as ranks:
        host, _, port = ranks[0].listener.address.partition(":")
        with socket.create_connection((host, int(port))) as noise:
            noise.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert together(ranks, lambda rank, group: group.size) == [2, 2]


def test_sizes_that_were_not_agreed_are_refused() -> None:
    def act(rank: Rank, group: HostGroup) -> str:
        other = 1 - rank.rank
        buffer = bytearray(8 if rank.rank == 0 else 4)
        try:
            group.exchange({other: Parcel(b"h", [memoryview(b"12345678")])}, {other: [memoryview(buffer)]})
        except PeerLost:
            return "refused"
        # The one whose sizes fitted learns from the other's closed connection.
        with pytest.raises(PeerLost):
            group.exchange({other: Parcel(b"h")}, {other: ()})
        return "refused"

    with members(2) as ranks:
        assert together(ranks, act) == ["refused", "refused"]
