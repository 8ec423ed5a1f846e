"""What is the next state of one job, and why?

Pure: committed rows, an offer of room, what was seen, and the time in; new rows and their reason out. It must not act:
effects are derived from the rows once they are committed.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from service.control.allocate import Offer
from service.control.draft import Decision, Draft
from service.control.ending import drain, ends_early, fail, leave_drained, result_of
from service.control.failure import Cause
from service.control.job import Generation, GenerationState, Host, Phase, Snapshot, in_ranks
from service.control.observation import Dead, Reporting, Seen, Starting, Unknown
from workers.protocol import RankReport


def decide(snapshot: Snapshot, offer: Offer, seen: Seen, now: datetime, secret: Callable[[], str]) -> Decision:
    """Decide one job's turn. `secret` draws the link secret of a new generation."""
    draft = Draft(snapshot.job, snapshot.generation, snapshot.hosts, seen, now, snapshot, [])
    match draft.job.phase:
        case Phase.WAITING:
            _waiting(draft, offer, secret)
        case Phase.LAUNCHING:
            _launching(draft)
        case Phase.RUNNING | Phase.REGROUPING:
            _running(draft, offer)
        case Phase.DRAINING:
            leave_drained(draft)
        case Phase.SUCCEEDED | Phase.FAILED | Phase.CANCELLED:
            pass
        case _ as never:
            assert_never(never)
    return Decision(draft.job, draft.generation, draft.hosts, tuple(draft.events), draft.look_again)


def _waiting(draft: Draft, offer: Offer, secret: Callable[[], str]) -> None:
    job = draft.job
    if draft.seen.result is not None:
        draft.move(
            Phase.SUCCEEDED, "the ranks left their end record while nobody watched", **result_of(draft.seen.result)
        )
    elif job.desired_run == "cancel":
        draft.move(Phase.CANCELLED, "cancelled before it ran on")
    elif job.not_before is not None and draft.now < job.not_before:
        draft.look_at(job.not_before)
    else:
        need = job.desired_ranks if job.desired_ranks is not None else job.spec.ranks.min
        count = min(job.target, len(offer.nodes))
        if count < need:
            reason = f"needs {need} × {offer.text}"
            if reason != job.reason:
                draft.job = replace(job, reason=reason)
                draft.say("WAITING", reason)
            return
        _plan(draft, offer.nodes[:count], secret())


def _plan(draft: Draft, nodes: tuple[str, ...], secret: str) -> None:
    job, number = draft.job, draft.job.generation + 1
    hosts = tuple(Host(job.next_host + rank, number, node) for rank, node in enumerate(nodes))
    why = "the first start" if draft.generation is None else draft.generation.ending
    draft.generation = Generation(
        number, GenerationState.PLANNED, tuple(host.number for host in hosts), why, draft.now, secret
    )
    draft.hosts = (*draft.hosts, *hosts)
    short = "" if len(nodes) >= job.target else f" (of {job.target} wanted)"
    draft.move(
        Phase.LAUNCHING, f"starting {in_ranks(len(nodes))}{short} as generation {number}",
        generation=number, next_host=job.next_host + len(nodes), not_before=None,
    )  # fmt: skip


def _launching(draft: Draft) -> None:
    if ends_early(draft):
        return
    deadline = draft.live.planned_at + timedelta(seconds=draft.job.spec.limits.start)
    if draft.now >= deadline:
        states = ", ".join(_state(draft.seen, number) for number in draft.live.hosts)
        fail(draft, Cause("STARTUP", f"not all ranks were ready in time ({states})", -1))
        return
    draft.look_at(deadline)
    seal = draft.seen.seal
    if draft.live.seal is None and seal is not None and seal.generation == draft.live.number:
        draft.generation = replace(draft.live, seal=seal.number)
    reports = draft.reports()
    if reports is None:
        return
    if not draft.live.addresses:
        _address(draft, reports)
    elif all(report.generation == draft.live.number and _trains(report) for report in reports):
        _go_live(draft, reports)


def _address(draft: Draft, reports: list[RankReport]) -> None:
    """All ranks are ready and the border is sealed: fix the plan, or refuse a rank of another class."""
    if draft.live.seal is None or not all(report.state == "ready" for report in reports):
        return
    probe = draft.job.probe or reports[0].probe
    numeric_class = draft.job.numeric_class or reports[0].numeric_class
    for rank, report in enumerate(reports):
        # The class first: it says why a probe differs.
        for name, mine, theirs in (("class", numeric_class, report.numeric_class), ("probe", probe, report.probe)):
            parts = sorted(part for part in {*mine, *theirs} if mine.get(part) != theirs.get(part))
            if parts:
                part = parts[0]
                text = f"rank {rank} is refused: its {name} differs in {', '.join(parts)}"
                text += f" ({part} is {theirs.get(part)!r}, the job's {mine.get(part)!r})"
                fail(draft, Cause("STARTUP", text, -1))
                return
    draft.job = replace(draft.job, probe=probe, numeric_class=numeric_class)
    draft.generation = replace(draft.live, addresses=tuple(report.address for report in reports))


