"""Does the store keep one truth: fenced, versioned, each thing once?"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from service.control.draft import Decision
from service.control.job import Event, Generation, GenerationState, Host, HostState, Job, Phase
from service.control.observation import Node
from service.errors import Conflict, Deposed, Fenced, NotFound
from service.store import tables as t
from service.store.bulk import BulkStore
from service.store.engine import migrate, reading, writing
from service.store.jobs import JobStore, RankRow, Versioned
from service.store.lease import FileLease, new_term
from service.store.queries import Queries
from service.store.wishes import WishStore
from tests.builders import NOW, at, generation, host, live, spec
from tests.databases import Databases
from workers.protocol import Record


class Bench(Databases):
    """One migrated database with a controller's and an API's view of it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.wishes = WishStore(self.engine)
        self.queries = Queries(self.engine, self.bulk_engine)
        self.lead()

    def lead(self) -> None:
        self.term = new_term(self.engine, "test", NOW)
        self.jobs = JobStore(self.engine, self.term)
        self.bulk = BulkStore(self.engine, self.bulk_engine, self.term)

    def submit(self, job: str = "j1") -> Versioned:
        self.wishes.submit(job, spec(), NOW)
        return self.jobs.load(job)

    def commit(
        self,
        before: Versioned,
        job: Job,
        current: Generation | None = None,
        hosts: tuple[Host, ...] = (),
        *events: Event,
    ) -> Versioned:
        return self.jobs.commit(before, Decision(job, current, hosts, events), at(1))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def launched(bench: Bench) -> Versioned:
    before = bench.submit()
    job = replace(before.snapshot.job, phase=Phase.LAUNCHING, generation=1, next_host=3, reason="starting")
    return bench.commit(before, job, generation(), (host(1), host(2)), Event("LAUNCHING", "starting"))


def test_the_migrations_make_exactly_the_tables(bench: Bench) -> None:
    for engine, metadata, table in (
        (bench.engine, t.metadata, "alembic_version"),
        (bench.bulk_engine, t.bulk_metadata, "alembic_version_bulk"),
    ):
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": False, "version_table": table})
            assert compare_metadata(context, metadata) == []


def test_migrating_again_changes_nothing(bench: Bench) -> None:
    bench.submit()
    migrate(bench.engine, "truth")
    migrate(bench.bulk_engine, "bulk")
    assert bench.queries.job("j1")["phase"] == "WAITING"


def test_what_is_committed_is_loaded_whole(bench: Bench) -> None:
    after = launched(bench)
    again = bench.jobs.load("j1")
    assert again == after
    assert again.snapshot.generation == generation()
    assert again.snapshot.hosts == (host(1), host(2))
    assert again.snapshot.job.spec == spec()


def test_an_unchanged_decision_writes_nothing(bench: Bench) -> None:
    before = launched(bench)
    snapshot = before.snapshot
    assert bench.commit(before, snapshot.job, snapshot.generation, snapshot.hosts) is before


def test_a_row_that_moved_on_is_not_overwritten(bench: Bench) -> None:
    before = bench.submit()
    bench.wishes.scale("j1", 3, at(1))
    with pytest.raises(Fenced):
        bench.commit(before, replace(before.snapshot.job, reason="old"))
    assert bench.jobs.load("j1").snapshot.job.desired_ranks == 3


def test_old_controller_wakes(bench: Bench) -> None:
    """The store refuses every write of a term that is over."""
    before, old = bench.submit(), bench.jobs
    old_bulk = bench.bulk
    bench.lead()
    with pytest.raises(Deposed):
        old.commit(before, Decision(replace(before.snapshot.job, reason="x"), None, ()), at(1))
    with pytest.raises(Deposed):
        old.show_ranks("j1", [])
    with pytest.raises(Deposed):
        old.show_nodes([], NOW)
    with pytest.raises(Deposed):
        old.add_events("j1", 1, [Event("X", "y")], NOW)
    with pytest.raises(Deposed):
        old_bulk.take("j1", 1, 1, [], NOW)
    with pytest.raises(Deposed):
        old_bulk.forget_checkpoint("j1", 1)
    assert bench.jobs.load("j1") == before


