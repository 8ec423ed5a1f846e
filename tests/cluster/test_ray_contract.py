"""Does Ray, as the cluster room uses it, keep the contract of a Cluster?"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.cluster.names import HostName
from service.cluster.port import Cluster
from service.control.observation import Reporting
from service.settings import ROOT
from tests.cluster import contract
from tests.service_fixture import TINY
from workers import bundle
from workers.storage import open_storage

pytestmark = [pytest.mark.ray, pytest.mark.mindspore]
HEALTH = {"initial_delay_ms": 0, "period_ms": 500, "timeout_ms": 500, "failure_threshold": 3}


class RayStage(contract.Stage):
    """A head without CPUs and nodes of two, all on this machine."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster as RayNodes

        Path("/tmp/ray").mkdir(exist_ok=True)
        config = {f"health_check_{name}": value for name, value in HEALTH.items()}
        self.folder = folder
        self.ray = RayNodes(initialize_head=True, head_node_args={"num_cpus": 0, "_system_config": config, **_small()})
        self.nodes: dict[str, Any] = {}
        self.storage = str(folder / "storage")
        digest, data = bundle.pack(TINY)
        open_storage(self.storage).put(bundle.key(digest), data)
        self.code = digest
        for _ in range(2):
            self.add_node()
        self.cluster: Cluster | None = None

    def add_node(self) -> None:
        made = self.ray.add_node(num_cpus=2, **_small())
        self.nodes[made.node_id] = made

    def join(self) -> Cluster:
        from service.cluster.ray_cluster import RayCluster

        self.cluster = RayCluster(self.ray.address, self.folder / "scratch")
        return self.cluster

    def pass_time(self) -> None:
        return

    def rank(self, name: HostName) -> psutil.Process:
        assert self.cluster is not None
        found = self.cluster.observe(name.job)[name.number]
        assert isinstance(found, Reporting)
        return psutil.Process(found.report.rank.pid)

    def kill_rank(self, name: HostName) -> None:
        self.rank(name).kill()

    def kill_host(self, name: HostName) -> None:
        parent = self.rank(name).parent()
        assert parent is not None
        parent.kill()

    def lose_node(self, node: str) -> None:
        made = self.nodes.pop(node)
        raylet = made.all_processes["raylet"][0].process
        raylet.kill()
        # Unreaped, the raylet would be a zombie and its workers would live on.
        raylet.wait()

    def close(self) -> None:
        self.ray.shutdown()


def _small() -> dict[str, Any]:
    return {"object_store_memory": 80 << 20, "include_dashboard": False, "node_ip_address": "127.0.0.1"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayStage]:
    kept = dict(os.environ)
    os.environ |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled", "GLOG_v": "3",
                   "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}  # fmt: skip
    made = RayStage(tmp_path_factory.mktemp("ray"))
    yield made
    made.close()
    os.environ.clear()
    os.environ.update(kept)


def test_a_host_is_launched_once_and_adopted(stage: RayStage) -> None:
    contract.check_launch_once_and_adopt(stage)


def test_ranks_train_and_their_records_are_drained(stage: RayStage) -> None:
    contract.check_training_and_drain(stage)


def test_deaths_are_seen(stage: RayStage) -> None:
    contract.check_deaths(stage)


def test_a_lost_node_is_seen(stage: RayStage) -> None:
    contract.check_node_loss(stage)
