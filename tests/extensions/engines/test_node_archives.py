"""An archive of a node has the files that were asked for, of bounded sizes, or cannot be read."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_multihost.extensions.engines.attach.archives import MAX_FILE, members, write_files
from pytest_multihost.testing import UnreadableError

pytestmark = pytest.mark.unit


def archive(files: Mapping[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a zip archive."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w", kind) as written:
        for name, data in files.items():
            written.writestr(name, data)
    return held.getvalue()


BOMB = archive({"rank-1.log": bytes(MAX_FILE + 1)})


SOUND = archive({"rank-1.log": b"log", "rank-1.stacks": b""})


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(BOMB, id="a file that is larger unpacked"),
        pytest.param(b"no archive", id="no archive"),
        pytest.param(SOUND[:60], id="a part of an archive"),
        pytest.param(archive({"rank-0.log": b"x"}), id="a file of another rank"),
        pytest.param(archive({"verdict.json": b"{}"}), id="a file that the controller writes"),
        pytest.param(archive({"../rank-1.log": b"x"}), id="a name with a folder"),
        pytest.param(archive({"x/..": b"x"}), id="the folder above"),
        pytest.param(archive({"rank-01.log": b"x"}), id="another way to write the number"),
        pytest.param(
            archive({"rank-1.log": b"x"}, zipfile.ZIP_LZMA), id="a dictionary of any size"
        ),
        pytest.param(archive({f"rank-1.x{n}": b"" for n in range(21)}), id="too many files"),
        pytest.param(SOUND.replace(b"rank-1.stacks", b"rank-1.log\0\0\0"), id="a name with zeros"),
        pytest.param(SOUND.replace(b"log", b"lag", 1), id="a name that differs in the directory"),
    ],
)
def test_an_archive_of_a_node_has_what_was_asked_for_or_cannot_be_read(
    payload: bytes, tmp_path: Path
) -> None:
    """Neither a size nor a name in it is the node's choice, and nothing is written of it."""
    with pytest.raises(UnreadableError):
        write_files(payload, tmp_path, [1])
    assert {path.name for path in tmp_path.iterdir()} <= {"rank-1.log"} | {
        f"rank-1.x{n}" for n in range(21)
    }


def test_the_same_file_twice_is_no_archive_of_ours() -> None:
    """The second would replace the first after it was checked."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as files:
        files.writestr("rank-1.log", b"one")
        with pytest.warns(UserWarning, match="Duplicate"):
            files.writestr("rank-1.log", b"two")
    with pytest.raises(UnreadableError, match="same name"):
        dict(members(held.getvalue(), [1]))


def test_a_file_is_not_written_through_a_link(tmp_path: Path) -> None:
    """The file that the link leads to stays as it is."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "rank-1.log").symlink_to(precious)
    write_files(SOUND, folder, [1])
    assert precious.read_text() == "precious"
    assert (folder / "rank-1.log").read_bytes() == b"log"


def test_sound_archives_are_read(tmp_path: Path) -> None:
    """An empty one, one without files, and one with a log of the longest size."""
    assert dict(members(b"", [1])) == {}
    assert dict(members(archive({}), [1])) == {}
    assert dict(members(SOUND, [0, 1])) == {"rank-1.log": b"log", "rank-1.stacks": b""}
    long = archive({"rank-1.log": bytes(MAX_FILE)})
    write_files(long, tmp_path, [1])
    assert (tmp_path / "rank-1.log").stat().st_size == MAX_FILE
