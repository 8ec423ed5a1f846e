"""Do the examples learn, and does an independent script come to the same numbers?"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from service.settings import ROOT
from tests.numerics.runs import DIGITS, GPT, train, train_wrapped
from workers.checkpoint import load_newest
from workers.local import read_spec
from workers.storage import open_storage

pytestmark = [pytest.mark.mindspore, pytest.mark.slow]


def test_plain_mindspore_agrees_over_twenty_steps(tmp_path: Path) -> None:
    target = tmp_path / "reference.npz"
    script = ROOT / "tests" / "numerics" / "reference.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"GLOG_v": "3"} | read_spec(DIGITS)["environment"]
    subprocess.run([sys.executable, "-P", str(script), str(target)], check=True, cwd=tmp_path, env=environment)
    plain = {"dropout": 0.0, "momentum": 0.02}
    train_wrapped(DIGITS, 2, tmp_path / "ours", wrap=plain, epochs=None, steps=20)
    loaded = load_newest(open_storage(str(tmp_path / "ours" / "storage")), "local", below=2)
    assert loaded.step == 20
    with np.load(target) as reference:
        assert len(reference.files) == 14
        for name in reference.files:
            ours, theirs = loaded.tensors[name], reference[name]
            distance = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
            assert distance <= 1e-5, f"{name} is {distance:.1e} away"


def trigram_loss(training: np.ndarray, held_out: np.ndarray, letters: int) -> float:  # type: ignore[type-arg]
    """Held-out loss (nats a character) of a trigram model that backs off to bigrams and unigrams."""
    three = np.zeros((letters, letters, letters))
    np.add.at(three, (training[:-2], training[1:-1], training[2:]), 1)
    two = three.sum(0)
    one = two.sum(0)
    unigram = (one + 0.1) / (one.sum() + 0.1 * letters)
    bigram = (two + 20 * unigram) / (two.sum(1, keepdims=True) + 20)
    trigram = (three + 10 * bigram[None]) / (three.sum(2, keepdims=True) + 10)
    return float(-np.log(trigram[held_out[:-2], held_out[1:-1], held_out[2:]]).mean())


def test_the_gpt_is_better_than_a_trigram_model(tmp_path: Path) -> None:
    from pydoc_data.topics import topics

    whole = "\n".join(topics[name] for name in sorted(topics))
    alphabet = {letter: code for code, letter in enumerate(sorted(set(whole)))}
    codes = np.array([alphabet[letter] for letter in whole])
    border = len(codes) * 9 // 10
    rival = trigram_loss(codes[:border], codes[border:], len(alphabet))
    ended = train(GPT, 2, tmp_path)
    assert rival < 1.75, "a trigram model worth beating"
    assert ended.result.evaluation["eval_loss"] < rival


def test_the_digits_reach_97_percent(tmp_path: Path) -> None:
    ended = train(DIGITS, 2, tmp_path)
    assert ended.result.evaluation["eval_accuracy"] >= 0.97