def _go_live(draft: Draft, reports: list[RankReport]) -> None:
    starts = {report.restored.step if report.restored else -1 for report in reports}
    if len(starts) != 1:
        text = f"the ranks restored different steps: {sorted(starts)}"
        fail(draft, Cause("STARTUP", text, -1, is_final=True))
        return
    restored = reports[0].restored
    assert restored is not None, "a rank that trains has said what it restored"
    for skipped in restored.skipped:
        draft.say("CHECKPOINT_SKIPPED", skipped)
    from_step, job = restored.step, draft.job
    seconds = {name: max(report.seconds.get(name, 0.0) for report in reports)
               for name in ("import", "build", "probe", "load")}  # fmt: skip
    draft.generation = replace(
        draft.live, state=GenerationState.LIVE, live_at=draft.now, from_step=from_step, seconds=seconds
    )
    source = f"checkpoint {restored.lineage}, step {from_step}" if restored.lineage else "the beginning"
    draft.move(
        Phase.RUNNING, f"{_train(len(reports))} from {source}",
        replaying_from=from_step if from_step < job.step else None, steps_total=reports[0].steps_total,
    )  # fmt: skip
    _progress(draft, reports)


def _running(draft: Draft, offer: Offer) -> None:
    reports = draft.reports()
    if reports is not None:
        _progress(draft, reports)
    if ends_early(draft):
        return
    if draft.live.is_stopping:
        _await_stop(draft, reports)
    else:
        _rescale(draft, offer)


def _rescale(draft: Draft, offer: Offer) -> None:
    """Begin a change of the number of ranks, or say what it waits for."""
    job, count = draft.job, len(draft.live.hosts)
    missing = job.target - count - len(offer.nodes)
    if job.target == count:
        return
    if missing > 0:
        reason = f"{_train(count)}; {job.target} wanted: needs {job.target - count} × {offer.text}"
        # What a spec aims for may wait in silence; what an operator asked for may not.
        if reason != job.reason and job.desired_ranks is not None:
            draft.job = replace(job, reason=reason)
            draft.say("RESCALE", reason)
        return
    draft.generation = replace(draft.live, is_stopping=True, stopping_since=draft.now)
    draft.job = replace(job, reason=f"saving before the ranks go from {count} to {job.target}")
    draft.say("RESCALE", f"ranks {count} → {job.target}: saving at the next step, then starting anew")


def _await_stop(draft: Draft, reports: list[RankReport] | None) -> None:
    if reports is not None and all(report.state == "stopped" for report in reports):
        count = len(draft.live.hosts)
        drain(
            draft,
            Phase.WAITING,
            "RESCALE",
            f"rescale from {count} to {in_ranks(draft.job.target)} at step {draft.reached}",
        )
        return
    assert draft.live.stopping_since is not None
    deadline = draft.live.stopping_since + timedelta(seconds=draft.job.spec.limits.stop)
    if draft.now >= deadline:
        fail(draft, Cause("HANG", "the ranks did not stop within limits.stop", -1))
    else:
        draft.look_at(deadline)


def _progress(draft: Draft, reports: list[RankReport]) -> None:
    """Take over what the ranks committed; the shown step is a high-water mark."""
    mine = [report for report in reports if report.generation == draft.live.number]
    if not mine:
        return
    newest = max(mine, key=lambda report: report.step)
    job = draft.job
    if newest.step < job.step:
        return
    draft.job = replace(
        job, step=newest.step, epoch=newest.epoch, samples=newest.samples, metrics=dict(newest.metrics) or job.metrics,
        replaying_from=None if newest.step >= job.step and job.replaying_from is not None else job.replaying_from,
    )  # fmt: skip


def _train(count: int) -> str:
    return f"{in_ranks(count)} {'trains' if count == 1 else 'train'}"


def _trains(report: RankReport) -> bool:
    return report.state in ("training", "evaluating", "saving", "stopped", "finished")


def _state(seen: Seen, number: int) -> str:
    match seen.host(number):
        case Reporting(report):
            return f"host {number} {report.rank.state}"
        case Starting():
            return f"host {number} starting"
        case Dead(why, _, _):
            return f"host {number} dead: {why}"
        case Unknown():
            return f"host {number} not there"
