"""Is the dropout mask what its hash says, and is it random enough?"""

import os
import subprocess
import sys

import numpy as np
import pytest
from numpy.typing import NDArray

from service.settings import ROOT

pytestmark = [pytest.mark.mindspore]


def murmur(key: int, count: int) -> NDArray[np.uint32]:
    """Murmur3's finalizer of (element × golden ratio + key), on unsigned words, written anew from its definition."""
    h = np.arange(count, dtype=np.uint32) * np.uint32(0x9E3779B9) + np.uint32(key % (1 << 32))
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NDArray[np.float32]]:
    target = tmp_path_factory.mktemp("dropout") / "masks.npz"
    script = [sys.executable, "-m", "tests.numerics.dropout_check", str(target)]
    subprocess.run(script, check=True, cwd=ROOT, env=os.environ | {"GLOG_v": "3"})
    with np.load(target) as found:
        return {name: found[name] for name in found.files}


def test_the_mask_is_the_hash(drawn: dict[str, NDArray[np.float32]]) -> None:
    for key, mask in zip((0, 1, -5, 2**31 - 1), drawn["masks"], strict=True):
        signed = murmur(key, mask.size).view(np.int32)
        kept = signed >= np.int32(-(1 << 31) + (1 << 30))
        assert np.array_equal(mask.ravel(), kept)


def test_the_share_dropped_is_p_and_masks_of_two_keys_are_unlike(drawn: dict[str, NDArray[np.float32]]) -> None:
    masks = drawn["masks"]
    assert np.allclose(masks.mean(axis=(1, 2)), 0.75, atol=0.005)
    assert np.allclose(masks.mean(axis=1), 0.75, atol=0.2), "each column too"
    both = (masks[0] & masks[1]).mean()
    assert abs(both - 0.75**2) < 0.01
    neighbours = (masks[0][:, 1:] & masks[0][:, :-1]).mean()
    assert abs(neighbours - 0.75**2) < 0.01


def test_kept_values_are_scaled_and_evaluation_keeps_all(drawn: dict[str, NDArray[np.float32]]) -> None:
    assert drawn["scale"] == np.float32(1 / 0.75)
    assert np.all(drawn["outside"] == 1.0)
