"""What runs while `muster up` is up?

Ray, the controller and the API, each a process of its own, started again when it ends. It must not know jobs.
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import structlog

from service.settings import ROLES, ROOT, Settings, service_mark
from workers.process import marks_below, sweep

SERVICE = "MUSTER_SERVICE"
"""Every process of an installation carries its mark in this variable (ranks carry their host's instead)."""
BACKOFF = (0.2, 5.0)
OBJECT_STORE = 80 << 20
GRACE = 10.0

log = structlog.get_logger()


@dataclass(slots=True)
class Service:
    """One supervised process: how it is started, and when it may be started again."""

    name: str
    command: list[str]
    popen: subprocess.Popen[bytes] | None = None
    failures: int = 0
    started: float = 0.0
    not_before: float = 0.0


@dataclass(slots=True)
class Supervisor:
    """The processes of one installation."""

    settings: Settings
    services: list[Service] = field(default_factory=list)
    is_ending: bool = False

    def run(self) -> int:
        """Keep everything up until SIGTERM or SIGINT; then leave nothing behind."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        # Whatever an earlier supervisor left when it was killed would hold ports, the lease and memory.
        sweep(service_mark(self.settings.home), name=SERVICE)
        self.services = _services(self.settings)
        try:
            while not self.is_ending:
                for service in self.services:
                    self._tend(service)
                time.sleep(0.1)
        finally:
            self._stop()
        return 0

    def _end(self, *_: object) -> None:
        self.is_ending = True

    def _tend(self, service: Service) -> None:
        now = time.monotonic()
        if service.popen is not None:
            if service.popen.poll() is None:
                return
            log.warning("a service ended", service=service.name, code=service.popen.returncode)
            service.failures = 0 if now - service.started > 30 else service.failures + 1
            service.not_before = now + min(BACKOFF[1], BACKOFF[0] * 2**service.failures)
            service.popen = None
            if service.name == "ray":
                self._ray_is_gone()
        if now >= service.not_before and (service.name == "ray" or self._ray_answers()):
            service.started = now
            service.popen = _start(service, self.settings)

    def _ray_answers(self) -> bool:
        host, _, port = self.settings.ray_address.partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=0.2):
            return True
        return False

    def _ray_is_gone(self) -> None:
        """The controller's driver belongs to the head that ended: both start anew."""
        for service in self.services:
            if service.name == "controller" and service.popen is not None:
                service.popen.kill()

    def _stop(self) -> None:
        for service in reversed(self.services):
            if service.popen is not None:
                service.popen.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    service.popen.wait(GRACE if service.name == "ray" else 3.0)
        sweep(service_mark(self.settings.home), name=SERVICE)
        # Ranks end with their hosts; what they started may not have.
        sweep(*marks_below(self.settings.scratch))
        shutil.rmtree(self.settings.ray_folder, ignore_errors=True)
        shutil.rmtree(self.settings.scratch, ignore_errors=True)


def _services(settings: Settings) -> list[Service]:
    python = [sys.executable, "-m", "service"]
    home = ["--home", str(settings.home)]
    return [
        Service("ray", _ray_command(settings)),
        Service("controller", [*python, "controller", *home]),
        Service("api", [*python, "api", *home]),
    ]


def _ray_command(settings: Settings) -> list[str]:
    host, _, port = settings.ray_address.partition(":")
    command = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--node-ip-address", host,
        "--port", port, "--include-dashboard", "false", "--disable-usage-stats", "--temp-dir", str(settings.ray_folder),
        "--object-store-memory", str(OBJECT_STORE), "--include-log-monitor", "false",
    ]  # fmt: skip
    if settings.cpus is not None:
        command += ["--num-cpus", f"{settings.cpus:g}"]
    if settings.resources:
        command += ["--resources", json.dumps(settings.resources)]
    return command


def _start(service: Service, settings: Settings) -> subprocess.Popen[bytes]:
    settings.logs.mkdir(parents=True, exist_ok=True)
    with (settings.logs / f"{service.name}.log").open("ab") as output:
        return subprocess.Popen(
            service.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env=service_environment(settings), cwd=settings.home,
        )  # fmt: skip


def service_environment(settings: Settings) -> dict[str, str]:
    """Return the environment of every service process: Ray on loopback, with its token, quick to see a dead node."""
    health = {"initial_delay_ms": "0", "period_ms": "500", "timeout_ms": "500", "failure_threshold": "3"}
    return os.environ | {
        SERVICE: service_mark(settings.home),
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "GLOG_v": "3",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(settings.home / "ray.token"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        **{f"RAY_health_check_{name}": value for name, value in health.items()},
    }


def prepare(settings: Settings) -> Settings:
    """Make the home folder, tokens (mode 0600) and free ports of an installation; what is there already stays."""
    settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    for role in (*ROLES, "ray"):
        path = settings.home / f"{role}.token"
        if not path.exists():
            _write_private(path, secrets.token_hex(32))
    settings = settings.model_copy(
        update={
            "api_port": settings.api_port or free_port(),
            "ray_address": settings.ray_address or f"127.0.0.1:{free_port()}",
        }
    )
    settings.save()
    return settings


def _write_private(path: Path, text: str) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(text)


def free_port() -> int:
    """Return a port of loopback that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_up(home: Path) -> int | None:
    """Return the process id of the supervisor of a home folder, or None when it is not up."""
    try:
        pid = int((home / "supervisor.pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    return pid if b"supervisor" in command and str(home).encode() in command else None


def start_detached(home: Path) -> int:
    """Start a supervisor in the background; return its process id."""
    (home / "logs").mkdir(parents=True, exist_ok=True)
    command, environment = _supervisor(home)
    with (home / "logs" / "supervisor.log").open("ab") as output:
        popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, env=environment,
            cwd=home,
        )  # fmt: skip
    (home / "supervisor.pid").write_text(str(popen.pid))
    return popen.pid


def become(home: Path) -> NoReturn:
    """Turn this process into the supervisor of a home folder."""
    (home / "supervisor.pid").write_text(str(os.getpid()))
    os.chdir(home)
    command, environment = _supervisor(home)
    os.execve(command[0], command, environment)


def _supervisor(home: Path) -> tuple[list[str], dict[str, str]]:
    command = [sys.executable, "-m", "service", "supervisor", "--home", str(home)]
    return command, os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}


def stop(pid: int, limit: float = 40.0) -> bool:
    """Ask a supervisor to end, and wait for it; False when it did not within `limit` seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    return wait_until(lambda: _has_ended(pid), limit)


def _has_ended(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def wait_until(is_true: Callable[[], bool], limit: float) -> bool:
    """Look several times a second until something is true; False after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
