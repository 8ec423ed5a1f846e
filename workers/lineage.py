"""Which checkpoints of a job count, and what is the next number?

One sequence of numbers per job holds both checkpoints and seals; each number is taken once, by put-if-absent, so that a
late writer and the controller's seal cannot both win. Standard library only. It must not read tensors.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from workers.errors import StorageError
from workers.storage import Storage

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A published checkpoint: its manifest says the pieces, the step, and the generation that began it."""

    number: int
    generation: int
    step: int
    manifest: Json


@dataclass(frozen=True, slots=True)
class Seal:
    """The border before `generation`: of the generation before, only what is up to `ended` counts."""

    number: int
    generation: int
    ended: int


@dataclass(frozen=True, slots=True)
class Broken:
    """A number whose entry is missing or unreadable."""

    number: int
    why: str


Entry = Checkpoint | Seal | Broken


def folder(job: str) -> str:
    """Return the prefix of all that belongs to the job."""
    return f"jobs/{job}"


def key(job: str, number: int) -> str:
    """Return the key of a lineage entry."""
    return f"{folder(job)}/lineage/{number:08d}.json"


def retired_key(job: str, number: int) -> str:
    """Return the key that says a checkpoint was deleted on purpose, so that its gap is no loss."""
    return f"{folder(job)}/lineage/{number:08d}.retired.json"


def save_folder(job: str, step: int, generation: int) -> str:
    """Return the prefix of the pieces of one save."""
    return f"{folder(job)}/saves/{step:010d}-g{generation}"


def result_key(job: str) -> str:
    """Return the key of the durable end record."""
    return f"{folder(job)}/result.json"


def _numbers(storage: Storage, job: str) -> list[int]:
    names = (name.rsplit("/", 1)[1] for name in storage.list(f"{folder(job)}/lineage"))
    return sorted({int(name[:8]) for name in names if name.endswith(".json") and name[:8].isdigit()})


def _entry(storage: Storage, job: str, number: int) -> Entry | None:
    data = storage.read(key(job, number))
    if data is None:
        if storage.read(retired_key(job, number)) is not None:
            return None
        return Broken(number, f"{key(job, number)} is missing")
    try:
        body = json.loads(data)
        if body["kind"] == "seal":
            return Seal(number, body["generation"], body["ended"])
        return Checkpoint(number, body["generation"], body["step"], body)
    except (ValueError, KeyError, TypeError) as error:
        return Broken(number, f"{key(job, number)} is not a manifest: {error!r}")


def read_lineage(storage: Storage, job: str, below: int | None = None) -> list[Entry]:
    """Return the entries in order, those below number `below`; a gap above the oldest is a Broken entry."""
    numbers = _numbers(storage, job)
    if not numbers:
        return []
    last = numbers[-1] if below is None else below - 1
    entries = (_entry(storage, job, number) for number in range(numbers[0], last + 1))
    return [entry for entry in entries if entry is not None]


def counting(entries: list[Entry]) -> list[Entry]:
    """Return the checkpoints that count, and the broken entries, oldest first.

    A checkpoint of generation g counts unless a seal before a later generation ended g's line below its step.
    """
    ends: dict[int, int] = {}
    for entry in entries:
        if isinstance(entry, Seal):
            ends[entry.generation] = entry.ended
    kept: list[Entry] = []
    for entry in entries:
        match entry:
            case Checkpoint():
                later = [ended for generation, ended in ends.items() if generation > entry.generation]
                if all(entry.step <= ended for ended in later):
                    kept.append(entry)
            case Broken():
                kept.append(entry)
            case Seal():
                pass
    return kept


def publish(storage: Storage, job: str, body: Json) -> int:
    """Take the next number of the lineage for `body` and return it."""
    data = json.dumps(body, sort_keys=True).encode()
    numbers = _numbers(storage, job)
    number = numbers[-1] + 1 if numbers else 1
    while not storage.put(key(job, number), data):
        number += 1
    return number


def seal(storage: Storage, job: str, generation: int, reported: int) -> Seal:
    """Seal the border before `generation`, once: an existing seal of it is returned as it is.

    `reported` is the last committed step the controller heard of; a newer manifest before the seal extends it.
    """
    while True:
        entries = read_lineage(storage, job)
        for entry in entries:
            if isinstance(entry, Seal) and entry.generation >= generation:
                return entry
        published = [entry.step for entry in counting(entries) if isinstance(entry, Checkpoint)]
        ended = max([reported, *published])
        number = max(_numbers(storage, job), default=0) + 1
        body = {"kind": "seal", "generation": generation, "ended": ended}
        # A save that takes the number between our look and our put may extend the end: look again.
        if storage.put(key(job, number), json.dumps(body, sort_keys=True).encode()):
            return Seal(number, generation, ended)


def read_pieces(storage: Storage, checkpoint: Checkpoint) -> Iterator[bytes | Broken]:
    """Yield the verified bytes of each piece, or last a Broken that says why (missing, short, changed)."""
    for piece in checkpoint.manifest["pieces"]:
        data = storage.read(piece["key"])
        if data is None:
            why = "is missing"
        elif len(data) != piece["size"]:
            why = f"has {len(data)} bytes, not {piece['size']}"
        elif hashlib.sha256(data).hexdigest() != piece["sha256"]:
            why = "has another checksum than its manifest says"
        else:
            yield data
            continue
        yield Broken(
            checkpoint.number, f"checkpoint {checkpoint.number} (step {checkpoint.step}): {piece['key']} {why}"
        )
        return


def why_broken(storage: Storage, checkpoint: Checkpoint) -> str | None:
    """Return why a checkpoint does not verify, or None when it does."""
    return next((piece.why for piece in read_pieces(storage, checkpoint) if isinstance(piece, Broken)), None)


def retire(storage: Storage, job: str, number: int) -> None:
    """Delete a checkpoint for good: say so first, then its manifest, then its pieces."""
    entry = _entry(storage, job, number)
    storage.put(retired_key(job, number), b"{}")
    storage.delete(key(job, number))
    if isinstance(entry, Checkpoint):
        for name in storage.list(save_folder(job, entry.step, entry.generation)):
            storage.delete(name)


def sweep_debris(storage: Storage, job: str) -> None:
    """Remove what saves that were never published left. Only when every host of the job that could write has ended."""
    storage.sweep_staging(folder(job))
    entries = read_lineage(storage, job)
    if any(isinstance(entry, Broken) for entry in entries):
        return  # whose pieces these are can no longer be told, and somebody may want to rescue them
    owned = {save_folder(job, entry.step, entry.generation) for entry in entries if isinstance(entry, Checkpoint)}
    for name in storage.list(f"{folder(job)}/saves"):
        if name.rsplit("/", 1)[0] not in owned:
            storage.delete(name)


def read_result(storage: Storage, job: str) -> Json | None:
    """Return the durable end record, or None. StorageError when it is not JSON."""
    data = storage.read(result_key(job))
    if data is None:
        return None
    try:
        body: Json = json.loads(data)
    except ValueError as error:
        raise StorageError(f"{result_key(job)} is not JSON: {error}") from error
    return body