def test_the_database_allows_one_open_generation(bench: Bench) -> None:
    before = launched(bench)
    job = replace(before.snapshot.job, generation=2)
    with pytest.raises(IntegrityError):
        bench.commit(before, job, generation(2, (3,)))


def test_the_database_allows_no_success_without_a_result(bench: Bench) -> None:
    before = bench.submit()
    with pytest.raises(IntegrityError):
        bench.commit(before, replace(before.snapshot.job, phase=Phase.SUCCEEDED))


def test_failures_of_the_past_are_read_from_generations(bench: Bench) -> None:
    before = launched(bench)
    ended = live(
        state=GenerationState.ENDED, ended_at=at(2), outcome="RANK_CRASH", cause="why", seconds={"cause_step": 4}
    )
    job = replace(before.snapshot.job, phase=Phase.DRAINING, ending=Phase.WAITING)
    gone = tuple(replace(item, state=HostState.GONE) for item in before.snapshot.hosts)
    after = bench.commit(before, job, ended, gone)
    assert [(item.kind, item.step, item.cause) for item in after.snapshot.past] == [("RANK_CRASH", 4, "why")]
    assert after.snapshot.hosts == ()
    assert {item.number for item in bench.jobs.host_rows(["j1"])["j1"]} == {1, 2}


def test_versions_show_only_jobs_that_have_not_ended(bench: Bench) -> None:
    bench.submit("j1")
    before = bench.submit("j2")
    bench.commit(before, replace(before.snapshot.job, phase=Phase.CANCELLED))
    assert set(bench.jobs.versions()) == {"j1"}


def test_a_wish_moves_the_version_that_etags_show(bench: Bench) -> None:
    bench.submit()
    before = bench.queries.etag("j1")
    bench.wishes.scale("j1", 2, at(1))
    assert bench.queries.etag("j1") != before
    assert bench.queries.job("j1")["etag"] == bench.queries.etag("j1")


def test_cancel_is_stored_once_and_refused_after_another_end(bench: Bench) -> None:
    before = bench.submit()
    bench.wishes.cancel("j1", at(1))
    bench.wishes.cancel("j1", at(2))
    assert [event["kind"] for event in bench.queries.events("j1", 0, 10)] == ["SUBMITTED", "CANCEL"]
    with pytest.raises(Conflict):
        bench.wishes.scale("j1", 2, at(3))
    before = bench.jobs.load("j1")
    bench.commit(before, replace(before.snapshot.job, phase=Phase.FAILED))
    with pytest.raises(Conflict):
        bench.wishes.scale("j1", 2, at(3))


def test_an_unknown_job_is_not_found(bench: Bench) -> None:
    for ask in (bench.queries.job, bench.queries.etag, bench.queries.generations, bench.queries.ranks):
        with pytest.raises(NotFound):
            ask("nobody")
    with pytest.raises(NotFound):
        bench.wishes.cancel("nobody", NOW)


def points(*steps: int, value: float = 1.0, generation: int = 1) -> list[Record]:
    return [Record("metric", generation, step, "loss", value / step) for step in steps]


def test_gaps_in_metrics(bench: Bench) -> None:
    """All ranks report each point; it is stored once, and a repeat says nothing new."""
    launched(bench)
    assert bench.bulk.take("j1", 1, 3, points(1, 2, 3), NOW) == []
    assert bench.bulk.take("j1", 2, 3, points(1, 2, 3), NOW) == []
    assert bench.bulk.take("j1", 1, 5, points(3, 4), NOW) == []
    assert [row["step"] for row in bench.queries.metrics("j1", "loss", -1, 10)] == [1, 2, 3, 4]


def test_another_value_for_the_same_point_is_a_divergence(bench: Bench) -> None:
    launched(bench)
    bench.bulk.take("j1", 1, 2, points(1, 2), NOW)
    events = bench.bulk.take("j1", 1, 3, points(2, value=1.5, generation=2), NOW)
    assert [event.kind for event in events] == ["DIVERGENCE"]
    assert "loss at step 2 is 0.75 in generation 2, but 0.5 was stored" in events[0].text
    assert bench.queries.metrics("j1", "loss", 1, 10)[0]["value"] == 0.5


