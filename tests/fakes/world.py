"""A world for the control plane alone: nodes, hosts and ranks that only count, over a real storage folder.

It outlives controllers, as Ray does. It must never stand in for training: what ranks compute is tested with real ranks.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from service.cluster.names import HostName
from service.cluster.port import Order
from service.control.observation import Capacity, Dead, HostSeen, Node, Reporting, Starting
from service.errors import ClusterAway
from workers.lineage import Checkpoint, counting, publish, read_lineage, result_key
from workers.outbox import Outbox
from workers.protocol import (
    Batch,
    Command,
    Exit,
    Failure,
    HostReport,
    Lost,
    Plan,
    RankReport,
    Record,
    Restored,
    Result,
    Stop,
)
from workers.storage import Storage

KILLED = Exit(None, 9, False, "")


@dataclass
class FakeHost:
    """A host with a rank that counts steps. `has_tree`: its processes are there."""

    order: Order
    rank: RankReport = field(default_factory=RankReport)
    plan: Plan | None = None
    term: int = 0
    stopping: int = 0
    exit: Exit | None = None
    seq: int = 1
    is_dead: bool = False
    has_tree: bool = True
    outbox: Outbox = field(default_factory=Outbox)
    unsaved: list[Record] = field(default_factory=list)

    def say(self, **changes: Any) -> None:
        """Change the rank's report."""
        fields = {name: getattr(self.rank, name) for name in self.rank.__struct_fields__}
        self.rank = RankReport(**(fields | changes))
        self.seq += 1

    @property
    def is_well(self) -> bool:
        """Whether the rank can go on."""
        return not self.is_dead and self.exit is None and self.rank.failure is None

    def report(self) -> HostReport:
        """What the host would say now."""
        generation = self.plan.generation if self.plan else 0
        return HostReport(
            self.order.work.host, self.seq, self.order.node, self.term, generation, self.stopping, self.rank, self.exit,
            len(self.outbox),
        )  # fmt: skip


class World:
    """Nodes and hosts; `advance` lets a moment pass."""

    def __init__(self, storage: Storage, random: Random, cpus: Mapping[str, float]) -> None:
        self.storage, self.random = storage, random
        self.nodes = {name: Node(name, f"node-{name}", {"CPU": amount}) for name, amount in cpus.items()}
        self.hosts: dict[HostName, FakeHost] = {}
        self.pending: list[tuple[HostName, str]] = []
        self.is_away = False
        self.bugs: dict[str, int] = {}
        """Jobs whose program raises at a step."""
        self.launched: list[HostName] = []
        self.done: dict[tuple[str, int], set[int]] = {}
        """Generations that committed each (job, step)."""

    def alive(self, node: str) -> bool:
        """Whether the node is there."""
        return node in self.nodes and self.nodes[node].is_alive

    def kill_rank(self, name: HostName) -> None:
        """The rank process is killed."""
        host = self.hosts[name]
        if host.exit is None and not host.is_dead:
            host.exit = KILLED
            host.seq += 1

    def kill_host(self, name: HostName) -> None:
        """The actor dies; what its rank started may stay."""
        self.hosts[name].is_dead = True

    def lose_node(self, node: str) -> None:
        """The node goes, with all its processes."""
        known = self.nodes[node]
        self.nodes[node] = Node(node, known.name, known.total, is_alive=False)
        for host in self.hosts.values():
            if host.order.node == node:
                host.is_dead, host.has_tree = True, False

    def return_nodes(self) -> None:
        """Every node is there again, empty."""
        self.nodes = {name: Node(name, node.name, node.total) for name, node in self.nodes.items()}

    def advance(self) -> None:
        """Let a moment pass: endings are done, starts go on, groups form, train, save and end."""
        for name, node in self.pending:
            self._finish_end(name, node)
        self.pending = []
        for host in self.hosts.values():
            if host.is_well and host.rank.state == "starting" and self.random.random() < 0.7:
                number = host.order.work.host
                host.say(
                    state="ready", address=f"127.0.0.1:{9000 + number}", pid=100 + number, probe={"result": "same"},
                    numeric_class={"device": "CPU"},
                )  # fmt: skip
        plans = [host.plan for host in self.hosts.values() if host.plan is not None]
        for plan in {(plan.job, plan.generation): plan for plan in plans}.values():
            self._live(plan)

    def _finish_end(self, name: HostName, node: str) -> None:
        host = self.hosts.get(name)
        if host is not None and (self.alive(node) or not host.has_tree):
            host.is_dead, host.has_tree = True, False

    def _live(self, plan: Plan) -> None:
        hosts = [self.hosts.get(HostName(plan.job, member.host)) for member in plan.members]
        group = [host for host in hosts if host is not None and host.plan and host.plan.generation == plan.generation]
        if any(host.rank.state in ("finished", "stopped") for host in group):
            return
        if len(group) < len(plan.members) or not all(host.is_well for host in group):
            for host in group:
                if host.is_well and host.rank.state in ("training", "ready") and len(group) == len(plan.members):
                    host.say(state="parked", generation=plan.generation, lost=Lost((0,), "closed its connection"))
            return
        if group[0].rank.state in ("ready", "parked"):
            self._restore(plan, group)
        else:
            self._train(plan, group)

    def _restore(self, plan: Plan, group: list[FakeHost]) -> None:
        entries = counting(read_lineage(self.storage, plan.job, plan.restore.below))
        found = [entry for entry in entries if isinstance(entry, Checkpoint)]
        step, number = (found[-1].step, found[-1].number) if found else (0, 0)
        for host in group:
            host.say(
                state="training", generation=plan.generation, step=step, applied=step,
                steps_total=host.order.work.steps, restored=Restored(number, step, ()),
            )  # fmt: skip

    def _train(self, plan: Plan, group: list[FakeHost]) -> None:
        total = group[0].order.work.steps or 0
        for _ in range(self.random.randint(0, 3)):
            step = group[0].rank.step
            if step >= total:
                break
            if self.bugs.get(plan.job) == step:
                group[-1].say(state="failed", failure=Failure("step", "ValueError: a bug", "Traceback: a bug", step))
                return
            self._commit(plan, group, step + 1)
        if any(host.stopping >= plan.generation for host in group):
            self._save(plan, group)
            for host in group:
                host.say(state="stopped")
        elif group[0].rank.step >= total:
            self._end(plan, group)

    def _commit(self, plan: Plan, group: list[FakeHost], step: int) -> None:
        self.done.setdefault((plan.job, step), set()).add(plan.generation)
        point = Record("metric", plan.generation, step, "loss", 1.0 / step)
        group[0].unsaved.append(point)
        for host in group:
            host.outbox.add((point,))
            host.say(step=step, applied=step, samples=step * 32)
        if step % max(1, group[0].order.work.checkpoint.every_steps) == 0:
            self._save(plan, group)

    def _save(self, plan: Plan, group: list[FakeHost]) -> None:
        step = group[0].rank.step
        body = {"kind": "checkpoint", "job": plan.job, "step": step, "generation": plan.generation, "pieces": []}
        body["head"] = {"records": msgspec.to_builtins(group[0].unsaved)}
        group[0].unsaved = []
        number = publish(self.storage, plan.job, body)
        group[0].outbox.add((Record("checkpoint", plan.generation, step, "", float(number)),))

    def _end(self, plan: Plan, group: list[FakeHost]) -> None:
        self._save(plan, group)
        step = group[0].rank.step
        body = {"steps": step, "samples": step * 32, "weights_sha256": f"w{step}", "evaluation": {}, "ledger": "l"}
        self.storage.put(result_key(plan.job), json.dumps(body).encode())
        # A rank may die between the durable record and its last word.
        for host in group:
            if self.random.random() < 0.8:
                host.say(state="finished", result=Result(step, step * 32, {}, f"w{step}", "l", 0))
                host.exit = Exit(0, None, False, "")
            else:
                host.exit = KILLED
            host.seq += 1


