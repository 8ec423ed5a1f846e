"""What is decided, and for which reason? One job, one sight, one turn."""

from dataclasses import replace
from datetime import datetime
from typing import Any

from service.control.allocate import Offer
from service.control.decide import decide
from service.control.draft import Decision
from service.control.job import Generation, GenerationState, Host, HostState, Job, Past, Phase, Snapshot
from service.control.observation import Dead, HostSeen, SealSeen, Seen, Starting
from tests.builders import at, failed, generation, host, job, killed, live, report, spec
from workers.protocol import Lost, Restored

ROOM = Offer(("a", "b", "a", "b"), "{cpu 1}; free: node-a cpu 2, node-b cpu 2")
NO_ROOM = Offer((), "{cpu 1}; free: node-a cpu 0, node-b cpu 0")
SOON = at(1)
RESULT = {"steps": 12, "samples": 384, "weights_sha256": "w"}


def turn(
    state: Job,
    current: Generation | None = None,
    hosts: tuple[Host, ...] = (),
    seen: dict[int, HostSeen] | Seen | None = None,
    *,
    offer: Offer = ROOM,
    now: datetime = SOON,
    past: tuple[Past, ...] = (),
) -> Decision:
    sights = seen if isinstance(seen, Seen) else Seen(seen or {})
    return decide(Snapshot(state, current, hosts, past), offer, sights, now, lambda: "ab" * 32)


def two_hosts() -> tuple[Host, ...]:
    return (host(1), host(2))


def running(**changes: Any) -> Job:
    return job(Phase.RUNNING, generation=1, next_host=3, **changes)


def both(state: str = "training", **changes: Any) -> dict[int, HostSeen]:
    return {1: report(1, state, **changes), 2: report(2, state, **changes)}


def texts(decision: Decision) -> str:
    return "\n".join(f"{event.kind} {event.text}" for event in decision.events)


def test_a_job_starts_with_what_it_aims_for() -> None:
    decision = turn(job())
    assert decision.job.phase is Phase.LAUNCHING
    assert decision.generation is not None
    assert decision.generation.hosts == (1, 2)
    assert [item.node for item in decision.hosts] == ["a", "b"]
    assert "starting 2 ranks as generation 1" in texts(decision)


def test_a_job_starts_with_fewer_when_there_is_room_for_no_more() -> None:
    decision = turn(job(), offer=Offer(("a",), "x"))
    assert decision.generation is not None
    assert len(decision.generation.hosts) == 1
    assert "of 2 wanted" in decision.job.reason


def test_a_job_without_room_says_what_is_missing_once() -> None:
    first = turn(job(), offer=NO_ROOM)
    assert first.job.reason == "needs 1 × {cpu 1}; free: node-a cpu 0, node-b cpu 0"
    assert turn(first.job, offer=NO_ROOM).events == ()


def test_a_pinned_number_is_a_condition_of_starting() -> None:
    decision = turn(job(desired_ranks=3), offer=Offer(("a", "b"), "x"))
    assert decision.job.phase is Phase.WAITING
    assert decision.job.reason.startswith("needs 3 ×")


def test_host_numbers_never_repeat() -> None:
    decision = turn(job(generation=4, next_host=9, reason="again"))
    assert [item.number for item in decision.hosts] == [9, 10]


def test_addresses_are_fixed_when_all_are_ready_and_the_border_is_sealed() -> None:
    state = job(Phase.LAUNCHING, generation=1, next_host=3)
    unsealed = turn(state, generation(), two_hosts(), both("ready"))
    assert unsealed.generation is not None
    assert unsealed.generation.addresses == ()
    sealed = turn(state, generation(), two_hosts(), Seen(both("ready"), SealSeen(1, 7, 0)))
    assert sealed.generation is not None
    assert sealed.generation.seal == 7
    assert sealed.generation.addresses == ("127.0.0.1:1001", "127.0.0.1:1002")
    assert sealed.job.probe == {"result": "p"}


def test_a_rank_of_another_class_is_refused_with_the_part_that_differs() -> None:
    seen: dict[int, HostSeen] = {1: report(1, "ready"), 2: report(2, "ready", numeric_class={"device": "other"})}
    decision = turn(job(Phase.LAUNCHING, generation=1), generation(seal=1), two_hosts(), seen)
    assert "rank 1 is refused: its class differs in device (device is 'other', the job's 'CPU')" in texts(decision)
    assert decision.job.phase is Phase.DRAINING


def test_a_rank_with_another_probe_is_refused() -> None:
    state = job(Phase.LAUNCHING, generation=2, probe={"result": "first"}, numeric_class={"device": "CPU"})
    decision = turn(state, generation(2, seal=1), two_hosts(), both("ready"))
    assert "its probe differs in result" in texts(decision)


