"""Does the whole of Muster keep its promise? Real Ray, real ranks, a real database, over HTTP."""

import os
import signal
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from api.client import Client, MusterError
from service.settings import load_settings, service_mark
from service.supervisor import SERVICE
from tests.eventually import eventually
from tests.service_fixture import DIGITS, TINY, Muster, cli, listening, rank_trees
from workers.local import read_spec, run_local
from workers.phases import Phase, read_phase
from workers.process import folder_of, marked
from workers.sampling import Sampling
from workers.state import State, ids_digest

pytestmark = [pytest.mark.ray, pytest.mark.mindspore]
Json = dict[str, Any]


def undisturbed(code: Path, tmp_path: Path, **changes: Any) -> Json:
    """What one rank alone makes of the program, without any service."""
    ended = run_local(read_spec(code) | changes, code, 1, tmp_path)
    return {
        "weights_sha256": ended.result.weights_sha256,
        "ledger": ended.result.ledger,
        "samples": ended.result.samples,
    }


def expected_ledger(sampling: Sampling, steps: int) -> str:
    """The ledger of a job that fed each step's samples once, computed from the sampler alone."""
    state = State({}, ())
    for step in range(steps):
        shards = range(sampling.occupied(step))
        state.feed(tuple((shard, ids_digest(sampling.ids(step, shard))) for shard in shards), False)
    return state.ledger.hex()


def kill_in(muster: Muster, job: str, phase: Phase, step: int) -> None:
    """SIGKILL a rank once it has entered a phase of a step (or a later one)."""
    eventually(lambda: muster.client.job(job)["phase"] == "RUNNING" and muster.client.rows(job, "ranks"), 180)
    victim = muster.client.rows(job, "ranks")[-1]
    page = folder_of(load_settings(muster.home).scratch, job, victim["host"]) / "phase"

    def is_there() -> bool:
        now, at = read_phase(page)
        return now is phase and at >= step

    spin(is_there, 120.0)
    os.kill(victim["pid"], signal.SIGKILL)


def spin(is_true: Callable[[], bool], limit: float) -> None:
    """Look without a pause: phases last milliseconds."""
    until = time.monotonic() + limit
    while not is_true():
        assert time.monotonic() < until, "the phase was never seen"


def wait_step(muster: Muster, job: str, step: int) -> Json:
    def there() -> Json | None:
        found = muster.client.job(job)
        assert found["phase"] not in ("FAILED", "CANCELLED"), found["reason"]
        return found if found["phase"] == "RUNNING" and found["step"] >= step else None

    found = eventually(there, 300)
    assert found is not None
    return found


def test_two_kills_and_two_rescales_leave_no_trace(muster: Muster, tmp_path: Path) -> None:
    random = Random(20261201)
    first, second = 40 + random.randint(4, 30), 80 + random.randint(4, 30)
    job = muster.submit(DIGITS)
    kill_in(muster, job, Phase.SEND, first)
    wait_step(muster, job, first)
    kill_in(muster, job, Phase.COMPUTE, second)
    wait_step(muster, job, second + 1)
    muster.client.scale(job, 1)
    eventually(lambda: muster.client.job(job)["ranks"] == 1, 180)
    wait_step(muster, job, second + 10)
    muster.client.scale(job, 3)
    eventually(lambda: muster.client.job(job)["ranks"] == 3, 180)
    wait_step(muster, job, second + 11)
    muster.client.scale(job, 2)
    ended = muster.client.wait(job, 300)
    assert ended["phase"] == "SUCCEEDED", ended["reason"]

    alone = undisturbed(DIGITS, tmp_path)
    result = ended["result"]
    assert {name: result[name] for name in alone} == alone
    assert result["evaluation"]["eval_accuracy"] >= 0.97
    assert result["ledger"] == expected_ledger(Sampling(1498, 8, 16, 7), 240)
    generations = muster.client.rows(job, "generations")
    assert [row["outcome"] for row in generations][:2] == ["RANK_CRASH", "RANK_CRASH"]
    assert {"RESCALE", "FINISHED"} <= {row["outcome"] for row in generations}
    for crashed, after in pairwise(generations[:3]):
        assert after["from_step"] % 40 == 0
        assert crashed["ended_step"] - after["from_step"] >= 3
    for stopped, after in pairwise(generations):
        if stopped["outcome"] == "RESCALE":
            assert after["from_step"] == stopped["ended_step"], "a planned rescale redoes no committed step"
    points = muster.client.rows(job, "metrics", name="loss")
    assert [point["step"] for point in points] == list(range(1, 241))
    assert [row["epoch"] for row in muster.client.rows(job, "epochs")] == list(range(20))
    assert "DIVERGENCE" not in muster.kinds(job)


