"""What does a spec refuse, and in which words?"""

from typing import Any

import pytest
from pydantic import ValidationError

from service.control.spec import JobSpec
from tests.builders import spec


def refusal(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        spec(**changes)
    return str(caught.value)


def test_a_plain_spec_fills_in_what_is_not_said() -> None:
    plain = JobSpec(name="a", program="p:build", bundle="0" * 64, shard_batch=4, epochs=2)
    assert (plain.ranks.initial, plain.ranks.min, plain.ranks.most, plain.shard_count) == (1, 1, 1, 1)
    assert (plain.threads, plain.checkpoint.keep, plain.budget("RANK_CRASH"), plain.budget("USER")) == (1, 3, 5, 1)
    assert plain.budget("PREEMPTED") is None


def test_max_follows_initial_and_shards_follow_max() -> None:
    wide = JobSpec(name="a", program="p:build", bundle="0" * 64, shard_batch=4, steps=2, ranks={"initial": 3})  # type: ignore[arg-type]
    assert (wide.ranks.most, wide.shard_count) == (3, 3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shards": 3}, "shards is 3, below ranks.max 4"),
        ({"ranks": {"initial": 2, "min": 5, "max": 4}}, "ranks.min is 5, above ranks.max 4"),
        ({"ranks": {"initial": 5, "min": 1, "max": 4}}, "ranks.initial is 5, outside [1, 4]"),
        ({"steps": 1, "epochs": 1}, "exactly one of epochs and steps"),
        ({"steps": None}, "exactly one of epochs and steps"),
        ({"steps": 0}, "greater than 0"),
        ({"shard_batch": -1}, "greater than 0"),
        ({"name": "Not A Name"}, "a-z, 0-9"),
        ({"name": "line\n"}, "a-z, 0-9"),
        ({"program": "no-colon"}, "module:function"),
        ({"bundle": "xyz"}, "64 hex digits"),
        ({"bundle": "0" * 64 + "\n"}, "64 hex digits"),
        ({"program": "p:b\n"}, "module:function"),
        ({"learning": 1}, "Extra inputs"),
        ({"ranks": {"initial": 1, "ceiling": 2}}, "Extra inputs"),
        ({"resources": {"cpu": -1}}, "greater than or equal to 0"),
        ({"resources": {"cpu": float("inf")}}, "finite"),
        ({"determinism": "relaxed"}, "strict"),
        ({"budgets": {"BAD_LUCK": 2}}, "USER"),
        ({"checkpoint": {"keep": 0}}, "greater than 0"),
        ({"pace_ms": float("nan")}, "finite"),
        ({"environment": {"PYTHONPATH": "/x"}}, "PYTHONPATH is set by Muster"),
        ({"environment": {"MUSTER_HOST": "x"}}, "MUSTER_HOST is set by Muster"),
        ({"environment": {"A=B": "x"}}, "'A=B' is no name of a variable"),
        ({"environment": {"A\n": "x"}}, "is no name of a variable"),
        ({"resources": {"gpu": 1.5}}, "must be whole above 1"),
        ({"resources": {"custom": {"": 1}}}, "is no name of a custom resource"),
        ({"resources": {"custom": {"CPU": 1}}}, "is no name of a custom resource"),
        ({"environment": {"A": "x\0y"}}, "none of them NUL"),
        ({"environment": {"A": "x" * 4097}}, "at most 4096 characters"),
        ({"environment": {"A": 1}}, "valid string"),
        ({"environment": {f"A{i}": "x" for i in range(65)}}, "has 65 variables, above 64"),
    ],
)
def test_a_spec_that_cannot_be_is_refused_with_its_reason(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(**changes)


def test_a_spec_does_not_change() -> None:
    with pytest.raises(ValidationError):
        spec().name = "other"
