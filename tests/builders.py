"""Small builders, so that a test names only what it is about."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from service.control.job import Generation, GenerationState, Host, Job, Phase
from service.control.observation import Capacity, Node, Reporting
from service.control.spec import JobSpec
from workers.protocol import Exit, Failure, HostReport, RankReport, Restored

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DIGEST = "0" * 64


def at(seconds: float) -> datetime:
    """The start of the test's time plus so many seconds."""
    return NOW + timedelta(seconds=seconds)


def spec(**changes: Any) -> JobSpec:
    """A spec of two ranks (one to four), four shards and twelve steps."""
    body: dict[str, Any] = {
        "name": "job", "program": "program:build", "bundle": DIGEST, "shards": 4, "shard_batch": 8, "steps": 12,
        "ranks": {"initial": 2, "min": 1, "max": 4}, "checkpoint": {"every_steps": 4, "every_seconds": 0},
    }  # fmt: skip
    return JobSpec.model_validate(body | changes)


def job(phase: Phase = Phase.WAITING, **changes: Any) -> Job:
    """A job in a phase."""
    values: dict[str, Any] = {"id": "j1", "spec": spec(), "created": NOW, "phase": phase}
    return Job(**(values | changes))


def generation(number: int = 1, hosts: tuple[int, ...] = (1, 2), **changes: Any) -> Generation:
    """A planned generation."""
    values: dict[str, Any] = {
        "number": number, "state": GenerationState.PLANNED, "hosts": hosts, "why": "a test", "planned_at": NOW,
        "secret": "ab" * 32,
    }  # fmt: skip
    return Generation(**(values | changes))


def live(number: int = 1, hosts: tuple[int, ...] = (1, 2), **changes: Any) -> Generation:
    """A generation that trains."""
    values: dict[str, Any] = {
        "state": GenerationState.LIVE, "seal": 1, "addresses": tuple(f"127.0.0.1:{1000 + host}" for host in hosts),
        "live_at": NOW, "from_step": 0,
    }  # fmt: skip
    return generation(number, hosts, **(values | changes))


def host(number: int, generation: int = 1, node: str = "a") -> Host:
    """A wanted host."""
    return Host(number, generation, node)


def report(
    number: int, state: str = "training", *, told: int = 1, end: Exit | None = None, **changes: Any
) -> Reporting:
    """What a host says whose rank is in `state` of generation `told`."""
    values: dict[str, Any] = {
        "state": state, "generation": told, "address": f"127.0.0.1:{1000 + number}", "pid": 100 + number,
        "probe": {"result": "p"}, "numeric_class": {"device": "CPU"}, "restored": Restored(0, 0, ()), "steps_total": 12,
    }  # fmt: skip
    rank = RankReport(**(values | changes))
    return Reporting(HostReport(number, 1, "a", 1, told, 0, rank, end, 0))


def killed(number: int, signal: int = 9, **changes: Any) -> Reporting:
    """What a host says whose rank was ended by a signal."""
    return report(number, end=Exit(None, signal, False, ""), **changes)


def failed(
    number: int, kind: str = "user", summary: str = "it broke", step: int = 3, trace: str = "trace"
) -> Reporting:
    """What a host says whose rank reported a failure."""
    return report(number, "failed", failure=Failure(kind, summary, trace, step))


def capacity(**cpus: float) -> Capacity:
    """Nodes by name with so many CPUs."""
    return Capacity(tuple(Node(name, f"node-{name}", {"CPU": amount}) for name, amount in cpus.items()))


def write(folder: Path, **files: str) -> Path:
    """A folder of Python files by module name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder
