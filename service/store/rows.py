"""How does a row become a value, and a value a row?

The names of fields and columns are the same; only enums, tuples and the spec differ. It must not query.
"""

from dataclasses import fields
from typing import Any

from service.control.job import Generation, GenerationState, Host, HostState, Job, Phase
from service.control.spec import JobSpec

Row = dict[str, Any]


def _values(thing: Job | Generation | Host) -> Row:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def job_from(row: Any) -> Job:
    """Return the job of a row of `jobs`."""
    values = {field.name: row[field.name] for field in fields(Job)}
    values |= {"spec": JobSpec.model_validate(row["spec"]), "phase": Phase(row["phase"])}
    values["ending"] = Phase(row["ending"]) if row["ending"] else None
    return Job(**values)


def row_of_job(job: Job) -> Row:
    """Return the columns of a job that the reconciler writes; spec, desires and creation are the API's."""
    values = _values(job)
    for name in ("id", "spec", "created", "desired_run", "desired_ranks"):
        del values[name]
    return values | {"phase": job.phase.value, "ending": job.ending.value if job.ending else None}


def generation_from(row: Any) -> Generation:
    """Return the generation of a row."""
    values = {field.name: row[field.name] for field in fields(Generation)}
    values |= {"state": GenerationState(row["state"]), "hosts": tuple(row["hosts"]),
               "addresses": tuple(row["addresses"])}  # fmt: skip
    return Generation(**values)


def row_of_generation(job: str, generation: Generation) -> Row:
    """Return the row of a generation."""
    values = _values(generation) | {"state": generation.state.value, "job": job}
    return values | {"hosts": list(generation.hosts), "addresses": list(generation.addresses)}


def host_from(row: Any) -> Host:
    """Return the host of a row."""
    return Host(row["number"], row["generation"], row["node"], HostState(row["state"]))


def row_of_host(job: str, host: Host) -> Row:
    """Return the row of a host."""
    return _values(host) | {"state": host.state.value, "job": job}
