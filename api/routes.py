"""Which paths are there, and which store call answers each?

One request is one transaction (a waiting one polls the version only). It must not know SQL, Ray or files' layout.
"""

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.concurrency import run_in_threadpool

from api.auth import operators_only
from api.problems import Problem
from api.schemas import Bundle, JobList, JobView, Rows, Scale, Submitted
from service.control.spec import DIGEST, JobSpec
from service.store.queries import Queries
from service.store.wishes import WishStore
from workers import bundle
from workers.storage import Storage

LOOK = 0.05
"""Seconds between two looks of a waiting request."""


@dataclass(frozen=True, slots=True)
class Backend:
    """What the routes stand on; `now` and `new_id` come in so that tests can say them."""

    queries: Queries
    wishes: WishStore
    storage: Storage
    now: Callable[[], datetime]
    new_id: Callable[[], str]


def backend(request: Request) -> Backend:
    """Return what the app was made with."""
    found: Backend = request.app.state.backend
    return found


Back = Annotated[Backend, Depends(backend)]
After = Annotated[int, Query(ge=-1, lt=1 << 31)]
router = APIRouter()


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(back: Back) -> dict[str, Any]:
    """The database answers and a controller leads."""
    term = back.queries.term()
    if term["term"] == 0:
        raise Problem(503, "no controller has led yet")
    return {"status": "ready", "term": term["term"]}


@router.get("/v1/schema/job")
def schema() -> dict[str, Any]:
    """The JSON Schema of a job's spec."""
    return JobSpec.model_json_schema()


@router.put("/v1/bundles/{digest}", status_code=201)
async def put_bundle(digest: str, request: Request, back: Back) -> Bundle:
    """Store a code folder under its SHA-256."""
    if not DIGEST.fullmatch(digest):
        raise Problem(422, f"{digest!r} is not a SHA-256 in hex")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > bundle.MAX_BYTES:
            raise Problem(413, f"the bundle is larger than {bundle.MAX_BYTES} bytes; leave data out of the code folder")
    await run_in_threadpool(_keep_bundle, back, digest, bytes(body))
    return Bundle(digest=digest, size=len(body))


def _keep_bundle(back: Backend, digest: str, data: bytes) -> None:
    if bundle.digest_of(data) != digest:
        raise Problem(422, f"the body's SHA-256 is {bundle.digest_of(data)}, not {digest}; it was changed on the way")
    bundle.check(data)
    back.storage.put(bundle.key(digest), data)
    back.wishes.add_bundle(digest, len(data), back.now())


@router.post("/v1/jobs", status_code=201)
def submit(spec: JobSpec, back: Back, response: Response, dry_run: bool = False) -> Submitted:
    """Check a spec and, unless it is a dry run, store it as a new job."""
    data = back.storage.read(bundle.key(spec.bundle)) if back.wishes.has_bundle(spec.bundle) else None
    if data is None:
        problem = f"bundle {spec.bundle} was not uploaded; PUT it to /v1/bundles/{spec.bundle} first"
        raise Problem(422, problem, [{"field": "bundle", "value": spec.bundle, "problem": problem}])
    try:
        bundle.check_program(data, spec.program)
    except bundle.BundleError as error:
        refused = {"field": "program", "value": spec.program, "problem": str(error)}
        raise Problem(422, f"program is {spec.program!r}: {error}", [refused]) from error
    if dry_run:
        response.status_code = 200
        return Submitted(id=None, spec=spec)
    job = back.new_id()
    back.wishes.submit(job, spec, back.now())
    response.headers["Location"] = f"/v1/jobs/{job}"
    return Submitted(id=job, spec=spec)


