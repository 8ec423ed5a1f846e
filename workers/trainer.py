"""How does a rank go through its steps within one generation?

One loop over steps and the verdicts of regroup.py; every exception of a peer's loss ends the generation and leaves the
state as after the last applied step. It must not import mindspore or decide memberships.
"""

import statistics
import time
from collections import deque
from dataclasses import dataclass, replace

import msgspec

from workers.agree import agree
from workers.checkpoint import Save, Saver, load_newest
from workers.collectives.port import Group
from workers.collectives.tree import TreeReduce
from workers.desk import Desk
from workers.errors import DivergenceError
from workers.evaluation import evaluate
from workers.metrics import in_order, means, refuse_not_finite
from workers.phases import Phase, PhasePage
from workers.protocol import Header, Plan, Record, Restored, Result, ShardRecord, Work
from workers.regroup import GoOn, LeaveFor, StopHere, Verdict, after_step, committed
from workers.state import State
from workers.step import Clock, Step
from workers.storage import Storage

RECENT = 500
"""Steps whose seconds are kept for their medians."""
CARRIED = 10_000
"""The most records that a checkpoint carries, the newest: older ones were taken over from the host long ago."""


@dataclass(frozen=True, slots=True)
class Finished:
    """All steps are committed and the final checkpoint is published."""

    result: Result


@dataclass(frozen=True, slots=True)
class Stopped:
    """All members left after this step, saved."""

    step: int


@dataclass(frozen=True, slots=True)
class Left:
    """All members left after this step for a newer plan."""

    step: int


Outcome = Finished | Stopped | Left


