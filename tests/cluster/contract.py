"""What must every Cluster do? One suite; the fake and Ray each bring a stage for it."""

from abc import ABC, abstractmethod
from datetime import timedelta

from service.cluster.names import HostName
from service.cluster.port import Cluster, Order
from service.control.observation import Dead, HostSeen, Reporting
from service.control.spec import Resources
from tests.eventually import eventually
from workers.protocol import Cadence, HostReport, Member, Plan, Restore, Stop, Work

LIMIT = 180.0


class Stage(ABC):
    """Where a cluster is tested: it can be left and joined again, and things on it can be broken."""

    code: str
    storage: str

    @abstractmethod
    def join(self) -> Cluster:
        """A new controller's view of the same hosts."""

    @abstractmethod
    def pass_time(self) -> None:
        """Let a moment pass, where time does not pass by itself."""

    @abstractmethod
    def kill_rank(self, name: HostName) -> None:
        """Kill the rank process."""

    @abstractmethod
    def kill_host(self, name: HostName) -> None:
        """Kill the actor."""

    @abstractmethod
    def lose_node(self, node: str) -> None:
        """End a node, not gracefully."""

    def order(self, number: int, node: str, job: str = "j1", steps: int = 6) -> Order:
        """An order for a host that trains a few steps."""
        work = Work(
            job,
            number,
            self.code,
            "program:build",
            {},
            3,
            4,
            8,
            steps,
            None,
            1,
            Cadence(2, 0),
            0,
            0.0,
            self.storage,
            "",
            {},
        )
        return Order(work, node, Resources(), ())


def nodes(cluster: Cluster) -> list[str]:
    return [node.id for node in cluster.capacity().nodes if node.is_alive and node.total.get("CPU", 0) >= 1]


def sight(stage: Stage, cluster: Cluster, name: HostName, kind: type[HostSeen]) -> HostSeen:
    """Wait until a host is seen in a way."""

    def there() -> HostSeen | None:
        stage.pass_time()
        found = cluster.observe(name.job).get(name.number)
        return found if isinstance(found, kind) else None

    found = eventually(there, LIMIT)
    assert found is not None
    return found


def reported(stage: Stage, cluster: Cluster, name: HostName, *states: str) -> HostReport:
    """Wait until a host's rank is in one of the states."""

    def there() -> HostReport | None:
        stage.pass_time()
        found = cluster.observe(name.job).get(name.number)
        return found.report if isinstance(found, Reporting) and found.report.rank.state in states else None

    found = eventually(there, LIMIT)
    assert found is not None
    return found


def launched(stage: Stage, cluster: Cluster, *numbers: int) -> list[HostReport]:
    place = nodes(cluster)
    for number in numbers:
        cluster.launch(stage.order(number, place[number % len(place)]))
    return [reported(stage, cluster, HostName("j1", number), "ready") for number in numbers]


def ended(stage: Stage, cluster: Cluster, name: HostName, node: str) -> Dead:
    cluster.end(name, node)

    def there() -> Dead | None:
        stage.pass_time()
        found = cluster.observe(name.job).get(name.number)
        return found if isinstance(found, Dead) and (found.is_swept or found.node_lost) else None

    found = eventually(there, LIMIT)
    assert found is not None
    return found


def clear(stage: Stage, cluster: Cluster) -> None:
    for name in cluster.names():
        ended(stage, cluster, name, nodes(cluster)[0])


def check_launch_once_and_adopt(stage: Stage) -> None:
    """A host is launched once, named after its rows, and found again by the next controller with the same process."""
    cluster = stage.join()
    first = launched(stage, cluster, 1)[0]
    cluster.launch(stage.order(1, nodes(cluster)[0]))
    assert cluster.names() == (HostName("j1", 1),)
    cluster.close()
    again = stage.join()
    assert set(again.observe("j1")) == {1}
    adopted = reported(stage, again, HostName("j1", 1), "ready")
    assert adopted.rank.pid == first.rank.pid
    again.launch(stage.order(1, nodes(again)[0]))
    assert again.names() == (HostName("j1", 1),)
    clear(stage, again)
    again.close()


def check_training_and_drain(stage: Stage) -> None:
    """A plan is passed on and shown; news wakes; records are kept until acknowledged; a lower term is refused."""
    cluster = stage.join()
    reports = launched(stage, cluster, 1, 2)
    names = [HostName("j1", 1), HostName("j1", 2)]
    members = tuple(
        Member(rank, item.host, item.rank.address, rank * 2, rank * 2 + 2) for rank, item in enumerate(reports)
    )
    plan = Plan("j1", 1, 5, members, "ab" * 32, Restore(1))
    cluster.wait(timedelta(0))
    for name in names:
        cluster.tell(name, plan)
    for name in names:
        done = reported(stage, cluster, name, "finished")
        assert (done.term, done.generation, done.rank.step) == (5, 1, 6)
        assert done.rank.result is not None
    assert "j1" in cluster.wait(timedelta(seconds=5))
    old = Stop(1, 4)
    cluster.tell(names[0], old)
    stage.pass_time()
    assert reported(stage, cluster, names[0], "finished").stopping == 0, "a lower term is refused"

    batch = cluster.drain(names[0], 0)
    assert batch is not None
    losses = [record.step for record in batch.records if record.kind == "metric" and record.name == "loss"]
    assert losses == [1, 2, 3, 4, 5, 6]
    again = cluster.drain(names[0], 0)
    assert again == batch, "nothing is dropped before it is acknowledged"
    rest = cluster.drain(names[0], batch.last)
    assert rest is not None
    assert (rest.last, rest.records) == (batch.last, ())
    clear(stage, cluster)
    cluster.close()


def check_deaths(stage: Stage) -> None:
    """A killed rank is its host's news; a killed host is dead but not swept until it has been ended."""
    cluster = stage.join()
    launched(stage, cluster, 1, 2)
    first, second = HostName("j1", 1), HostName("j1", 2)
    stage.kill_rank(first)

    def has_exit() -> bool:
        stage.pass_time()
        found = cluster.observe("j1")[1]
        return isinstance(found, Reporting) and found.report.exit is not None and found.report.exit.signal == 9

    eventually(has_exit, LIMIT)
    stage.kill_host(second)
    dead = sight(stage, cluster, second, Dead)
    assert isinstance(dead, Dead)
    assert not dead.is_swept
    assert not dead.node_lost
    place = nodes(cluster)[0]
    assert ended(stage, cluster, second, place).is_swept
    assert ended(stage, cluster, first, place).is_swept
    assert cluster.names() == ()
    assert ended(stage, cluster, HostName("j1", 9), place).is_swept, "a host that never was is gone, too"
    cluster.forget("j1")
    assert cluster.observe("j1") == {}
    cluster.close()


def check_node_loss(stage: Stage) -> None:
    """A lost node takes its hosts with it, and says so."""
    cluster = stage.join()
    lost, kept = nodes(cluster)[:2]
    cluster.launch(stage.order(1, lost))
    cluster.launch(stage.order(2, kept))
    for number in (1, 2):
        reported(stage, cluster, HostName("j1", number), "ready")
    stage.lose_node(lost)
    name = HostName("j1", 1)
    sight(stage, cluster, name, Dead)
    assert ended(stage, cluster, name, lost).node_lost
    eventually(lambda: lost not in nodes(cluster), LIMIT)
    assert isinstance(cluster.observe("j1")[2], Reporting), "the other node's host is untouched"
    clear(stage, cluster)
    cluster.close()
