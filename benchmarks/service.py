"""How does a benchmark get a Muster of its own? Up on free ports in a temporary folder, and down again."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from api.client import Client
from service.settings import ROOT, service_mark
from service.supervisor import SERVICE
from workers.local import read_spec
from workers.process import marked

MLP, DIGITS = ROOT / "benchmarks" / "programs" / "mlp", ROOT / "examples" / "digits"
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Service:
    """A running Muster."""

    home: Path
    client: Client

    def submit(self, code: Path, **spec: Any) -> str:
        """Submit a program; return the job's id."""
        plain = {"name": "bench", "program": "program:build", "checkpoint": {"every_seconds": 0},
                 "environment": environment_of(code)}  # fmt: skip
        job: str = self.client.submit(plain | spec, code)["id"]
        return job

    def finish(self, job: str) -> Json:
        """Wait for the job's success and return its last generation. RuntimeError when it fails."""
        ended = self.client.wait(job, 600)
        if ended["phase"] != "SUCCEEDED":
            raise RuntimeError(ended["reason"])
        return self.client.rows(job, "generations")[-1]

    def cpu_seconds(self) -> float:
        """CPU time of all service processes, Ray's and the hosts' among them, ranks left out."""
        total = 0.0
        for process in marked(service_mark(self.home), name=SERVICE):
            try:
                times = process.cpu_times()
            except psutil.Error:
                continue
            total += times.user + times.system
        return total


def environment_of(code: Path) -> dict[str, str]:
    """Return the environment that a program's job.yaml asks for; empty when it has none."""
    chosen: dict[str, str] = read_spec(code).get("environment", {}) if (code / "job.yaml").exists() else {}
    return chosen


@contextmanager
def running(cpus: int) -> Iterator[Service]:
    """Bring a Muster up for a benchmark."""
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as folder:
        home = Path(folder)
        _cli(home, "up", "--cpus", str(cpus))
        try:
            with Client.of_home(home) as client:
                yield Service(home, client)
        finally:
            _cli(home, "down")


def _cli(home: Path, *words: str) -> None:
    environment = os.environ | {"MUSTER_HOME": str(home), "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", "api.cli", *words], env=environment, check=True, capture_output=True)
