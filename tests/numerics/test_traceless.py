"""Does the number of ranks, an aborted step or a used process leave a trace? Real training, bit by bit."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.numerics.runs import DIGITS, GPT, train, train_wrapped
from workers.local import LocalResult
from workers.sampling import Sampling
from workers.state import State, ids_digest

pytestmark = [pytest.mark.mindspore]
SHORT: dict[Path, dict[str, Any]] = {DIGITS: {"epochs": 3}, GPT: {"steps": 4}}
"""Digits: 36 steps, each epoch's last with a partial shard. GPT: four of its steps."""


@cache
def alone(code: Path, folder: Path) -> LocalResult:
    """One rank, undisturbed: what every other run must equal."""
    return train(code, 1, folder / f"alone-{code.name}", **SHORT[code])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("numerics")


@pytest.mark.parametrize("again", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("code", [DIGITS, GPT], ids=lambda code: code.name)
def test_any_number_of_ranks_gives_the_same_weights(
    code: Path, ranks: int, again: int, tmp_path: Path, shared: Path
) -> None:
    ended = train(code, ranks, tmp_path, **SHORT[code])
    assert ended.result.weights_sha256 == alone(code, shared).result.weights_sha256
    assert ended.result.ledger == alone(code, shared).result.ledger
    assert ended.result.evaluation == alone(code, shared).result.evaluation


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_a_process_that_trained_something_else_gives_the_same_weights(ranks: int, tmp_path: Path, shared: Path) -> None:
    ended = train_wrapped(DIGITS, ranks, tmp_path, wrap={"used": True}, **SHORT[DIGITS])
    assert ended.result.weights_sha256 == alone(DIGITS, shared).result.weights_sha256


def test_a_used_process_gives_the_same_gpt(tmp_path: Path, shared: Path) -> None:
    ended = train_wrapped(GPT, 2, tmp_path, wrap={"used": True}, **SHORT[GPT])
    assert ended.result.weights_sha256 == alone(GPT, shared).result.weights_sha256


ABORTS = [
    ["FETCH", 2],
    ["COMPUTE", 4],
    ["SEND", 6],
    ["GATHER", 8],
    ["APPLY", 10],
    ["FETCH", 11],
    ["SEND", 11],
    ["IDLE", 20],
]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_step_aborted_and_redone_at_every_point_leaves_no_trace(ranks: int, tmp_path: Path, shared: Path) -> None:
    """Every rank drops the step at each point once; step 11 is an epoch's tail and is dropped twice."""
    ended = train_wrapped(DIGITS, ranks, tmp_path, wrap={"aborts": ABORTS}, **SHORT[DIGITS])
    assert ended.generations > len(ABORTS) - 2
    assert ended.result.weights_sha256 == alone(DIGITS, shared).result.weights_sha256
    assert ended.result.ledger == alone(DIGITS, shared).result.ledger


def test_another_dropout_seed_changes_the_weights(tmp_path: Path, shared: Path) -> None:
    ended = train_wrapped(DIGITS, 1, tmp_path, wrap={"shift_dropout": True}, **SHORT[DIGITS])
    assert ended.result.weights_sha256 != alone(DIGITS, shared).result.weights_sha256
    assert ended.result.ledger == alone(DIGITS, shared).result.ledger


@pytest.mark.parametrize("ranks", [1, 3])
def test_each_shard_of_each_step_is_computed_once(ranks: int, tmp_path: Path) -> None:
    ended = train(DIGITS, ranks, tmp_path, **SHORT[DIGITS])
    sampling = Sampling(1498, 8, 16, 7)
    computed = sum(report.seconds["step_shards"] for report in ended.reports)
    assert computed == sum(sampling.occupied(step) for step in range(36))


def test_the_ledger_is_made_of_each_sample_once_an_epoch(shared: Path) -> None:
    sampling, state = Sampling(1498, 8, 16, 7), State({}, ())
    epochs: list[str] = []
    for step in range(36):
        ids = [sampling.ids(step, shard) for shard in range(sampling.occupied(step))]
        whole = state.feed(
            tuple((shard, ids_digest(part)) for shard, part in enumerate(ids)), sampling.ends_epoch(step)
        )
        epochs += [whole.hex()] if whole else []
    fed = [record.name for record in alone(DIGITS, shared).records if record.kind == "epoch"]
    assert alone(DIGITS, shared).result.ledger == state.ledger.hex()
    assert fed == epochs
    assert alone(DIGITS, shared).result.samples == 3 * 1498
    used = np.concatenate([sampling.ids(step, shard) for step in range(12) for shard in range(8)])
    assert sorted(used.tolist()) == list(range(1498))


def test_dataset_not_divisible(shared: Path) -> None:
    """The tail of an epoch is smaller, is used once, and is the same for every number of ranks (above)."""
    sampling = Sampling(1498, 8, 16, 7)
    assert sampling.occupied(11) < 8
    assert 0 < len(sampling.ids(11, sampling.occupied(11) - 1)) < 16
    losses = [record.step for record in alone(DIGITS, shared).records if record.name == "loss"]
    assert losses == list(range(1, 37))
