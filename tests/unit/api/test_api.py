"""What does the API answer, and whom does it let in?"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from api.auth import Doors, Role
from api.routes import Backend
from service.control.draft import Decision
from service.control.job import Phase
from service.store.jobs import JobStore
from service.store.lease import new_term
from service.store.queries import Queries
from service.store.wishes import WishStore
from tests.builders import NOW, at, write
from tests.databases import Databases
from workers import bundle
from workers.storage import FolderStorage

Json = dict[str, Any]
SPEC: Json = {"name": "job", "program": "program:build", "shards": 4, "shard_batch": 8, "steps": 12,
              "ranks": {"initial": 2, "min": 1, "max": 4}}  # fmt: skip


class Bench(Databases):
    """An API over a real database, without a controller."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        numbers = iter(range(1, 1000))
        storage = FolderStorage(folder / "storage")
        backend = Backend(
            Queries(self.engine, self.bulk_engine),
            WishStore(self.engine),
            storage,
            lambda: NOW,
            lambda: f"j{next(numbers)}",
        )
        doors = Doors({Role.USER: "u" * 64, Role.OPERATOR: "o" * 64}, frozenset({"muster:80"}))
        self.app = create_app(backend, doors)
        self.user, self.operator = self.client("u" * 64), self.client("o" * 64)
        code = write(folder / "code", program="def build(ctx):\n    return 1\n")
        self.digest, self.data = bundle.pack(code)

    def client(self, token: str | None, host: str = "muster:80") -> TestClient:
        headers = {"host": host} | ({"authorization": f"Bearer {token}"} if token else {})
        return TestClient(self.app, base_url="http://muster", headers=headers)

    def upload(self) -> str:
        headers = {"content-type": "application/zip"}
        assert self.user.put(f"/v1/bundles/{self.digest}", content=self.data, headers=headers).status_code == 201
        return self.digest

    def submit(self, **changes: Any) -> Any:
        return self.user.post("/v1/jobs", json=SPEC | {"bundle": self.upload()} | changes)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_job_is_submitted_shown_and_listed(bench: Bench) -> None:
    answer = bench.submit()
    assert (answer.status_code, answer.json()["id"], answer.headers["location"]) == (201, "j1", "/v1/jobs/j1")
    shown = bench.user.get("/v1/jobs/j1").json()
    assert (shown["phase"], shown["reason"], shown["step"], shown["ranks"]) == ("WAITING", "submitted", 0, 0)
    assert [job["id"] for job in bench.user.get("/v1/jobs").json()["jobs"]] == ["j1"]
    assert [item["kind"] for item in bench.user.get("/v1/jobs/j1/events").json()["items"]] == ["SUBMITTED"]


def test_a_dry_run_checks_and_stores_nothing(bench: Bench) -> None:
    digest = bench.upload()
    answer = bench.user.post("/v1/jobs?dry_run=true", json=SPEC | {"bundle": digest})
    assert (answer.status_code, answer.json()["id"]) == (200, None)
    assert bench.user.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        ({"shards": 2}, "(whole)", "shards is 2, below ranks.max 4"),
        ({"colour": "red"}, "colour", "there is no such field"),
        ({"shard_batch": 0}, "shard_batch", "greater than 0"),
        ({"program": "program:train"}, "program", "does not define 'train'"),
        ({"program": "main:build"}, "program", "no module 'main'"),
        ({"bundle": "f" * 64}, "bundle", "was not uploaded"),
        ({"ranks": {"initial": 1, "min": 0}}, "ranks.min", "greater than 0"),
    ],
)
def test_a_refusal_names_field_and_remedy(bench: Bench, changes: Json, field: str, words: str) -> None:
    answer = bench.submit(**changes)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert words in body["detail"]
    assert field in [item["field"] for item in body["errors"]]
    assert bench.user.get("/v1/jobs").json()["jobs"] == []


def test_a_bundle_must_be_what_its_name_says(bench: Bench) -> None:
    headers = {"content-type": "application/zip"}
    other = bench.user.put(f"/v1/bundles/{'0' * 64}", content=bench.data, headers=headers)
    assert (other.status_code, "changed on the way" in other.json()["detail"]) == (422, True)
    junk = b"not a zip"
    name = hashlib.sha256(junk).hexdigest()
    assert bench.user.put(f"/v1/bundles/{name}", content=junk, headers=headers).status_code == 422
    assert bench.user.put("/v1/bundles/xyz", content=junk, headers=headers).status_code == 422


def test_a_bundle_that_is_too_big_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_BYTES", 10)
    headers = {"content-type": "application/zip"}
    assert bench.user.put(f"/v1/bundles/{bench.digest}", content=bench.data, headers=headers).status_code == 413


def test_nothing_is_open_without_a_token(bench: Bench) -> None:
    for client in (bench.client(None), bench.client("x" * 64)):
        answer = client.get("/v1/jobs")
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert client.get("/v1/openapi.json").status_code == 401
    assert bench.client(None).get("/healthz").status_code == 200


def test_another_host_or_origin_is_refused(bench: Bench) -> None:
    assert bench.client("u" * 64, host="evil.example:80").get("/v1/jobs").status_code == 403
    assert bench.user.get("/v1/jobs", headers={"origin": "http://evil.example"}).status_code == 403
    assert bench.user.get("/v1/jobs", headers={"origin": "http://muster:80"}).status_code == 200


