"""What does a rank keep from its build to its end, and how does it live through one generation?

Everything that needs mindspore is made here once; groups are made per generation. It must not talk to the control plane
except through the desk.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec

from workers.collectives.host import form
from workers.collectives.links import Listener
from workers.desk import Desk
from workers.feed import Feed
from workers.lineage import result_key
from workers.model import Model, choose_threads
from workers.phases import PhasePage
from workers.probe import numeric_class, probe
from workers.program import Context, build
from workers.protocol import Plan, Result, Work
from workers.sampling import Sampling
from workers.state import State
from workers.step import Step
from workers.storage import Storage
from workers.trainer import Finished, Left, Stopped, Trainer

FORM_LIMIT = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A built program, its state as built, and what its bits depend on."""

    step: Step
    state: State
    numeric_class: dict[str, str]

    def probe(self, phases: PhasePage) -> dict[str, str]:
        """Run the probe (which also compiles)."""
        return probe(self.step, self.state, phases)


def prepare(work: Work) -> Prepared:
    """Build the program of `work`. ProgramError when it is not one."""
    choose_threads(work.threads)
    code = Path(work.code)
    context = Context(work.seed, work.params, code)
    program = build(work.entry, code, context)
    model = Model(program)
    feed = Feed(program.dataset, program, work.seed)
    sampling = Sampling(feed.length, work.shards, work.shard_batch, work.seed)
    state = State(model.views, model.weight_names())
    step = Step(model, feed, sampling, context, work.pace_seconds)
    return Prepared(step, state, numeric_class(code, feed, sampling, work.threads))


class Session:
    """A prepared rank that joins one generation after another."""

    def __init__(self, work: Work, prepared: Prepared, desk: Desk, storage: Storage, phases: PhasePage) -> None:
        self.work = work
        self._desk = desk
        self._storage = storage
        self._trainer = Trainer(work, prepared.step, prepared.state, desk, storage, phases)
        self._trainer.numeric_class = prepared.numeric_class

    def live(self, plan: Plan, rank: int, listener: Listener) -> bool:
        """Restore, form, train; say whether this rank is done for good. PeerLost when a member is gone."""
        self._trainer.restore(plan)
        group = form(plan, rank, listener, FORM_LIMIT)
        self._desk.interrupt_by(group.abort)
        try:
            outcome = self._trainer.run(plan, group)
        finally:
            self._desk.interrupt_by(None)
            group.close()
            self._trainer.leave()
        match outcome:
            case Finished(result):
                self._end(plan, result)
                return True
            case Stopped(step):
                self._desk.say(state="stopped", generation=plan.generation, step=step)
                return True
            case Left():
                return False

    def _end(self, plan: Plan, result: Result) -> None:
        """Write the durable end record, the same whoever writes it first, then report the end."""
        body = msgspec.to_builtins(result) | {"job": plan.job}
        self._storage.put(result_key(plan.job), json.dumps(body, sort_keys=True).encode())
        self._desk.say(state="finished", generation=plan.generation, result=result)
