"""What a disturbed run has saved wrong: from real files, and from folders written by hand."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_multihost.extensions.sweep.saved import Damage, find_damage, look_at

pytestmark = pytest.mark.unit

Change = Callable[[Path], object]


def archive(*parts: str) -> bytes:
    """Return what torch.save writes: a zip archive of parts that are not compressed.

    Args:
        parts: Beside the pickle, which names storage 0.
    """
    parts = parts or ("data/0", "version")
    found = io.BytesIO()
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000tQ."
    with zipfile.ZipFile(found, "w") as file:
        file.writestr("archive/data.pkl", b"\x80\x02" + storage)
        for name in parts:
            file.writestr(f"archive/{name}", bytes(4096))
    return found.getvalue()


def safetensors() -> bytes:
    """Return a file of one tensor of eight bytes."""
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(8)


def npy() -> bytes:
    """Return an array of two floats."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(8)


FORMATS = {
    "w.pt": archive(),
    "w.safetensors": safetensors(),
    "w.npy": npy(),
    "w.json": b'{"step": 7}',
}


def checkpoint(folder: Path) -> None:
    """Write a checkpoint of two parts with the mark that it is complete, and what names it."""
    (folder / "step-7").mkdir(parents=True)
    for rank in range(2):
        (folder / "step-7" / f"shard-{rank}.pt").write_bytes(archive())
    (folder / "step-7" / "done").touch()
    (folder / "latest").write_text("step-7\n")


def damage(tmp_path: Path, change: Change, write: Change = checkpoint) -> tuple[Damage, ...]:
    """Return what is wrong in a folder that was written like another one, and then changed."""
    write(tmp_path / "usual")
    write(tmp_path / "now")
    change(tmp_path / "now")
    usual = look_at(tmp_path / "usual")
    return find_damage(usual, look_at(tmp_path / "now", usual))