def test_a_kill_within_apply_leaves_no_trace(muster: Muster, tmp_path: Path) -> None:
    job = muster.submit(DIGITS, epochs=6)
    kill_in(muster, job, Phase.APPLY, 45)
    ended = muster.client.wait(job, 300)
    assert ended["phase"] == "SUCCEEDED", ended["reason"]
    alone = undisturbed(DIGITS, tmp_path, epochs=6)
    assert {name: ended["result"][name] for name in alone} == alone


def test_the_controller_is_killed_and_nothing_is_lost(muster: Muster) -> None:
    job = muster.submit(params={"fault": "slow"}, epochs=30)
    wait_step(muster, job, 3)
    before = [row["pid"] for row in muster.client.rows(job, "ranks")]
    for process in muster.processes("controller"):
        process.kill()
    assert muster.client.job(job)["phase"] == "RUNNING", "the API answers while the controller is dead"
    terms = eventually(lambda: muster.client.is_ready() and muster.processes("controller"), 20)
    assert terms
    wait_step(muster, job, 40)
    assert [row["pid"] for row in muster.client.rows(job, "ranks")] == before, "the ranks trained on and were adopted"
    ended = muster.client.wait(job, 300)
    assert (ended["phase"], ended["generation"]) == ("SUCCEEDED", 1)
    assert [p["step"] for p in muster.client.rows(job, "metrics", name="loss")] == list(range(1, ended["step"] + 1))


def test_the_controller_is_killed_while_it_launches(muster: Muster) -> None:
    job = muster.submit()
    eventually(lambda: muster.client.job(job)["phase"] == "LAUNCHING", 10)
    for process in muster.processes("controller"):
        process.kill()
    ended = muster.client.wait(job, 300)
    assert (ended["phase"], ended["generation"]) == ("SUCCEEDED", 1)


def test_the_api_is_killed_without_effect(muster: Muster) -> None:
    job = muster.submit(params={"fault": "slow"}, epochs=15)
    wait_step(muster, job, 2)
    for process in muster.processes("api"):
        process.kill()
    eventually(muster.client.is_ready, 20)
    ended = muster.client.wait(job, 300)
    assert (ended["phase"], ended["generation"]) == ("SUCCEEDED", 1)


def test_a_cancelled_job_leaves_nothing(muster: Muster, tmp_path: Path) -> None:
    lock = tmp_path / "device"
    job = muster.submit(params={"fault": "hold", "lock": str(lock)}, epochs=3000)
    wait_step(muster, job, 2)
    assert len(muster.rank_processes(job)) > 2, "the ranks' children carry the mark too"
    muster.client.cancel(job)
    assert muster.client.wait(job, 300)["phase"] == "CANCELLED"
    assert muster.rank_processes(job) == []
    assert not (load_settings(muster.home).scratch / job).exists()


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("import", "there_is_no_such_module"),
        ("build", "must return ctx.Program"),
        ("nan", "loss of shard"),
        ("raise", "ValueError: sample 50 is bad"),
        ("exit", "exit code 0 and no end record"),
    ],
)
def test_the_users_fault_ends_the_job_with_its_cause(muster: Muster, fault: str, words: str) -> None:
    job = muster.submit(params={"fault": fault})
    ended = muster.client.wait(job, 300)
    assert (ended["phase"], ended["failure"]["kind"]) == ("FAILED", "USER")
    assert words in ended["reason"]
    assert "peer" not in ended["reason"].lower()
    assert ended["generation"] == (2 if fault in ("raise", "exit") else 1)
    if fault != "exit":
        assert "Traceback" in ended["failure"]["traceback"]
    assert muster.rank_processes(job) == []


