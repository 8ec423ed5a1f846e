"""What does a plain MindSpore script report when msrun runs it on this machine?"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from service.supervisor import free_port
from workers.process import sweep

LOOPBACK = "127.0.0.1"
RUN_MARK = "MSRUN_PEER_RUN"
TRIES = 3
LOG_TAIL_LINES = 40


class MsrunError(RuntimeError):
    """An msrun job that gave no report; the message ends with the tail of its logs."""


def msrun_command(script: str, ranks: int, args: Sequence[str], folder: Path, timeout: timedelta) -> list[str]:
    """The command line that runs the script on this machine alone and waits for it."""
    options = {
        "--worker_num": str(ranks),
        "--local_worker_num": str(ranks),
        "--master_addr": LOOPBACK,
        "--master_port": str(free_port()),
        "--log_dir": str(folder / "logs"),
        "--cluster_time_out": str(max(1, int(timeout.total_seconds()))),
        "--join": "True",
        "--tail_worker_log": str(ranks),  # names no worker, so that msrun starts no `tail -f`
    }
    words = [word for pair in options.items() for word in pair]
    msrun = Path(sys.executable).with_name("msrun")
    return [str(msrun), *words, str(Path(script).resolve()), *args, "--out", str(folder / "report.json")]


def msrun_environment(env: Mapping[str, str] | None, mark: str) -> dict[str, str]:
    """The caller's environment, with `python` being this interpreter, since msrun takes it from PATH."""
    merged = {"GLOG_v": "3", **os.environ, **(env or {}), RUN_MARK: mark}
    merged["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), merged.get("PATH", os.defpath)])
    return merged


def end_run(msrun: subprocess.Popen[bytes], mark: str) -> None:
    """Kill what is left of the run: the group of msrun, and the workers, which msrun puts in groups of their own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(msrun.pid, signal.SIGKILL)
    msrun.wait()
    sweep(mark, name=RUN_MARK)


def log_tail(folder: Path) -> str:
    """The last lines of every log of the run."""
    parts = []
    for path in [folder / "msrun.log", *sorted((folder / "logs").glob("*.log"))]:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        parts.append("\n".join([f"--- {path.name}", *lines[-LOG_TAIL_LINES:]]))
    return "\n".join(parts)


def wait_for_report(command: Sequence[str], environment: Mapping[str, str], folder: Path, timeout: timedelta) -> str:
    """Run msrun to its end or to the deadline, leave no process behind, and say how it ended."""
    work = folder / "work"
    work.mkdir()
    with (folder / "msrun.log").open("wb") as log:
        msrun = subprocess.Popen(
            command, cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return f"ended with code {msrun.wait(timeout.total_seconds())}"
        except subprocess.TimeoutExpired:
            return f"did not end in {timeout.total_seconds():g} s"
        finally:
            end_run(msrun, environment[RUN_MARK])


def run_patiently(
    script: str, ranks: int, args: Sequence[str], timeout: timedelta, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run the script, again when it gave no report: MCCL's first AllReduce at times waits for a peer and gives up."""
    for left in range(TRIES - 1, -1, -1):
        try:
            return run_msrun(script, ranks, args, timeout, env)
        except MsrunError:
            if left == 0:
                raise
    raise AssertionError("the last try returns or raises")


def run_msrun(
    script: str, ranks: int, args: Sequence[str], timeout: timedelta, env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Run the script on `ranks` local ranks, and give back the JSON that its rank 0 wrote to --out."""
    with tempfile.TemporaryDirectory(prefix="msrun-") as name:
        folder = Path(name)
        command = msrun_command(script, ranks, args, folder, timeout)
        environment = msrun_environment(env, uuid.uuid4().hex)
        ending = wait_for_report(command, environment, folder, timeout)
        report = folder / "report.json"
        if ending != "ended with code 0" or not report.exists():
            raise MsrunError(f"msrun of {script} on {ranks} ranks {ending}\n{log_tail(folder)}")
        parsed: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
        return parsed
