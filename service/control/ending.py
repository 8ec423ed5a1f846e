"""How does a generation end, and where does its job go from there?

Pure: by the end record, a cancel, a cause, or symptoms without one. It must not plan the next generation.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from service.control.draft import Draft
from service.control.failure import Cause, budget_in_words, delay, find_cause, symptoms, within_budget
from service.control.job import GenerationState, HostState, Phase
from service.control.observation import Dead, Reporting

SYMPTOM_WAIT = timedelta(seconds=1)


def ends_early(draft: Draft) -> bool:
    """See to a finish, a cancel or a failure; say whether the generation ended by one."""
    finished = [report.rank.result for number in draft.live.hosts
                if isinstance(here := draft.seen.host(number), Reporting)
                and (report := here.report).rank.result is not None]  # fmt: skip
    if draft.seen.result is not None:
        _finish(draft, draft.seen.result)
    elif draft.job.desired_run == "cancel":
        drain(draft, Phase.CANCELLED, "CANCELLED", "cancelled by its user")
    elif finished:
        # The record is durable before it is reported; it is read from storage in the next turn.
        draft.look_at(draft.now)
    elif (cause := find_cause(draft.live, draft.seen, draft.snapshot.past)) is not None:
        fail(draft, cause)
    elif (text := symptoms(draft.live, draft.seen)) is not None:
        _await_cause(draft, text)
    else:
        return False
    return True


def _finish(draft: Draft, result: Mapping[str, Any]) -> None:
    """The end record is there; ranks that have not said so yet have a second to hand their last records to the host."""
    late = [number for number in draft.live.hosts
            if isinstance(here := draft.seen.host(number), Reporting)
            and here.is_reachable and here.report.exit is None and here.report.rank.result is None]  # fmt: skip
    due = _grace(draft)
    if late and draft.now < due:
        draft.look_at(due)
    else:
        first = draft.seen.host(draft.live.hosts[0])
        if isinstance(first, Reporting):
            clock = {name: value for name, value in first.report.rank.seconds.items() if name.startswith("step_")}
            draft.generation = replace(draft.live, seconds=draft.live.seconds | clock)
        drain(draft, Phase.SUCCEEDED, "FINISHED", "all steps are done", **result_of(result))


def _grace(draft: Draft) -> datetime:
    """Return until when hosts may still say what this turn lacks: a second from the first turn that lacked it."""
    since = draft.live.symptom_at or draft.now
    draft.generation = replace(draft.live, symptom_at=since)
    return since + SYMPTOM_WAIT


def _await_cause(draft: Draft, text: str) -> None:
    """Only symptoms so far: the host of the lost rank has a second to report what happened."""
    due = _grace(draft)
    if draft.now >= due:
        fail(draft, Cause("RANK_CRASH", f"no host reported the cause; {text}", -1))
    else:
        draft.look_at(due)


def fail(draft: Draft, cause: Cause) -> None:
    """End the generation by a failure; the job tries again when its budget allows."""
    past, spec = draft.snapshot.past, draft.job.spec
    is_over = cause.is_final or not within_budget(spec, cause.kind, past)
    failure = {"kind": cause.kind, "text": cause.text, "step": cause.step, "traceback": cause.traceback}
    counted = budget_in_words(draft.snapshot, cause.kind)
    if is_over:
        reason = f"{cause.kind}: {cause.text}" + ("" if cause.is_final else f" ({counted})")
        drain(draft, Phase.FAILED, cause.kind, reason, cause, failure=failure)
    else:
        wait = delay(spec, cause.kind, past)
        reason = f"{cause.kind}: {cause.text} ({counted}); starting again from the newest checkpoint"
        drain(draft, Phase.WAITING, cause.kind, reason, cause, not_before=draft.now + wait)


def drain(draft: Draft, ending: Phase, outcome: str, reason: str, cause: Cause | None = None, **changes: Any) -> None:
    """End the generation, doom its hosts, and leave the phase `ending` for when they are gone."""
    seconds = dict(draft.live.seconds)
    draft.generation = replace(
        draft.live, state=GenerationState.ENDED, ended_at=draft.now, ended_step=draft.reached, outcome=outcome,
        cause=reason if cause is None else cause.text,
        seconds=seconds | ({"cause_step": cause.step} if cause is not None else {}),
    )  # fmt: skip
    draft.hosts = tuple(
        replace(host, state=HostState.DOOMED) if host.state is HostState.WANTED else host for host in draft.hosts
    )
    draft.move(Phase.DRAINING, reason, ending=ending, replaying_from=None, **changes)


def leave_drained(draft: Draft) -> None:
    """Once every host is seen gone, go where the end of the generation leads."""
    hosts = []
    for host in draft.hosts:
        seen = draft.seen.host(host.number)
        is_gone = isinstance(seen, Dead) and (seen.is_swept or seen.node_lost)
        hosts.append(replace(host, state=HostState.GONE) if is_gone else host)
    draft.hosts = tuple(hosts)
    if any(host.state is not HostState.GONE for host in draft.hosts):
        return
    ending = draft.job.ending or Phase.WAITING
    if ending is Phase.WAITING and draft.job.desired_run == "cancel":
        ending = Phase.CANCELLED
    draft.move(ending, draft.job.reason, ending=None)


def result_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a job's row that its end record implies."""
    return {"result": dict(body), "step": int(body["steps"]), "samples": int(body["samples"])}