def test_a_generation_is_live_when_all_its_members_train() -> None:
    state = job(Phase.LAUNCHING, generation=1)
    planned = generation(seal=1, addresses=("x", "y"))
    half: dict[int, HostSeen] = {1: report(1), 2: report(2, "forming", told=0)}
    assert turn(state, planned, two_hosts(), half).job.phase is Phase.LAUNCHING
    whole = turn(state, planned, two_hosts(), both(step=0))
    assert whole.job.phase is Phase.RUNNING
    assert whole.generation is not None
    assert (whole.generation.state, whole.generation.from_step) == (GenerationState.LIVE, 0)


def test_restored_but_from_zero() -> None:
    """Ranks that restored different steps never train together."""
    seen: dict[int, HostSeen] = {1: report(1, restored=Restored(3, 8, ())), 2: report(2, restored=Restored(0, 0, ()))}
    decision = turn(job(Phase.LAUNCHING, generation=1), generation(seal=4, addresses=("x", "y")), two_hosts(), seen)
    assert decision.job.phase is Phase.DRAINING
    assert decision.job.ending is Phase.FAILED
    assert "restored different steps: [0, 8]" in decision.job.reason


def test_a_skipped_checkpoint_is_an_event_with_file_and_reason() -> None:
    why = "checkpoint 4 (step 8): saves/x/piece-0 has 3 bytes, not 9"
    seen = both(restored=Restored(3, 4, (why,)))
    told = {number: replace_told(sight, 2) for number, sight in seen.items()}
    state = job(Phase.LAUNCHING, generation=2, step=8)
    decision = turn(state, generation(2, seal=5, addresses=("x", "y")), two_hosts(), told)
    assert f"CHECKPOINT_SKIPPED {why}" in texts(decision)
    assert decision.job.replaying_from == 4


def replace_told(sight: HostSeen, told: int) -> HostSeen:
    number = sight.report.host  # type: ignore[union-attr]
    return report(number, told=told, restored=sight.report.rank.restored)  # type: ignore[union-attr]


def test_the_shown_step_is_a_high_water_mark() -> None:
    ahead = turn(running(step=5), live(), two_hosts(), both(step=7, samples=9, metrics={"loss": 1.0}))
    assert (ahead.job.step, ahead.job.metrics) == (7, {"loss": 1.0})
    behind = turn(running(step=9, replaying_from=4), live(), two_hosts(), both(step=7))
    assert (behind.job.step, behind.job.replaying_from) == (9, 4)
    caught_up = turn(running(step=9, replaying_from=4), live(), two_hosts(), both(step=9))
    assert caught_up.job.replaying_from is None


def test_reports_of_another_generation_say_nothing_about_this_one() -> None:
    assert turn(running(step=5), live(), two_hosts(), both(told=0, step=7)).job.step == 5


def test_a_killed_rank_ends_the_generation_and_the_job_starts_again() -> None:
    decision = turn(running(step=5), live(), two_hosts(), {1: report(1), 2: killed(2, applied=5)})
    assert decision.job.phase is Phase.DRAINING
    assert decision.job.ending is Phase.WAITING
    assert decision.generation is not None
    assert (decision.generation.outcome, decision.generation.ended_step) == ("RANK_CRASH", 5)
    assert {item.state for item in decision.hosts} == {HostState.DOOMED}
    assert decision.job.not_before is not None
    assert "rank 1 ended with signal 9 and no end record (1 of 5 RANK_CRASH failures)" in decision.job.reason


def test_the_budget_ends_a_job() -> None:
    past = tuple(Past("RANK_CRASH", step, "rank 0 ended with signal 9 and no end record") for step in range(5))
    decision = turn(running(), live(), two_hosts(), {1: report(1), 2: killed(2)}, past=past)
    assert decision.job.ending is Phase.FAILED
    assert "6 of 5" in decision.job.reason


def test_peers_lost_is_a_symptom_that_waits_for_its_cause() -> None:
    parked = report(1, "parked", lost=Lost((1,), "closed its connection"))
    early = turn(running(), live(), two_hosts(), {1: parked, 2: report(2)})
    assert early.job.phase is Phase.RUNNING
    assert early.look_again == at(2)
    with_cause = turn(running(), early.generation, two_hosts(), {1: parked, 2: killed(2)}, now=at(1.1))
    assert with_cause.generation is not None
    assert with_cause.generation.cause.startswith("rank 1 ended with signal 9")
    late = turn(running(), early.generation, two_hosts(), {1: parked, 2: report(2)}, now=at(3))
    assert "no host reported the cause" in late.job.reason