def test_newest_is_half_written(muster: Muster) -> None:
    """A flipped byte in the newest checkpoint: the one before is used, and an event names file and reason."""
    job = muster.submit(params={"fault": "slow"}, epochs=30)
    wait_step(muster, job, 25)
    for process in muster.processes("controller"):
        process.suspend()
    saves = sorted((load_settings(muster.home).storage / "jobs" / job / "saves").iterdir())
    piece = sorted(saves[-1].glob("*.safetensors"))[0]
    data = bytearray(piece.read_bytes())
    data[-1] ^= 1
    piece.write_bytes(data)
    os.kill(muster.client.rows(job, "ranks")[0]["pid"], signal.SIGKILL)
    for process in muster.processes("controller"):
        process.resume()
    ended = muster.client.wait(job, 300)
    assert ended["phase"] == "SUCCEEDED"
    skipped = [event["text"] for event in muster.client.rows(job, "events") if event["kind"] == "CHECKPOINT_SKIPPED"]
    assert len(skipped) == 1
    assert "another checksum" in skipped[0]
    assert piece.name in skipped[0]
    assert muster.client.rows(job, "generations")[1]["from_step"] > 0


def test_same_port_two_jobs(muster: Muster) -> None:
    jobs = [muster.submit(name=f"tiny-{number}") for number in range(2)]
    assert [muster.client.wait(job, 300)["phase"] for job in jobs] == ["SUCCEEDED", "SUCCEEDED"]


def test_a_job_that_does_not_fit_says_what_is_missing(muster: Muster) -> None:
    job = muster.submit(resources={"cpu": 4}, ranks={"initial": 2, "min": 2, "max": 2})
    found = eventually(lambda: (f := muster.client.job(job))["reason"].startswith("needs") and f, 10)
    assert isinstance(found, dict)
    assert found["phase"] == "WAITING"
    assert found["reason"] == "needs 2 × {cpu 4}; free: 127.0.0.1 cpu 6"
    muster.client.cancel(job)
    assert muster.client.wait(job, 10)["phase"] == "CANCELLED"


def test_the_commands_answer_a_script(muster: Muster) -> None:
    followed = cli(muster.home, "submit", str(TINY), "--follow")
    assert followed.returncode == 0, followed.stderr
    assert "SUCCEEDED" in followed.stdout
    failed = cli(muster.home, "submit", str(TINY), "--follow", "--set", 'params={"fault": "build"}')
    assert failed.returncode == 1
    refused = cli(muster.home, "submit", str(TINY), "--set", "shards=1")
    assert refused.returncode == 3
    assert "shards is 1, below ranks.max 4" in refused.stderr
    assert cli(muster.home, "status", "nobody").returncode == 3
    assert cli(muster.home, "submit").returncode == 2
    for words in (["jobs", "--json"], ["nodes", "--json"], ["jobs"], ["nodes"]):
        assert cli(muster.home, *words).returncode == 0
    assert cli(muster.home.parent / "elsewhere", "jobs").returncode == 4


def test_tokens_are_private_and_ranks_have_the_environment_of_their_spec_without_them(muster: Muster) -> None:
    tokens = {path.name: path.read_text() for path in muster.home.glob("*.token")}
    assert set(tokens) == {"user.token", "operator.token", "ray.token"}
    assert {path.stat().st_mode & 0o777 for path in muster.home.glob("*.token")} == {0o600}
    job = muster.submit(params={"fault": "slow"}, epochs=30, environment={"COLOUR": "red"})
    wait_step(muster, job, 1)
    for process in muster.rank_processes(job):
        assert process.environ()["COLOUR"] == "red"
        text = "\n".join(f"{name}={value}" for name, value in process.environ().items())
        assert not any(token in text for token in tokens.values())
        assert "RAY_" not in text
        assert "MUSTER_SERVICE" not in text
    muster.client.cancel(job)
    muster.client.wait(job, 300)


def test_everything_listens_on_loopback_only(muster: Muster) -> None:
    pids = {process.pid for process in marked(service_mark(muster.home), name=SERVICE)}
    pids |= {process.pid for process in rank_trees()}
    assert {address.removeprefix("::ffff:") for address, _ in listening(pids)} == {"127.0.0.1"}


def test_a_user_may_watch_but_not_scale(muster: Muster) -> None:
    job = muster.submit()
    with Client.of_home(muster.home, "user") as user:
        assert user.job(job)["id"] == job
        with pytest.raises(MusterError, match="operator's token"):
            user.scale(job, 3)
    muster.client.cancel(job)
    muster.client.wait(job, 300)
