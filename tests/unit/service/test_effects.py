"""Which effects do committed rows call for?"""

from dataclasses import replace

from service.control.effects import EndHost, LaunchHost, SealLineage, Tell, required_effects, work_of
from service.control.job import Generation, Host, HostState, Job, Phase, Snapshot
from service.control.observation import Dead, HostSeen, Seen, Starting
from tests.builders import generation, host, job, live, report, spec
from workers.protocol import Plan, Stop


def effects(state: Job, current: Generation, hosts: tuple[Host, ...], seen: dict[int, HostSeen]) -> list[object]:
    return list(required_effects(Snapshot(state, current, hosts), Seen(seen), term=3))


def launching() -> Job:
    return job(Phase.LAUNCHING, generation=1, next_host=3)


def test_missing_hosts_are_launched_and_the_border_is_sealed() -> None:
    found = effects(launching(), generation(), (host(1), host(2)), {1: Starting()})
    assert found == [LaunchHost("j1", 2, "a", ()), SealLineage("j1", 1, 0)]


def test_hosts_of_generations_before_are_named_for_the_sweep() -> None:
    found = effects(launching(), generation(2, (3, 4), seal=1), (host(3),), {})
    assert found == [LaunchHost("j1", 3, "a", (1, 2))]


def test_a_host_that_was_there_is_never_launched_again() -> None:
    assert effects(job(Phase.RUNNING, generation=1), live(), (host(1), host(2)), {1: report(1)}) == []


def test_the_plan_is_told_until_the_host_shows_it() -> None:
    planned = generation(seal=1, addresses=("x:1", "y:2"))
    found = effects(launching(), planned, (host(1), host(2)), {1: report(1, told=0), 2: report(2, told=1)})
    assert len(found) == 1
    told = found[0]
    assert isinstance(told, Tell)
    plan = told.command
    assert isinstance(plan, Plan)
    assert (plan.term, plan.restore.below) == (3, 1)
    assert [(m.rank, m.host, m.begin, m.end, m.address) for m in plan.members] == [
        (0, 1, 0, 2, "x:1"), (1, 2, 2, 4, "y:2"),
    ]  # fmt: skip


def test_a_stop_is_told_until_the_host_shows_it() -> None:
    found = effects(
        job(Phase.RUNNING, generation=1), live(is_stopping=True), (host(1), host(2)), {1: report(1), 2: report(2)}
    )
    assert found == [Tell("j1", 1, Stop(1, 3)), Tell("j1", 2, Stop(1, 3))]


def test_doomed_hosts_are_ended_until_they_are_seen_swept() -> None:
    doomed = tuple(replace(item, state=HostState.DOOMED) for item in (host(1), host(2), host(3)))
    seen: dict[int, HostSeen] = {1: report(1), 2: Dead("x", False, False), 3: Dead("x", False, True)}
    found = effects(job(Phase.DRAINING, generation=1, ending=Phase.WAITING), live(), doomed, seen)
    assert found == [EndHost("j1", 1, "a"), EndHost("j1", 2, "a")]


def test_a_rank_is_told_all_it_must_know_and_no_secret_of_the_service() -> None:
    work = work_of(job(spec=spec(pace_ms=50, params={"rate": 1})), 2, "/storage")
    assert (work.host, work.shards, work.shard_batch, work.steps, work.pace_seconds) == (2, 4, 8, 12, 0.05)
    assert work.params == {"rate": 1}