def test_bug_burns_all_retries() -> None:
    """An exception is retried once; the same at the same step ends the job with its traceback."""
    first = turn(running(), live(), two_hosts(), {1: report(1), 2: failed(2, "step", "ValueError: x")})
    assert first.job.ending is Phase.WAITING
    past = (Past("USER", 3, "rank 1: ValueError: x"),)
    second = turn(running(), live(), two_hosts(), {1: report(1), 2: failed(2, "step", "ValueError: x")}, past=past)
    assert second.job.ending is Phase.FAILED
    assert second.job.failure == {"kind": "USER", "text": "rank 1: ValueError: x", "step": 3, "traceback": "trace"}


def test_a_program_that_does_not_import_is_never_retried() -> None:
    decision = turn(job(Phase.LAUNCHING, generation=1), generation(), two_hosts(), {1: Starting(), 2: failed(2)})
    assert decision.job.ending is Phase.FAILED
    assert decision.job.reason == "USER: rank 1: it broke"


def test_exit_zero_in_the_middle() -> None:
    """Success is the end record; an exit code is not one, and twice at one step it is the program's fault."""
    gone = report(2, end=None)
    ended = replace(gone, report=_with_exit(gone, 0))
    first = turn(running(), live(), two_hosts(), {1: report(1), 2: ended})
    assert first.job.ending is Phase.WAITING
    past = (Past("RANK_CRASH", 0, "rank 1 ended with exit code 0 and no end record"),)
    second = turn(running(), live(), two_hosts(), {1: report(1), 2: ended}, past=past)
    assert second.job.ending is Phase.FAILED
    assert second.job.reason.startswith("USER")


def _with_exit(sight: Any, code: int) -> Any:
    import msgspec

    from workers.protocol import Exit

    return msgspec.structs.replace(sight.report, exit=Exit(code, None, False, ""))


def test_a_rank_killed_twice_at_one_step_is_not_the_programs_fault() -> None:
    past = (Past("RANK_CRASH", 5, "rank 1 ended with signal 9 and no end record"),)
    decision = turn(running(), live(), two_hosts(), {1: report(1), 2: killed(2, applied=5)}, past=past)
    assert decision.job.ending is Phase.WAITING


def test_a_lost_node_has_its_own_budget() -> None:
    gone = Dead("its node is gone", True, False)
    decision = turn(running(), live(), two_hosts(), {1: report(1), 2: gone})
    assert decision.generation is not None
    assert decision.generation.outcome == "NODE_LOST"


def test_a_host_that_was_there_and_is_unknown_is_lost() -> None:
    decision = turn(running(), live(), two_hosts(), {1: report(1)})
    assert decision.generation is not None
    assert decision.generation.outcome == "NODE_LOST"


def test_unreachable_is_not_dead() -> None:
    silent = replace(report(2), is_reachable=False)
    assert turn(running(), live(), two_hosts(), {1: report(1), 2: silent}).job.phase is Phase.RUNNING


def test_finished_during_partition() -> None:
    """The durable end record is read before anything is launched again."""
    waiting = turn(job(generation=1, reason="x"), seen=Seen({}, None, RESULT))
    assert (waiting.job.phase, waiting.job.result) == (Phase.SUCCEEDED, RESULT)
    dead = Dead("gone", True, False)
    lost = turn(running(), live(), two_hosts(), Seen({1: dead, 2: dead}, None, RESULT))
    assert lost.job.ending is Phase.SUCCEEDED


def test_an_end_waits_a_second_for_the_last_records() -> None:
    seen: dict[int, HostSeen] = {1: report(1, "saving"), 2: report(2, "saving")}
    early = turn(running(), live(), two_hosts(), Seen(seen, None, RESULT))
    assert early.job.phase is Phase.RUNNING
    late = turn(running(), early.generation, two_hosts(), Seen(seen, None, RESULT), now=at(3))
    assert late.job.ending is Phase.SUCCEEDED


def test_cancel_while_recovering() -> None:
    """A cancel is looked at before every launch and after it, and after the drain."""
    assert turn(job(desired_run="cancel")).job.phase is Phase.CANCELLED
    launching = turn(job(Phase.LAUNCHING, generation=1, desired_run="cancel"), generation(), two_hosts())
    assert launching.job.ending is Phase.CANCELLED
    gone = Dead("ended", False, True)
    draining = job(Phase.DRAINING, generation=1, ending=Phase.WAITING, desired_run="cancel", reason="x")
    ended = live(state=GenerationState.ENDED, ended_at=at(0))
    doomed = tuple(replace(item, state=HostState.DOOMED) for item in two_hosts())
    assert turn(draining, ended, doomed, {1: gone, 2: gone}).job.phase is Phase.CANCELLED