def test_only_json_is_read(bench: Bench) -> None:
    answer = bench.user.post("/v1/jobs", content="{}", headers={"content-type": "text/plain"})
    assert answer.status_code == 415
    broken = bench.user.post("/v1/jobs", content="{", headers={"content-type": "application/json"})
    assert (broken.status_code, broken.headers["content-type"]) == (400, "application/problem+json")


def test_only_an_operator_scales(bench: Bench) -> None:
    bench.submit()
    assert bench.user.post("/v1/jobs/j1/scale", json={"ranks": 3}).status_code == 403
    answer = bench.operator.post("/v1/jobs/j1/scale", json={"ranks": 3})
    assert (answer.status_code, answer.json()["desired_ranks"]) == (202, 3)
    assert bench.operator.post("/v1/jobs/j1/scale", json={"ranks": "auto"}).json()["desired_ranks"] is None


@pytest.mark.parametrize("ranks", [0, 5, "many", None, 1.5, True])
def test_a_scale_outside_the_spec_is_refused(bench: Bench, ranks: Any) -> None:
    bench.submit()
    answer = bench.operator.post("/v1/jobs/j1/scale", json={"ranks": ranks})
    assert answer.status_code == 422
    assert answer.json()["errors"]


def test_a_cancel_is_stored_while_no_controller_lives(bench: Bench) -> None:
    bench.submit()
    answer = bench.user.post("/v1/jobs/j1/cancel")
    assert (answer.status_code, answer.json()["desired_run"]) == (202, "cancel")


def test_unknown_things_are_not_found(bench: Bench) -> None:
    for path in ("", "/generations", "/ranks", "/events", "/metrics", "/checkpoints", "/epochs"):
        answer = bench.user.get(f"/v1/jobs/nobody{path}")
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
    assert bench.user.get("/v1/nothing").headers["content-type"] == "application/problem+json"
    assert bench.user.delete("/v1/jobs").status_code == 405


def test_an_etag_answers_304_until_something_changes(bench: Bench) -> None:
    bench.submit()
    etag = bench.user.get("/v1/jobs/j1").headers["etag"]
    assert bench.user.get("/v1/jobs/j1", headers={"if-none-match": etag}).status_code == 304
    bench.operator.post("/v1/jobs/j1/scale", json={"ranks": 3})
    assert bench.user.get("/v1/jobs/j1", headers={"if-none-match": etag}).status_code == 200


def test_a_wait_without_news_ends_after_its_time(bench: Bench) -> None:
    bench.submit()
    etag = bench.user.get("/v1/jobs/j1").headers["etag"]
    assert bench.user.get("/v1/jobs/j1?wait=0.2", headers={"if-none-match": etag}).status_code == 304


def test_a_job_that_ended_cannot_be_scaled(bench: Bench) -> None:
    bench.submit()
    store = JobStore(bench.engine, new_term(bench.engine, "test", NOW))
    before = store.load("j1")
    store.commit(before, Decision(replace(before.snapshot.job, phase=Phase.CANCELLED), None, ()), at(1))
    assert bench.operator.post("/v1/jobs/j1/scale", json={"ranks": 3}).status_code == 409
    assert bench.user.post("/v1/jobs/j1/cancel").status_code == 202


def test_readiness_tells_whether_a_controller_leads(bench: Bench) -> None:
    assert bench.client(None).get("/readyz").status_code == 503
    new_term(bench.engine, "test", NOW)
    assert bench.client(None).get("/readyz").json() == {"status": "ready", "term": 1}


def test_the_schema_of_a_job_is_there(bench: Bench) -> None:
    schema = bench.user.get("/v1/schema/job").json()
    assert {"name", "program", "ranks", "shards", "pace_ms"} <= set(schema["properties"])
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('"steps": 12', '"steps": 1180591620717411303424', "steps"),
        ('"shards": 4', '"shards": NaN', "shards"),
        ('"shards": 4', '"shards": 4, "pace_ms": 1e400', "pace_ms"),
        ('"shards": 4', '"shards": 4, "pace_ms": 1e300', "pace_ms"),
        ('"shards": 4', '"shards": 4, "checkpoint": {"every_seconds": 1e300}', "checkpoint.every_seconds"),
        ('"name": "job"', '"name": "\\ud800"', "name"),
        ('"shards": 4', '"shards": 4, "params": {"rate": NaN}', "params"),
        ('"shards": 4', '"shards": 4, "params": {"text": "\\ud800"}', "params"),
        ('"shards": 4', '"shards": 4, "labels": {"text": "\\u0000"}', "labels"),
    ],
)
def test_what_json_or_the_store_cannot_carry_is_refused_by_name(bench: Bench, old: str, new: str, field: str) -> None:
    text = json.dumps(SPEC | {"bundle": bench.upload()})
    assert old in text
    answer = bench.user.post("/v1/jobs", content=text.replace(old, new), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, field)


@pytest.mark.parametrize("rows", ["events", "metrics"])
def test_a_place_beyond_every_row_is_refused(bench: Bench, rows: str) -> None:
    bench.submit()
    assert bench.user.get(f"/v1/jobs/j1/{rows}?after=99999999999999999999").status_code == 422
