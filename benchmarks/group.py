"""How are bare rank processes started for a benchmark? Without Ray, host, desk or reports: only a formed group."""

import multiprocessing
import secrets
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

from workers.collectives.host import form
from workers.collectives.links import listen
from workers.protocol import Member, Plan, Restore
from workers.sampling import deal

Ranges = tuple[tuple[int, int], ...]
Body = Callable[..., Any]


def _member(rank: int, body: Body, args: tuple[Any, ...], channel: Connection) -> None:
    listener = listen("127.0.0.1")
    channel.send(listener.address)
    plan: Plan = channel.recv()
    group = form(plan, rank, listener, timedelta(seconds=120))
    channel.send(body(group, tuple((member.begin, member.end) for member in plan.members), *args))
    channel.recv()
    group.close()


def run_group(count: int, shards: int, body: Body, *args: Any) -> list[Any]:
    """Run `body(group, ranges, *args)` in so many processes of one group; return their results in rank order."""
    context = multiprocessing.get_context("spawn")
    channels, processes = [], []
    for rank in range(count):
        ours, theirs = context.Pipe()
        process = context.Process(target=_member, args=(rank, body, args, theirs))
        process.start()
        channels.append(ours)
        processes.append(process)
    addresses = [channel.recv() for channel in channels]
    shares = deal(shards, count)
    members = tuple(Member(rank, rank, address, *shares[rank]) for rank, address in enumerate(addresses))
    plan = Plan("bench", 1, 1, members, secrets.token_hex(32), Restore(0))
    for channel in channels:
        channel.send(plan)
    results = [channel.recv() for channel in channels]
    for channel, process in zip(channels, processes, strict=True):
        channel.send(None)
        process.join()
    return results
