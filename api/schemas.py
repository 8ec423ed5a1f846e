"""What does the API show of a job and its parts? The public names; the spec itself is service.control.spec."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, PositiveInt

from service.control.spec import JobSpec


class Shown(BaseModel):
    """A document of the API."""

    model_config = ConfigDict(extra="ignore")


class JobView(Shown):
    """A job: where it stands, why, and what came of it."""

    id: str
    name: str
    phase: str
    reason: str
    step: int
    steps_total: int
    epoch: int
    samples: int
    ranks: int
    generation: int
    replaying_from: int | None
    desired_run: str
    desired_ranks: int | None
    metrics: dict[str, float | None]
    result: dict[str, Any] | None
    failure: dict[str, Any] | None
    created: datetime
    changed: datetime
    spec: JobSpec
    etag: str


class JobList(Shown):
    """The newest jobs first."""

    jobs: list[JobView]


class Submitted(Shown):
    """What a submission came to; without an id when it was a dry run."""

    id: str | None
    spec: JobSpec


class Scale(BaseModel):
    """How many ranks the job shall have; "auto" lets it be its spec's affair again."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ranks: PositiveInt | Literal["auto"]


class Bundle(Shown):
    """A stored code folder."""

    digest: str
    size: int


class Rows(Shown):
    """A list of plain rows."""

    items: list[dict[str, Any]]