class FakeCluster:
    """The Cluster over a World, for the life of one controller."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[HostName, HostSeen] = {}
        self._told: dict[HostName, int] = {}
        for name in self.names():
            self._known[name] = Starting()

    def capacity(self) -> Capacity:
        """See Cluster.capacity."""
        if self._world.is_away:
            raise ClusterAway("the fake is away")
        return Capacity(tuple(self._world.nodes.values()))

    def observe(self, job: str) -> Mapping[int, HostSeen]:
        """See Cluster.observe."""
        self._look()
        return {name.number: sight for name, sight in self._known.items() if name.job == job}

    def names(self) -> tuple[HostName, ...]:
        """See Cluster.names."""
        self.capacity()
        return tuple(sorted(name for name, host in self._world.hosts.items() if not host.is_dead))

    def launch(self, order: Order) -> None:
        """See Cluster.launch."""
        name = order.name
        known = self._world.hosts.get(name)
        if known is None or (known.is_dead and name not in self._known):
            is_there = self._world.alive(order.node)
            self._world.hosts[name] = FakeHost(order, is_dead=not is_there, has_tree=is_there)
            self._world.launched.append(name)
        self._known.setdefault(name, Starting())

    def end(self, name: HostName, node: str) -> None:
        """See Cluster.end."""
        if name not in self._world.hosts or not self._world.hosts[name].has_tree:
            self._bury(name, node)
        else:
            self._world.pending.append((name, node))
            self._known.setdefault(name, Starting())

    def tell(self, name: HostName, command: Command) -> None:
        """See Cluster.tell."""
        host = self._world.hosts.get(name)
        if host is None or host.is_dead:
            return
        generation = host.plan.generation if host.plan else 0
        if command.term < host.term or command.generation < generation:
            return
        host.term = command.term
        match command:
            case Plan():
                host.plan = command
            case Stop():
                host.stopping = command.generation
            case _:
                pass
        host.seq += 1

    def drain(self, name: HostName, after: int) -> Batch | None:
        """See Cluster.drain."""
        host = self._world.hosts.get(name)
        return None if host is None or host.is_dead else host.outbox.after(after)

    def wait(self, limit: timedelta) -> frozenset[str]:
        """See Cluster.wait; the world does not move meanwhile."""
        self._look()
        news = set()
        for name, sight in self._known.items():
            mark = sight.report.seq if isinstance(sight, Reporting) else -1 if isinstance(sight, Dead) else 0
            if self._told.get(name) != mark:
                self._told[name] = mark
                news.add(name.job)
        return frozenset(news)

    def forget(self, job: str) -> None:
        """See Cluster.forget."""
        self._known = {name: sight for name, sight in self._known.items() if name.job != job or not _is_dead(sight)}

    def close(self) -> None:
        """See Cluster.close."""

    def _bury(self, name: HostName, node: str) -> None:
        is_there = self._world.alive(node)
        self._known[name] = Dead("ended" if is_there else "its node is gone", not is_there, is_there)

    def _look(self) -> None:
        for name, host in self._world.hosts.items():
            known = self._known.get(name)
            if _is_dead(known) and (known.is_swept or known.node_lost):  # type: ignore[union-attr]
                continue
            if not host.is_dead:
                self._known[name] = Reporting(host.report())
            elif known is not None:
                is_swept = not host.has_tree and self._world.alive(host.order.node)
                self._known[name] = Dead("its actor died", not self._world.alive(host.order.node), is_swept)


def _is_dead(sight: HostSeen | None) -> bool:
    return isinstance(sight, Dead)
