"""One Muster for the tests that need a real one: started as a user would, and looked at after its end."""

import os
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from api.client import Client
from service.settings import ROOT, load_settings, service_mark
from service.supervisor import SERVICE
from workers.environment import MARK
from workers.process import marked

TINY = ROOT / "tests" / "programs" / "tiny"
DIGITS = ROOT / "examples" / "digits"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Muster:
    """A running service, its home folder and its client."""

    home: Path
    client: Client

    def submit(self, code: Path = TINY, **changes: Any) -> str:
        """Submit a program of the tests or examples; return the job's id."""
        spec = yaml.safe_load((code / "job.yaml").read_text()) | changes
        job: str = self.client.submit(spec, code)["id"]
        return job

    def processes(self, part: str) -> list[psutil.Process]:
        """The service's processes that run `python -m service PART`."""
        mark = service_mark(self.home)
        return [item for item in marked(mark, name=SERVICE) if ["-m", "service", part] == item.cmdline()[1:4]]

    def kinds(self, job: str) -> list[str]:
        """The kinds of a job's events, in order."""
        return [event["kind"] for event in self.client.rows(job, "events")]

    def rank_processes(self, job: str) -> list[psutil.Process]:
        """Everything that carries the mark of one of the job's hosts."""
        return [item for item in rank_trees() if item.environ().get(MARK, "").startswith(f"{job}-h")]


def rank_trees() -> list[psutil.Process]:
    """Every live process with a host's mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if MARK in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def listening(of: Collection[int] | None = None) -> set[tuple[str, int]]:
    """Every address and port on which something listens, on this machine or of some processes."""
    found = (item for item in psutil.net_connections("tcp") if item.status == psutil.CONN_LISTEN)
    return {(str(item.laddr[0]), int(item.laddr[1])) for item in found if item.laddr and (of is None or item.pid in of)}


def cli(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the CLI as a user would."""
    environment = os.environ | {"MUSTER_HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "160"}
    return subprocess.run(
        [sys.executable, "-m", "api.cli", *words], env=environment, text=True, capture_output=True, check=False
    )


def leftovers(home: Path) -> list[str]:
    """What a Muster that went down has left: processes, sockets, folders."""
    settings = load_settings(home)
    left = [f"process {item.pid} {item.name()}" for item in marked(service_mark(home), name=SERVICE)]
    left += [f"rank {item.pid}" for item in rank_trees()]
    left += [str(path) for path in (settings.ray_folder, settings.scratch) if path.exists()]
    left += [str(path) for path in settings.storage.rglob("*.staging")]
    ports = {settings.api_port, int(settings.ray_address.partition(":")[2])}
    left += [f"port {port}" for _, port in listening() if port in ports]
    return left