def test_two_values_within_one_batch_are_a_divergence(bench: Bench) -> None:
    launched(bench)
    events = bench.bulk.take("j1", 1, 2, points(2) + points(2, value=3), NOW)
    assert [event.kind for event in events] == ["DIVERGENCE"]


def test_nan_equals_nan(bench: Bench) -> None:
    launched(bench)
    nan = [Record("metric", 1, 1, "loss", float("nan"))]
    assert bench.bulk.take("j1", 1, 1, nan, NOW) == []
    assert bench.bulk.take("j1", 2, 1, nan, NOW) == []


def test_an_epoch_fed_otherwise_is_a_divergence(bench: Bench) -> None:
    launched(bench)
    assert bench.bulk.take("j1", 1, 1, [Record("epoch", 1, 4, "aa", 0.0)], NOW) == []
    assert bench.bulk.take("j1", 2, 1, [Record("epoch", 1, 4, "aa", 0.0)], NOW) == []
    assert len(bench.bulk.take("j1", 1, 2, [Record("epoch", 2, 4, "bb", 0.0)], NOW)) == 1
    assert [row["ledger"] for row in bench.queries.epochs("j1")] == ["aa"]


def test_records_are_acknowledged_where_ranks_are_shown(bench: Bench) -> None:
    launched(bench)
    row = RankRow(1, 0, 1, 0, 2, "a", 7, "training")
    bench.jobs.show_ranks("j1", [row])
    bench.bulk.take("j1", 1, 9, points(1), NOW)
    bench.jobs.show_ranks("j1", [replace(row, state="saving")])
    assert bench.jobs.drained("j1") == {1: 9}
    assert [item["state"] for item in bench.queries.ranks("j1")] == ["saving"]


def test_checkpoints_are_listed_until_they_are_forgotten(bench: Bench) -> None:
    launched(bench)
    bench.bulk.take("j1", 1, 1, [Record("checkpoint", 1, 4, "", 2.0), Record("checkpoint", 1, 8, "", 3.0)], NOW)
    bench.bulk.take("j1", 2, 1, [Record("checkpoint", 1, 8, "", 3.0)], NOW)
    assert bench.bulk.checkpoints("j1") == [(2, 4), (3, 8)]
    bench.bulk.forget_checkpoint("j1", 2)
    assert bench.bulk.checkpoints("j1") == [(3, 8)]
    assert [row["is_deleted"] for row in bench.queries.checkpoints("j1")] == [True, False]


def test_nodes_are_shown_with_their_ranks(bench: Bench) -> None:
    launched(bench)
    bench.jobs.show_nodes([Node("a", "node-a", {"CPU": 2})], NOW)
    bench.jobs.show_ranks("j1", [RankRow(1, 0, 1, 0, 2, "a", 7, "training")])
    assert [(row["name"], row["ranks"]) for row in bench.queries.nodes()] == [("node-a", 1)]


def test_a_generations_secret_is_never_shown(bench: Bench) -> None:
    launched(bench)
    assert all("secret" not in row for row in bench.queries.generations("j1"))


def test_one_process_holds_the_lease(tmp_path: Path) -> None:
    first, second = FileLease(tmp_path / "lock"), FileLease(tmp_path / "lock")
    assert first.is_held()
    assert not second.is_held()
    first.release()
    assert second.is_held()
    second.release()


def test_terms_only_grow(bench: Bench) -> None:
    assert new_term(bench.engine, "x", NOW) == bench.term + 1


def test_naive_times_are_refused(bench: Bench) -> None:
    with pytest.raises(sa.exc.StatementError, match="naive"):
        bench.wishes.submit("j1", spec(), NOW.replace(tzinfo=None))


def test_a_crash_within_a_transaction_leaves_nothing(bench: Bench) -> None:
    def half_write(engine: Engine) -> None:
        with writing(engine) as connection:
            connection.execute(sa.insert(t.bundles).values(digest="d", size=1, created=NOW))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half_write(bench.engine)
    with reading(bench.engine) as connection:
        assert connection.execute(sa.select(t.bundles)).all() == []