@router.get("/v1/jobs")
def jobs(back: Back, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> JobList:
    """The newest jobs."""
    return JobList(jobs=[_view(row) for row in back.queries.jobs(limit)])


@router.get("/v1/jobs/{job}", response_model=JobView)
async def job(
    job: str, request: Request, back: Back, wait: Annotated[float, Query(ge=0, le=60)] = 0
) -> Response | JobView:
    """One job; with If-None-Match a 304 when nothing changed, with `wait` only after so many seconds without news."""
    known = request.headers.get("if-none-match", "").strip('"')
    until = time.monotonic() + wait
    etag = await run_in_threadpool(back.queries.etag, job)
    while etag == known and time.monotonic() < until and not await request.is_disconnected():
        await asyncio.sleep(LOOK)
        etag = await run_in_threadpool(back.queries.etag, job)
    if etag == known:
        return Response(status_code=304, headers={"ETag": f'"{etag}"'})
    view = _view(await run_in_threadpool(back.queries.job, job))
    return Response(view.model_dump_json(), media_type="application/json", headers={"ETag": f'"{view.etag}"'})


@router.post("/v1/jobs/{job}/scale", status_code=202, dependencies=[Depends(operators_only)])
def scale(job: str, wish: Scale, back: Back) -> JobView:
    """Pin the number of ranks, or give it back to the spec."""
    ranks = None if wish.ranks == "auto" else wish.ranks
    if ranks is not None:
        spec = _view(back.queries.job(job)).spec
        if not spec.ranks.min <= ranks <= spec.ranks.most:
            problem = f"outside [{spec.ranks.min}, {spec.ranks.most}], which the job's spec fixed; choose within"
            raise Problem(422, f"ranks is {ranks}: {problem}", [{"field": "ranks", "value": ranks, "problem": problem}])
    back.wishes.scale(job, ranks, back.now())
    return _view(back.queries.job(job))


@router.post("/v1/jobs/{job}/cancel", status_code=202)
def cancel(job: str, back: Back) -> JobView:
    """End the job; asking twice changes nothing."""
    back.wishes.cancel(job, back.now())
    return _view(back.queries.job(job))


@router.get("/v1/jobs/{job}/generations")
def generations(job: str, back: Back) -> Rows:
    """Who trained when, why it began and why it ended."""
    return Rows(items=back.queries.generations(job))


@router.get("/v1/jobs/{job}/ranks")
def ranks(job: str, back: Back) -> Rows:
    """The ranks of the open generation."""
    return Rows(items=back.queries.ranks(job))


@router.get("/v1/jobs/{job}/events")
def events(job: str, back: Back, after: After = 0, limit: Annotated[int, Query(ge=1, le=10000)] = 1000) -> Rows:
    """The job's story, oldest first, after an event's id."""
    return Rows(items=back.queries.events(job, after, limit))


@router.get("/v1/jobs/{job}/metrics")
def metrics(
    job: str,
    back: Back,
    name: str | None = None,
    after: After = -1,
    limit: Annotated[int, Query(ge=1, le=100000)] = 10000,
) -> Rows:
    """Metric points above a step."""
    rows = back.queries.metrics(job, name, after, limit)
    return Rows(items=[row | {"value": _finite(row["value"])} for row in rows])


@router.get("/v1/jobs/{job}/checkpoints")
def checkpoints(job: str, back: Back) -> Rows:
    """The job's published checkpoints."""
    return Rows(items=back.queries.checkpoints(job))


@router.get("/v1/jobs/{job}/epochs")
def epochs(job: str, back: Back) -> Rows:
    """The ledger of each finished epoch: the digest of the samples really fed."""
    return Rows(items=back.queries.epochs(job))


@router.get("/v1/nodes")
def nodes(back: Back) -> Rows:
    """The cluster's nodes as the controller last saw them."""
    return Rows(items=back.queries.nodes())


def _finite(value: float | None) -> float | None:
    """JSON has no NaN; null stands for it."""
    return value if value is not None and math.isfinite(value) else None


def _view(row: dict[str, Any]) -> JobView:
    metrics = {name: _finite(value) for name, value in row["metrics"].items()}
    return JobView.model_validate(row | {"metrics": metrics})
