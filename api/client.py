"""How does Python code talk to Muster? The SDK: each method is one request, answers are plain JSON values."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import yaml

from service.control.job import TERMINAL
from service.settings import load_settings, read_token
from workers import bundle

Json = dict[str, Any]
WAIT = 20.0


class MusterError(Exception):
    """The API refused: its status, its detail, and one entry per refused field."""

    def __init__(self, status: int, detail: str, errors: list[Json]) -> None:
        super().__init__(detail)
        self.status, self.detail, self.errors = status, detail, errors


class NotReachable(Exception):
    """The API does not answer."""


def read_spec(path: Path) -> tuple[Json, Path]:
    """Return the spec of a YAML or JSON file, or of a folder's job.yaml, and the code folder beside it.

    ValueError when it is not a mapping.
    """
    file = path / "job.yaml" if path.is_dir() else path
    spec = yaml.safe_load(file.read_text())
    if not isinstance(spec, dict):
        raise ValueError(f"{file} must be a mapping of fields, as /v1/schema/job says")
    return spec, file.parent


class Client:
    """A connection to one Muster."""

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=WAIT + 20)

    @classmethod
    def of_home(cls, home: Path, role: str = "operator") -> Self:
        """Connect to the Muster that is up in a home folder. NotReachable when none is."""
        try:
            return cls(load_settings(home).url, read_token(home, role))
        except FileNotFoundError as error:
            raise NotReachable(f"nothing is up in {home}; start it with `muster up`") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def is_ready(self) -> bool:
        """Say whether the API answers and a controller leads."""
        try:
            return self._http.get("/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    def upload(self, folder: Path) -> str:
        """Upload a code folder as a bundle; return its digest. BundleError when it cannot be one."""
        digest, data = bundle.pack(folder)
        self._call("PUT", f"/v1/bundles/{digest}", content=data, headers={"Content-Type": "application/zip"})
        return digest

    def submit(self, spec: Json, code: Path | None = None, dry_run: bool = False) -> Json:
        """Submit a spec, its code folder uploaded first; returns {id, spec}."""
        if code is not None:
            spec = spec | {"bundle": self.upload(code)}
        return self._call("POST", "/v1/jobs", json=spec, params={"dry_run": dry_run})

    def jobs(self) -> list[Json]:
        """Return the newest jobs."""
        found: list[Json] = self._call("GET", "/v1/jobs")["jobs"]
        return found

    def job(self, job: str) -> Json:
        """Return one job."""
        return self._call("GET", f"/v1/jobs/{job}")

    def watch(self, job: str) -> Iterator[Json]:
        """Yield the job now and after each change, until it has ended."""
        etag = ""
        while True:
            answer = self._send("GET", f"/v1/jobs/{job}", params={"wait": WAIT}, headers={"If-None-Match": f'"{etag}"'})
            if answer.status_code == 304:
                continue
            found: Json = answer.json()
            yield found
            if found["phase"] in TERMINAL:
                return
            etag = found["etag"]

    def wait(self, job: str, limit: float = 3600) -> Json:
        """Wait for the job's end and return it. TimeoutError after `limit` seconds."""
        until = time.monotonic() + limit
        for found in self.watch(job):
            if found["phase"] in TERMINAL:
                return found
            if time.monotonic() > until:
                raise TimeoutError(f"job {job} is {found['phase']} after {limit:g} s: {found['reason']}")
        raise AssertionError("watch ends with a terminal job")

    def scale(self, job: str, ranks: int | str) -> Json:
        """Pin the number of ranks, or "auto"."""
        return self._call("POST", f"/v1/jobs/{job}/scale", json={"ranks": ranks})

    def cancel(self, job: str) -> Json:
        """End the job."""
        return self._call("POST", f"/v1/jobs/{job}/cancel")

    def rows(self, job: str, part: str, **query: Any) -> list[Json]:
        """Return generations, ranks, events, metrics, checkpoints or epochs of a job."""
        found: list[Json] = self._call("GET", f"/v1/jobs/{job}/{part}", params=query)["items"]
        return found

    def nodes(self) -> list[Json]:
        """Return the cluster's nodes."""
        found: list[Json] = self._call("GET", "/v1/nodes")["items"]
        return found

    def _call(self, method: str, path: str, **options: Any) -> Json:
        found: Json = self._send(method, path, **options).json()
        return found

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise NotReachable(f"{self._http.base_url} does not answer: {error}") from error
        if answer.status_code >= 400:
            raise _error(answer)
        return answer


def _error(answer: httpx.Response) -> MusterError:
    try:
        body = answer.json()
        return MusterError(answer.status_code, body["detail"], body.get("errors", []))
    except (ValueError, KeyError):
        return MusterError(answer.status_code, answer.text[:300], [])
