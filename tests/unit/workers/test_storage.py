"""Storage, lineage, checkpoints and bundles: is each thing whole, once, and found again?"""

import io
import json
import os
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import write
from workers import bundle
from workers.checkpoint import Save, Saver, assign, load_newest
from workers.errors import RestoreError, StorageError
from workers.lineage import (
    Broken,
    Checkpoint,
    Seal,
    counting,
    key,
    publish,
    read_lineage,
    retire,
    save_folder,
    seal,
    sweep_debris,
    why_broken,
)
from workers.storage import FolderStorage

JOB = "j1"


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    return FolderStorage(tmp_path / "s")


def test_the_first_put_wins_whoever_races(storage: FolderStorage) -> None:
    won: list[int] = []
    start = threading.Barrier(8)

    def race(number: int) -> None:
        start.wait()
        if storage.put("a/b", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert storage.read("a/b") == str(won[0]).encode()
    assert storage.list("a") == ["a/b"]


def test_a_key_cannot_leave_the_storage(storage: FolderStorage) -> None:
    for name in ("../x", "a/../../x", "/etc/passwd"):
        with pytest.raises(StorageError, match="leaves the storage"):
            storage.put(name, b"")


def test_what_is_deleted_leaves_no_empty_folder(storage: FolderStorage, tmp_path: Path) -> None:
    storage.put("a/b/c", b"1")
    storage.delete("a/b/c")
    storage.delete("a/b/c")
    assert storage.read("a/b/c") is None
    assert list((tmp_path / "s").iterdir()) == []


def test_staging_is_never_listed_and_can_be_swept(storage: FolderStorage, tmp_path: Path) -> None:
    storage.put("a/b", b"1")
    debris = tmp_path / "s" / "a" / ".c.123.staging"
    debris.write_bytes(b"half")
    assert storage.list("a") == ["a/b"]
    storage.sweep_staging("a")
    assert not debris.exists()


def test_old_staging_and_the_pieces_of_unpublished_saves_are_removed(storage: FolderStorage, tmp_path: Path) -> None:
    publish(storage, JOB, manifest(10))
    whole, half = (f"{save_folder(JOB, step, 1)}/piece-0-of-2.safetensors" for step in (10, 20))
    storage.put(whole, b"whole")
    storage.put(half, b"half")
    (tmp_path / "s" / save_folder(JOB, 20, 1) / ".piece-1.123.staging").write_bytes(b"cut")
    sweep_debris(storage, JOB)
    assert storage.list(f"jobs/{JOB}/saves") == [whole]
    assert not (tmp_path / "s" / save_folder(JOB, 20, 1)).exists()


def test_no_piece_is_removed_while_a_manifest_cannot_be_read(storage: FolderStorage, tmp_path: Path) -> None:
    publish(storage, JOB, manifest(10))
    piece = f"{save_folder(JOB, 10, 1)}/piece-0-of-1.safetensors"
    storage.put(piece, b"whole")
    (tmp_path / "s" / key(JOB, 1)).write_bytes(b"{")
    sweep_debris(storage, JOB)
    assert storage.list(f"jobs/{JOB}/saves") == [piece]


def manifest(step: int, generation: int = 1) -> dict[str, Any]:
    return {"kind": "checkpoint", "job": JOB, "step": step, "generation": generation, "head": {}, "pieces": []}


def steps(storage: FolderStorage, below: int | None = None) -> list[int]:
    return [item.step for item in counting(read_lineage(storage, JOB, below)) if isinstance(item, Checkpoint)]


def test_a_seal_is_made_once_and_ends_the_line_before_it(storage: FolderStorage) -> None:
    publish(storage, JOB, manifest(4))
    made = seal(storage, JOB, 2, reported=6)
    assert (made.number, made.ended) == (2, 6)
    assert seal(storage, JOB, 2, reported=99) == made
    publish(storage, JOB, manifest(6, generation=1))
    publish(storage, JOB, manifest(8, generation=1))
    publish(storage, JOB, manifest(8, generation=2))
    assert steps(storage) == [4, 6, 8]
    assert steps(storage, below=2) == [4]
    assert [item.number for item in counting(read_lineage(storage, JOB)) if isinstance(item, Checkpoint)] == [1, 3, 5]


def test_a_manifest_before_the_seal_extends_what_was_reported(storage: FolderStorage) -> None:
    publish(storage, JOB, manifest(9))
    assert seal(storage, JOB, 2, reported=6).ended == 9


def test_a_racing_save_and_seal_never_take_one_number(storage: FolderStorage) -> None:
    for turn in range(20):
        both = [
            threading.Thread(target=publish, args=(storage, JOB, manifest(turn))),
            threading.Thread(target=seal, args=(storage, JOB, turn + 2, 0)),
        ]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
    entries = read_lineage(storage, JOB)
    assert [item.number for item in entries] == list(range(1, 41))
    assert sum(isinstance(item, Seal) for item in entries) == 20


def test_a_missing_or_torn_manifest_is_broken_and_a_retired_one_is_not(storage: FolderStorage, tmp_path: Path) -> None:
    for step in (2, 4, 6, 8):
        publish(storage, JOB, manifest(step))
    storage.delete(key(JOB, 2))
    (tmp_path / "s" / key(JOB, 3)).write_text('{"kind": ')
    retire(storage, JOB, 1)
    found = counting(read_lineage(storage, JOB))
    assert [type(item) for item in found] == [Broken, Broken, Checkpoint]
    assert publish(storage, JOB, manifest(10)) == 5


def tensors(step: int) -> dict[str, np.ndarray[Any, Any]]:
    draw = np.random.default_rng(step)
    return {f"w{index}": draw.standard_normal((index + 1, 3)).astype(np.float32) for index in range(5)}


def save(storage: FolderStorage, step: int, writers: int = 2, generation: int = 1, absent: tuple[int, ...] = ()) -> int:
    """Save a state with so many writers in threads of their own, as ranks do; return the lineage number or 0."""
    numbers: list[int] = []
    savers = [Saver(storage, lambda _, number: numbers.append(number)) for _ in range(writers)]
    for writer, saver in enumerate(savers):
        if writer not in absent:
            saver.begin(Save(JOB, step, generation, writer, writers, {"ledger": "00"}), tensors(step))
    if absent:
        for saver in savers:
            saver.give_up()
        return 0
    for saver in savers:
        saver.wait()
    return numbers[0]


@pytest.mark.parametrize("writers", [1, 2, 3, 4, 7])
def test_a_save_comes_back_bit_by_bit(storage: FolderStorage, writers: int) -> None:
    number = save(storage, 8, writers)
    loaded = load_newest(storage, JOB, number + 1)
    assert (loaded.number, loaded.step, loaded.skipped) == (number, 8, ())
    assert {name: value.tobytes() for name, value in loaded.tensors.items()} == {
        name: value.tobytes() for name, value in tensors(8).items()
    }


def test_tensors_are_dealt_evenly_and_once() -> None:
    dealt = assign({"a": 100, "b": 60, "c": 50, "d": 1}, 2)
    assert sorted(name for part in dealt for name in part) == ["a", "b", "c", "d"]
    assert dealt == [["a", "d"], ["b", "c"]]


def test_two_halves_of_a_checkpoint(storage: FolderStorage) -> None:
    """A save without one of its writers is never published, and the next one does not mix with it."""
    assert save(storage, 4, absent=(1,)) == 0
    assert load_newest(storage, JOB, 99).number == 0
    number = save(storage, 4, generation=2)
    assert load_newest(storage, JOB, number + 1).step == 4


def test_numbering_restarts(storage: FolderStorage) -> None:
    """Numbers go on after a restore; nothing is overwritten."""
    first = save(storage, 4)
    border = seal(storage, JOB, 2, 4).number
    second = save(storage, 4, generation=2)
    assert first < border < second


def pieces(storage: FolderStorage, root: Path, step: int) -> list[Path]:
    return sorted((root / "s").rglob(f"saves/{step:010d}-g1/*.safetensors"))


@pytest.mark.parametrize("harm", ["truncated", "flipped", "missing piece", "missing manifest", "torn manifest"])
def test_newest_is_half_written(storage: FolderStorage, tmp_path: Path, harm: str) -> None:
    """The one before is used, and what was skipped is named with its reason."""
    save(storage, 4)
    newest = save(storage, 8)
    border = seal(storage, JOB, 2, 8).number
    piece, entry = pieces(storage, tmp_path, 8)[0], tmp_path / "s" / key(JOB, newest)
    match harm:
        case "truncated":
            os.truncate(piece, 10)
        case "flipped":
            data = bytearray(piece.read_bytes())
            data[-2] ^= 4
            piece.write_bytes(data)
        case "missing piece":
            piece.unlink()
        case "missing manifest":
            entry.unlink()
        case _:
            entry.write_text(entry.read_text()[:40])
    loaded = load_newest(storage, JOB, border)
    assert loaded.step == 4
    words = {"truncated": "has 10 bytes", "flipped": "another checksum", "missing piece": "is missing",
             "missing manifest": "is missing", "torn manifest": "is not a manifest"}[harm]  # fmt: skip
    assert len(loaded.skipped) == 1
    assert words in loaded.skipped[0]
    assert (piece.name if "manifest" not in harm else entry.name) in loaded.skipped[0]


def test_a_job_whose_checkpoints_are_all_broken_never_starts_at_zero(storage: FolderStorage, tmp_path: Path) -> None:
    number = save(storage, 4)
    pieces(storage, tmp_path, 4)[0].unlink()
    with pytest.raises(RestoreError, match="no checkpoint verifies"):
        load_newest(storage, JOB, number + 1)
    assert load_newest(storage, JOB, 1).step == 0, "the beginning, when nothing was ever sealed before"


def test_retiring_takes_the_pieces_too(storage: FolderStorage, tmp_path: Path) -> None:
    number = save(storage, 4)
    kept = save(storage, 8)
    entry = read_lineage(storage, JOB)[0]
    assert isinstance(entry, Checkpoint)
    assert why_broken(storage, entry) is None
    retire(storage, JOB, number)
    assert pieces(storage, tmp_path, 4) == []
    assert steps(storage) == [8]
    assert load_newest(storage, JOB, kept + 1).skipped == ()


def test_a_disk_that_refuses_fails_the_save(tmp_path: Path) -> None:
    blocked = tmp_path / "s"
    blocked.write_text("a file, not a folder")
    saver = Saver(FolderStorage(blocked), lambda save, number: None)
    saver.begin(Save(JOB, 1, 1, 0, 1, {}), tensors(1))
    with pytest.raises(StorageError, match="cannot write"):
        saver.wait()


def code(folder: Path) -> Path:
    return write(folder / "code", program="def build(ctx):\n    return 1\n", other="x = 1\n")


def test_a_bundle_depends_on_content_alone(tmp_path: Path) -> None:
    folder = code(tmp_path)
    first = bundle.pack(folder)
    os.utime(folder / "other.py", (1, 1))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_bytes(b"1")
    assert bundle.pack(folder) == first
    (folder / "other.py").write_text("x = 2\n")
    assert bundle.pack(folder)[0] != first[0]


def test_a_bundle_is_unpacked_whole_and_verified(tmp_path: Path, storage: FolderStorage) -> None:
    digest, data = bundle.pack(code(tmp_path))
    storage.put(bundle.key(digest), data)
    target = bundle.unpack(storage, digest, tmp_path / "out")
    assert {path.name for path in target.iterdir()} == {"program.py", "other.py"}
    storage.put(bundle.key("0" * 64), data)
    with pytest.raises(bundle.BundleError, match="another checksum"):
        bundle.unpack(storage, "0" * 64, tmp_path / "out2")
    with pytest.raises(bundle.BundleError, match="not in the storage"):
        bundle.unpack(storage, "1" * 64, tmp_path / "out3")


def test_links_and_too_much_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = code(tmp_path)
    (folder / "secret").symlink_to("/etc/passwd")
    with pytest.raises(bundle.BundleError, match="secret is a link"):
        bundle.pack(folder)
    (folder / "secret").unlink()
    monkeypatch.setattr(bundle, "MAX_FILES", 1)
    with pytest.raises(bundle.BundleError, match="2 files, at most 1"):
        bundle.pack(folder)
    monkeypatch.setattr(bundle, "MAX_FILES", 9)
    monkeypatch.setattr(bundle, "MAX_BYTES", 3)
    with pytest.raises(bundle.BundleError, match="bytes, at most 3"):
        bundle.pack(folder)
    with pytest.raises(bundle.BundleError, match="not a folder"):
        bundle.pack(tmp_path / "nowhere")


def archive(name: str, mode: int = 0o100644) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as made:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        made.writestr(info, "x")
    return memory.getvalue()


@pytest.mark.parametrize("name", ["../x.py", "/etc/x.py", "a/../../x.py", "a\\..\\x.py"])
def test_a_bundle_that_leaves_its_folder_is_refused(name: str) -> None:
    with pytest.raises(bundle.BundleError, match="leaves the bundle's folder"):
        bundle.check(archive(name))


def test_a_link_within_an_archive_and_junk_are_refused() -> None:
    with pytest.raises(bundle.BundleError, match="is a link"):
        bundle.check(archive("x.py", 0o120777))
    with pytest.raises(bundle.BundleError, match="not a zip"):
        bundle.check(b"junk")


def test_a_program_must_be_in_its_bundle(tmp_path: Path) -> None:
    _, data = bundle.pack(code(tmp_path))
    bundle.check_program(data, "program:build")
    for entry, words in (("program:train", "does not define"), ("main:build", "no module 'main'")):
        with pytest.raises(bundle.BundleError, match=words):
            bundle.check_program(data, entry)
    _, broken = bundle.pack(write(tmp_path / "broken", program="def build(:\n"))
    with pytest.raises(bundle.BundleError, match="line 1"):
        bundle.check_program(broken, "program:build")


def test_a_done_file_says_what_its_piece_holds(storage: FolderStorage) -> None:
    save(storage, 4, writers=1)
    names = [name for name in storage.list(f"jobs/{JOB}/saves") if name.endswith(".done.json")]
    done = json.loads(storage.read(names[0]) or b"")
    assert set(done["tensors"]) == set(tensors(4))
    assert done["size"] == len(storage.read(done["key"]) or b"") > 0
