"""Do the database files of every release come into today's schema with nothing lost?"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.control.job import Phase
from service.settings import ROOT
from service.store.engine import reading
from service.store.jobs import JobStore
from service.store.queries import Queries
from tests.databases import Databases

RELEASES = sorted(path for path in (ROOT / "tests" / "migrations").iterdir() if path.name.startswith("v"))


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Databases]:
    """Copies of a release's files, migrated to today."""
    shutil.copytree(request.param, tmp_path, dirs_exist_ok=True)
    databases = Databases(tmp_path)
    yield databases
    databases.close()


def named(queries: Queries, name: str) -> str:
    (job,) = (row["id"] for row in queries.jobs(10) if row["name"] == name)
    return str(job)


def test_a_release_was_kept() -> None:
    assert RELEASES


def test_jobs_keep_their_ends(kept: Databases) -> None:
    queries = Queries(kept.engine, kept.bulk_engine)
    assert {row["name"]: row["phase"] for row in queries.jobs(10)} == {
        "trained": "SUCCEEDED", "failed": "FAILED", "cancelled": "CANCELLED", "running": "RUNNING",
    }  # fmt: skip
    assert "shard 3 is nan" in queries.job(named(queries, "failed"))["failure"]["traceback"]


def test_the_job_that_lost_a_rank_keeps_its_story(kept: Databases) -> None:
    queries = Queries(kept.engine, kept.bulk_engine)
    job = named(queries, "trained")
    result = queries.job(job)["result"]
    assert result["evaluation"]["eval_accuracy"] >= 0.97
    outcomes = [row["outcome"] for row in queries.generations(job)]
    assert (outcomes[0], outcomes[-1]) == ("RANK_CRASH", "FINISHED")
    assert len(queries.epochs(job)) == 20
    assert [row["step"] for row in queries.metrics(job, "loss", -1, 10_000)] == list(range(1, result["steps"] + 1))


def test_a_job_in_training_is_found_by_todays_controller(kept: Databases) -> None:
    queries = Queries(kept.engine, kept.bulk_engine)
    jobs = JobStore(kept.engine, term=1)
    snapshot = jobs.load(named(queries, "running")).snapshot
    assert snapshot.job.phase is Phase.RUNNING
    assert snapshot.generation is not None
    assert len(snapshot.hosts) == 2


def test_no_reference_dangles(kept: Databases) -> None:
    for engine in (kept.engine, kept.bulk_engine):
        with reading(engine) as connection:
            assert connection.execute(sa.text("PRAGMA foreign_key_check")).all() == []