def test_hosts_must_be_seen_gone_before_anything_starts_again() -> None:
    draining = job(Phase.DRAINING, generation=1, ending=Phase.WAITING, reason="x")
    ended = live(state=GenerationState.ENDED, ended_at=at(0))
    doomed = tuple(replace(item, state=HostState.DOOMED) for item in two_hosts())
    unswept = turn(draining, ended, doomed, {1: Dead("ended", False, True), 2: Dead("died", False, False)})
    assert unswept.job.phase is Phase.DRAINING
    assert [item.state for item in unswept.hosts] == [HostState.GONE, HostState.DOOMED]
    node_gone = turn(draining, ended, doomed, {1: Dead("ended", False, True), 2: Dead("node", True, False)})
    assert node_gone.job.phase is Phase.WAITING


def test_a_rescale_saves_first_and_then_restarts() -> None:
    wish = running(step=5, desired_ranks=3)
    stopping = turn(wish, live(), two_hosts(), both(step=5), offer=Offer(("a",), "x"))
    assert stopping.generation is not None
    assert stopping.generation.is_stopping
    stopped = turn(stopping.job, stopping.generation, two_hosts(), both("stopped", step=6), now=at(2))
    assert stopped.job.phase is Phase.DRAINING
    assert stopped.generation is not None
    assert (stopped.generation.outcome, stopped.generation.ended_step) == ("RESCALE", 6)


def test_a_generation_that_redoes_steps_ends_where_it_stood_itself() -> None:
    wish = running(step=55, replaying_from=40)
    parked = turn(wish, live(is_stopping=True, stopping_since=at(0)), two_hosts(), both("stopped", step=41))
    assert parked.generation is not None
    assert (parked.generation.ended_step, parked.job.step) == (41, 55)
    assert "at step 41" in parked.job.reason
    crashed = turn(wish, live(), two_hosts(), {1: killed(1, step=43), 2: Dead("gone", False, True)})
    assert crashed.generation is not None
    assert crashed.generation.ended_step == 43


def test_a_generation_says_why_it_was_started_though_its_job_waited_for_room() -> None:
    crashed = turn(running(step=5), live(), two_hosts(), {1: report(1), 2: killed(2)})
    assert crashed.generation is not None
    waiting = job(generation=1, next_host=3)
    for state in (waiting, turn(waiting, crashed.generation, offer=NO_ROOM).job):
        again = turn(state, crashed.generation)
        assert again.generation is not None
        assert again.generation.why == "RANK_CRASH: rank 1 ended with signal 9 and no end record"
    stopped = turn(running(), live(is_stopping=True, stopping_since=at(0)), two_hosts(), both("stopped", step=6))
    again = turn(job(generation=1, next_host=3), stopped.generation, offer=Offer(("a",), "x"))
    assert again.generation is not None
    assert again.generation.why == "rescale from 2 to 2 ranks at step 6"
    assert "starting 1 rank (of 2 wanted)" in again.job.reason


def test_a_growth_without_room_says_so_and_trains_on() -> None:
    decision = turn(running(desired_ranks=4), live(), two_hosts(), both(), offer=Offer(("a",), "{cpu 1}; free: a 1"))
    assert decision.job.phase is Phase.RUNNING
    assert decision.generation is not None
    assert not decision.generation.is_stopping
    assert decision.job.reason == "2 ranks train; 4 wanted: needs 2 × {cpu 1}; free: a 1"


def test_a_start_that_takes_too_long_is_given_up() -> None:
    decision = turn(job(Phase.LAUNCHING, generation=1), generation(), two_hosts(), {1: Starting()}, now=at(301))
    assert decision.generation is not None
    assert decision.generation.outcome == "STARTUP"
    assert "host 1 starting, host 2 not there" in decision.generation.cause


def test_a_stop_that_takes_too_long_is_given_up() -> None:
    stopping = live(is_stopping=True, stopping_since=at(0))
    decision = turn(running(desired_ranks=1), stopping, two_hosts(), both(), now=at(121))
    assert decision.generation is not None
    assert decision.generation.outcome == "HANG"


def test_an_ended_job_is_never_touched() -> None:
    for phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED):
        before = job(phase, desired_run="cancel", desired_ranks=3)
        assert turn(before).job == before


def test_backoff_doubles() -> None:
    state = running()
    past = tuple(Past("RANK_CRASH", step, "other") for step in range(3))
    decision = turn(state, live(), two_hosts(), {1: report(1), 2: killed(2)}, past=past)
    assert decision.job.not_before == at(1 + 0.2 * 8)


def test_a_backoff_is_waited_for() -> None:
    state = job(generation=1, not_before=at(5), reason="again")
    assert turn(state).look_again == at(5)
    assert turn(state, now=at(5)).job.phase is Phase.LAUNCHING


def test_a_spec_with_one_rank_only_runs_with_one() -> None:
    alone = job(spec=spec(ranks={"initial": 1, "min": 1, "max": 1}))
    assert len(turn(alone).hosts) == 1