def written(name: str, content: bytes) -> Change:
    """Return what writes a file."""

    def write(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return write


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_file_that_is_cut_off_does_not_load(name: str, part: float, tmp_path: Path) -> None:
    """Whatever its format; nothing else says that it is good."""
    content = FORMATS[name]
    cut = written(name, content[: int(len(content) * part)])
    (found,) = damage(tmp_path, cut, written(name, content))
    assert (found.path, found.is_vouched) == (name, False)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_with_other_content_is_in_order(name: str, tmp_path: Path) -> None:
    """Values may differ."""
    other = FORMATS[name].replace(bytes(8), bytes(range(8))).replace(b"7", b"8")
    if name == "w.pt":
        other = FORMATS[name]
    assert damage(tmp_path, written(name, other), written(name, FORMATS[name])) == ()


def test_an_archive_without_a_part_that_its_pickle_names_does_not_load(tmp_path: Path) -> None:
    """Its writer was closed before it had written all."""
    write = written("w.pt", archive())
    (found,) = damage(tmp_path, written("w.pt", archive("version")), write)
    assert found.what == "is an archive without data/0"


def test_an_archive_whose_part_has_another_checksum_does_not_load(tmp_path: Path) -> None:
    """It has its whole length."""
    content = archive()
    broken = content[:1000] + b"x" + content[1001:]
    (found,) = damage(tmp_path, written("w.pt", broken), written("w.pt", content))
    assert "archive/data/0" in found.what


@pytest.mark.parametrize("name", ["w.pt.tmp", "tmp-1/w.pt", ".w.pt", "w.pt.part", "run.log.json"])
def test_a_temporary_file_never_counts(name: str, tmp_path: Path) -> None:
    """It is allowed to be anything."""
    assert damage(tmp_path, written(name, b"PK"), written(name, archive())) == ()


def test_what_was_not_in_order_undisturbed_does_not_count(tmp_path: Path) -> None:
    """Nor does a file that was not there."""
    assert damage(tmp_path, written("w.json", b"{"), written("w.json", b"{ ")) == ()
    assert damage(tmp_path / "new", written("new.json", b"{")) == ()


def test_a_checkpoint_that_lacks_a_part_is_not_complete(tmp_path: Path) -> None:
    """Its mark says that it is; and so does what names it."""
    (found,) = damage(tmp_path, lambda folder: (folder / "step-7" / "shard-1.pt").unlink())
    assert (found.path, found.is_vouched) == ("step-7", True)
    assert found.what.startswith("lacks shard-1.pt, although ")


def test_a_part_that_does_not_load_is_vouched_for(tmp_path: Path) -> None:
    """By the mark in its folder."""
    (found,) = damage(tmp_path, written("step-7/shard-1.pt", b"PK\x03\x04"))
    assert (found.path, found.is_vouched) == ("step-7/shard-1.pt", True)


def test_without_its_mark_a_checkpoint_may_lack_anything(tmp_path: Path) -> None:
    """It was never finished, and nothing names it."""

    def unfinished(folder: Path) -> None:
        for name in ("step-7/done", "step-7/shard-1.pt", "latest"):
            (folder / name).unlink()

    assert damage(tmp_path, unfinished) == ()


@pytest.mark.parametrize("name", ["step-8", "step-7/missing"])
def test_a_pointer_to_nothing_is_wrong(name: str, tmp_path: Path) -> None:
    """Nothing of that name is there."""
    (found,) = damage(tmp_path, written("latest", name.encode()))
    assert (str(found), found.is_vouched) == (f"latest names {name}, which is not there", True)


def test_a_pointer_to_a_part_of_a_checkpoint_is_wrong(tmp_path: Path) -> None:
    """What it names now has fewer files than what it named undisturbed."""

    def another(folder: Path) -> None:
        checkpoint_of_one = folder / "step-6"
        checkpoint_of_one.mkdir()
        (checkpoint_of_one / "shard-0.pt").write_bytes(archive())
        (folder / "latest").write_text("step-6")

    (found,) = damage(tmp_path, another)
    assert (found.path, found.is_vouched) == ("step-6", True)


def test_a_pointer_to_an_older_whole_checkpoint_is_in_order(tmp_path: Path) -> None:
    """The newer one was not saved, and nothing says that it was."""

    def older(folder: Path) -> None:
        (folder / "step-7").rename(folder / "step-6")
        (folder / "latest").write_text("step-6")

    assert damage(tmp_path, older) == ()


def test_an_index_that_lists_a_missing_part_is_wrong(tmp_path: Path) -> None:
    """The other parts are there."""

    def write(folder: Path) -> None:
        folder.mkdir()
        index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        for number in (1, 2):
            (folder / f"model-{number}.safetensors").write_bytes(safetensors())

    (found,) = damage(tmp_path, lambda folder: (folder / "model-2.safetensors").unlink(), write)
    assert found.is_vouched
    assert str(found) == (
        "model.safetensors.index.json names model-2.safetensors, which is not there"
    )


def test_a_programs_own_mark_is_about_parts_only(tmp_path: Path) -> None:
    """A plot beside it may be missing; a part of what has other parts may not."""

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        for name in ("done", "plot.png", "shard-0", "shard-1"):
            (folder / name).write_bytes(b"\xff")

    assert damage(tmp_path / "1", lambda folder: (folder / "plot.png").unlink(), write) == ()
    assert len(damage(tmp_path / "2", lambda folder: (folder / "shard-1").unlink(), write)) == 1


def test_a_mark_of_a_known_format_is_about_all_of_its_folder(tmp_path: Path) -> None:
    """Names that differ in each run, as those of hashes, count as equal."""

    def write(folder: Path) -> None:
        (folder / "3").mkdir(parents=True)
        drawn = f"{id(folder):016x}"
        for name in ("_CHECKPOINT_METADATA", "_METADATA", "manifest", drawn):
            (folder / "3" / name).write_bytes(b"\xff")

    assert damage(tmp_path / "1", lambda _: None, write) == ()
    (found,) = damage(tmp_path / "2", lambda folder: (folder / "3" / "manifest").unlink(), write)
    assert (found.path, found.is_vouched) == ("3", True)


def test_a_folder_that_is_missing_has_no_files(tmp_path: Path) -> None:
    """A test that shares none."""
    assert look_at(tmp_path / "none").by_path == {}


def test_a_run_that_saves_no_weights_at_all_has_lost_them(tmp_path: Path) -> None:
    """Its folder is named, with how many files are missing."""
    usual, now = tmp_path / "usual", tmp_path / "now"
    for step in (1, 2):
        (usual / f"step-{step}").mkdir(parents=True)
        (usual / f"step-{step}" / "w.pt").write_bytes(archive())
    (now / "step-1").mkdir(parents=True)
    [found] = find_damage(look_at(usual), look_at(now))
    assert (found.path, found.is_absence) == (".", True)
    assert "the 2 files" in found.what


def test_a_run_that_saves_some_of_its_weights_has_not_lost_them(tmp_path: Path) -> None:
    """One checkpoint less may be what the program wants, as when it has lost a step."""
    usual, now = tmp_path / "usual", tmp_path / "now"
    for folder, steps in ((usual, (1, 2)), (now, (2,))):
        folder.mkdir()
        for step in steps:
            (folder / f"w-{step}.safetensors").write_bytes(safetensors())
    assert find_damage(look_at(usual), look_at(now)) == ()


def test_a_run_without_its_cache_of_texts_has_lost_nothing(tmp_path: Path) -> None:
    """A cache is written if that is possible, and made anew where it is missing."""
    usual, now = tmp_path / "usual", tmp_path / "now"
    for folder in (usual, now):
        folder.mkdir()
    (usual / "cache.json").write_text("[1]")
    assert find_damage(look_at(usual), look_at(now)) == ()
