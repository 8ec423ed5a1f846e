"""Does the fake keep the contract of a Cluster?"""

from pathlib import Path
from random import Random

import pytest

from service.cluster.names import HostName
from service.cluster.port import Cluster
from tests.cluster import contract
from tests.fakes.world import FakeCluster, World
from workers.storage import FolderStorage


class FakeStage(contract.Stage):
    code = storage = ""

    def __init__(self, folder: Path) -> None:
        self.world = World(FolderStorage(folder), Random(1), {"a": 2.0, "b": 2.0})

    def join(self) -> Cluster:
        return FakeCluster(self.world)

    def pass_time(self) -> None:
        self.world.advance()

    def kill_rank(self, name: HostName) -> None:
        self.world.kill_rank(name)

    def kill_host(self, name: HostName) -> None:
        self.world.kill_host(name)

    def lose_node(self, node: str) -> None:
        self.world.lose_node(node)


@pytest.fixture
def stage(tmp_path: Path) -> FakeStage:
    return FakeStage(tmp_path)


def test_a_host_is_launched_once_and_adopted(stage: FakeStage) -> None:
    contract.check_launch_once_and_adopt(stage)


def test_ranks_train_and_their_records_are_drained(stage: FakeStage) -> None:
    contract.check_training_and_drain(stage)


def test_deaths_are_seen(stage: FakeStage) -> None:
    contract.check_deaths(stage)


def test_a_lost_node_is_seen(stage: FakeStage) -> None:
    contract.check_node_loss(stage)
