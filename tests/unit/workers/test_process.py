"""Is a rank's whole tree found and ended, and what does it inherit?"""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

from tests.eventually import eventually
from workers.environment import MARK, environment
from workers.process import marked, sweep

HOLD = """
import fcntl, os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        handle = open(sys.argv[1], "w")
        fcntl.flock(handle, fcntl.LOCK_EX)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


def can_lock(path: Path) -> bool:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def test_orphans_hold_the_device(tmp_path: Path) -> None:
    """A child that daemonised itself and holds a lock goes with its tree; the lock is free for the next start."""
    lock, mark = tmp_path / "device", f"test-{os.getpid()}-h1"
    lock.touch()
    parent = subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], env=os.environ | {MARK: mark})
    eventually(lambda: not can_lock(lock))
    parent.kill()
    parent.wait()
    assert not can_lock(lock), "the orphan holds it"
    assert len(marked(mark)) == 1
    assert sweep(mark)
    assert can_lock(lock)
    assert marked(mark) == []


def test_another_hosts_tree_is_left_alone() -> None:
    mine, other = f"test-{os.getpid()}-h1", f"test-{os.getpid()}-h11"
    processes = [subprocess.Popen(["sleep", "60"], env=os.environ | {MARK: mark}) for mark in (mine, other)]
    try:
        eventually(lambda: marked(mine) and marked(other))
        assert sweep(mine)
        assert marked(mine) == []
        assert processes[1].poll() is None
        assert sweep(mine, other)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_rank_inherits_only_what_is_listed() -> None:
    outer = {"PATH": "/bin", "MUSTER_TOKEN": "t", "AWS_SECRET": "s", "RAY_AUTH_TOKEN": "r", "CUDA_VISIBLE_DEVICES": "1"}
    made = environment(outer, {}, "j-h1")
    assert made["PATH"] == "/bin"
    assert made["CUDA_VISIBLE_DEVICES"] == "1"
    assert made[MARK] == "j-h1"
    assert not {"MUSTER_TOKEN", "AWS_SECRET", "RAY_AUTH_TOKEN"} & set(made)


def test_a_spec_chooses_over_what_is_inherited_but_not_over_what_equal_bits_rest_on() -> None:
    chosen = {"TZ": "Asia/Shanghai", "ONEDNN_MAX_CPU_ISA": "AVX2", "GLOG_v": "1", "PYTHONHASHSEED": "5", MARK: "other"}
    made = environment({"TZ": "UTC", "ONEDNN_MAX_CPU_ISA": "SSE41", MARK: "host"}, chosen, "j-h1")
    assert (made["TZ"], made["ONEDNN_MAX_CPU_ISA"], made["GLOG_v"]) == ("Asia/Shanghai", "AVX2", "1")
    assert (made["PYTHONHASHSEED"], made[MARK]) == ("0", "j-h1")