class Trainer:
    """One rank's training across generations; the state lives here, groups come and go."""

    def __init__(self, work: Work, step: Step, state: State, desk: Desk, storage: Storage, phases: PhasePage) -> None:
        self.work = work
        self.step = step
        self.state = state
        self.desk = desk
        self.storage = storage
        self.phases = phases
        self.numeric_class: dict[str, str] = {}
        self.steps_total = work.steps or (work.epochs or 1) * step.sampling.steps_per_epoch
        self._saver = Saver(storage, self._published)
        self._pending: list[tuple[int, Record]] = []
        # What a checkpoint carries, so that a host lost with its outbox leaves no gap: the records since the last save.
        self._unsaved: deque[Record] = deque(maxlen=CARRIED)
        self._in_save: tuple[Record, ...] = ()
        self._saved_at = time.monotonic()
        self._saved_step = -1
        self._restored = False
        self._evaluation: dict[str, float] = {}
        self._recent: deque[Clock] = deque(maxlen=RECENT)

    def restore(self, plan: Plan) -> None:
        """Load the plan's checkpoint into a state that has not trained yet."""
        if self._restored or self.state.step:
            return
        began = time.monotonic()
        loaded = load_newest(self.storage, self.work.job, plan.restore.below)
        if loaded.number:
            self._check_head(loaded.head)
            self.state.write(loaded.tensors)
            self.state.step = loaded.step
            self.state.ledger = bytes.fromhex(loaded.head["ledger"])
            self.state.epoch_ledger = bytes.fromhex(loaded.head["epoch_ledger"])
            self._saved_step = loaded.step
        self._restored = True
        seconds = self.desk.report.seconds | {"load": time.monotonic() - began}
        restored = Restored(loaded.number, loaded.step, loaded.skipped)
        self.desk.say(restored=restored, applied=loaded.step, step=loaded.step, seconds=seconds)

    def run(self, plan: Plan, group: Group) -> Outcome:
        """Train in this generation until it ends. PeerLost when a peer is gone: the state stays as last applied."""
        me = plan.members[group.rank]
        ranges = tuple((member.begin, member.end) for member in plan.members)
        tree = TreeReduce(group, self.step.model.layout, ranges)
        report = self.desk.report
        fresh = report.restored if report.generation == 0 else None
        agree(self.state, group, tree, self._header(plan), fresh)
        self._pending = [item for item in self._pending if item[0] <= self.state.step]
        self._saved_at = time.monotonic()
        self.desk.say(state="training", generation=plan.generation, applied=self.state.step,
                      steps_total=self.steps_total)  # fmt: skip
        while self.state.step < self.steps_total:
            verdict = self._one_step(plan, group, tree, (me.begin, me.end))
            self._evaluate_when_due(plan, tree, (me.begin, me.end))
            match verdict:
                case StopHere():
                    return self._stop(plan, group, tree)
                case LeaveFor():
                    self._commit(tree.talk(self._header(plan)), plan)
                    return Left(self.state.step)
                case GoOn(save):
                    if save or self._steps_due():
                        self._save(plan, group)
        return self._finish(plan, group, tree, (me.begin, me.end))

    def leave(self) -> None:
        """Drop what belongs to the generation just left."""
        self._saver.give_up()
        self._saved_step = -1
        self._unsaved = deque((*self._in_save, *self._unsaved), CARRIED)
        self._in_save = ()

    def _one_step(self, plan: Plan, group: Group, tree: TreeReduce, shards: tuple[int, int]) -> Verdict:
        began = time.perf_counter()
        index, clock = self.state.step, self.step.clock
        before, then = replace(clock), (tree.exchanging, tree.adding, group.waiting)
        computed = self.step.compute(index, shards, self.phases, lambda: None)
        mine = dict(computed.sums)
        try:
            occupied = self.step.sampling.occupied(index)
            header = self._header(plan, computed.records)
            self.phases.enter(Phase.SEND, index)
            totals = tree.collect(header, occupied, mine)
            self._commit(totals.headers, plan)
            records = in_order(totals.headers)
            refuse_not_finite(index, records, plan, group.rank)
            self.phases.enter(Phase.GATHER, index)
            tree.finish(self._header(plan), occupied, mine, totals, self.step.model.reduced)
        finally:
            self.step.release(list(mine.values()))
        self.phases.enter(Phase.APPLY, index)
        self._apply(plan, records)
        self.phases.enter(Phase.IDLE, self.state.step)
        clock.exchange += tree.exchanging - then[0]
        clock.add += tree.adding - then[1]
        clock.wait += group.waiting - then[2]
        clock.whole += time.perf_counter() - began
        clock.steps += 1
        self._recent.append(clock.since(before))
        return after_step(plan.generation, totals.headers)

    def _apply(self, plan: Plan, records: tuple[ShardRecord, ...]) -> None:
        sampling, index = self.step.sampling, self.state.step
        self.step.apply()
        fed = tuple((record.shard, record.ids) for record in records)
        epoch = self.state.feed(fed, sampling.ends_epoch(index))
        self.state.step = index + 1
        for name, value in means(records).items():
            self._later(plan, "metric", name, value)
        if epoch is not None:
            self._later(plan, "epoch", epoch.hex(), float(sampling.epoch_of(index)))

    def _later(self, plan: Plan, kind: str, name: str, value: float) -> None:
        """Keep a record until its step is committed."""
        record = Record(kind, plan.generation, self.state.step, name, value)
        self._pending.append((self.state.step, record))
        self._unsaved.append(record)

    def _commit(self, headers: tuple[Header, ...], plan: Plan) -> None:
        """All members have applied this many steps: say so, and release the records of those steps."""
        step = committed(headers)
        due = [record for at, record in self._pending if at <= step]
        self._pending = [item for item in self._pending if item[0] > step]
        self.desk.record(*due)
        metrics = {record.name: record.value for record in due if record.kind == "metric"}
        sampling = self.step.sampling
        epoch = sampling.epoch_of(max(step - 1, 0))
        self.desk.say(state="training", generation=plan.generation, step=step, applied=self.state.step, epoch=epoch,
                      samples=sampling.samples_before(step), metrics=self.desk.report.metrics | metrics)  # fmt: skip

    def _header(self, plan: Plan, records: tuple[ShardRecord, ...] = ()) -> Header:
        generation = plan.generation
        save = bool(records) and records[0].shard == 0 and self._seconds_due()
        save = save or (bool(records) and self.desk.take_save(generation))
        stop = self.desk.stop_asked(generation)
        return Header(
            self.state.step, self.state.step, max(generation, self.desk.newest_plan()), stop, save, b"", records
        )

    def _seconds_due(self) -> bool:
        every = self.work.checkpoint.every_seconds
        return every > 0 and time.monotonic() - self._saved_at >= every

    def _steps_due(self) -> bool:
        every = self.work.checkpoint.every_steps
        return every > 0 and self.state.step % every == 0

    def _save(self, plan: Plan, group: Group) -> None:
        if self._saved_step == self.state.step:
            return
        self.phases.enter(Phase.SAVE, self.state.step)
        sampling = self.step.sampling
        head = {
            "samples": sampling.samples_before(self.state.step),
            "ledger": self.state.ledger.hex(),
            "epoch_ledger": self.state.epoch_ledger.hex(),
            "evaluation": self._evaluation,
            "sampling": self._sampling(),
            "class": self.numeric_class,
            "records": msgspec.to_builtins(tuple(self._unsaved)),
        }
        self._in_save = tuple(self._unsaved)
        self._unsaved.clear()
        save = Save(self.work.job, self.state.step, plan.generation, group.rank, group.size, head)
        self._saver.begin(save, self.state.arrays)
        self._saved_at, self._saved_step = time.monotonic(), self.state.step
        self.phases.enter(Phase.IDLE, self.state.step)

    def _sampling(self) -> dict[str, int]:
        sampling = self.step.sampling
        return {"length": sampling.length, "shards": sampling.shards, "shard_batch": sampling.shard_batch,
                "seed": sampling.seed}  # fmt: skip

    def _check_head(self, head: dict[str, object]) -> None:
        if head["sampling"] != self._sampling():
            raise DivergenceError(f"the checkpoint was made with sampling {head['sampling']}, not {self._sampling()}")

    def _published(self, save: Save, number: int) -> None:
        """Called by the saver's thread: the checkpoint stands."""
        self.desk.record(Record("checkpoint", save.generation, save.step, "", float(number)))
        self.desk.say(saved=number)
        self.desk.flush()

    def _stop(self, plan: Plan, group: Group, tree: TreeReduce) -> Stopped:
        """Close the generation at an agreed step: all have applied it, and it is saved."""
        self._commit(tree.talk(self._header(plan)), plan)
        self.desk.say(state="saving")
        self._save(plan, group)
        self._wait_saved(tree, plan)
        return Stopped(self.state.step)

    def _wait_saved(self, tree: TreeReduce, plan: Plan) -> None:
        self.phases.enter(Phase.SAVE, self.state.step)
        self._saver.wait()
        # Nobody ends before the publisher has published: it waits for the pieces of all.
        tree.talk(self._header(plan))

    def _evaluate_when_due(self, plan: Plan, tree: TreeReduce, shards: tuple[int, int]) -> None:
        every = self.work.evaluate_every
        if every > 0 and self.state.step % every == 0 and self.state.step < self.steps_total:
            self._evaluate(plan, tree, shards)

    def _evaluate(self, plan: Plan, tree: TreeReduce, shards: tuple[int, int]) -> None:
        if self.step.model.program.evaluate is None:
            return
        self.phases.enter(Phase.EVALUATE, self.state.step)
        self.desk.say(state="evaluating")
        records = evaluate(self.step.model, self.work.shards, self.work.shard_batch, shards)
        headers = tree.talk(msgspec.structs.replace(self._header(plan), shards=records))
        self._evaluation = means(in_order(headers), prefix="eval_")
        for name, value in self._evaluation.items():
            self._later(plan, "metric", name, value)
        self._commit(headers, plan)

    def _tell_clock(self) -> None:
        """Report where the seconds of a step went: medians over the newest steps, since some compile a new shape."""
        clock = self.step.clock
        counts = {"step_steps": float(clock.steps), "step_shards": float(clock.shards)}
        parts = {
            f"step_{name}": statistics.median(getattr(item, name) for item in self._recent)
            for name in (*clock.__slots__, "over") if self._recent and name not in ("steps", "shards")
        }  # fmt: skip
        if len(self._recent) > 1:
            counts["step_p95"] = statistics.quantiles((item.whole for item in self._recent), n=20)[-1]
        self.desk.say(seconds=self.desk.report.seconds | counts | parts)

    def _finish(self, plan: Plan, group: Group, tree: TreeReduce, shards: tuple[int, int]) -> Finished:
        self._commit(tree.talk(self._header(plan)), plan)
        self._evaluate(plan, tree, shards)
        self.desk.say(state="saving")
        self._save(plan, group)
        self._wait_saved(tree, plan)
        self._tell_clock()
        result = Result(
            self.state.step, self.step.sampling.samples_before(self.state.step), self._evaluation,
            self.state.weights_sha256(), self.state.ledger.hex(), self.desk.report.saved,
        )  # fmt: skip
        return Finished(result)
