"""Do random schedules with crashes anywhere keep the control plane's invariants?"""

import pytest

from tests.control_plane.simulation import run_many


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_thousand_schedules_with_crashes_keep_every_invariant() -> None:
    assert run_many(first=0, count=1000) == []
