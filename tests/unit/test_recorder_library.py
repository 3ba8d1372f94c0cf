"""The recorder's library: found, compiled once, or missing with a reason."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_multihost.nemesis.io_shim import compiled
from pytest_multihost.rank.recorder.fast import build, library


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is compiled yet, and nothing is found; returns where it would be put."""
    library._found.cache_clear()
    monkeypatch.setattr(library, "file_name", lambda: "_fast-of-a-test.so")
    monkeypatch.setattr(compiled, "cache_directory", lambda: tmp_path / "cache")
    monkeypatch.delenv(library.PURE_VARIABLE, raising=False)
    yield tmp_path / "cache"
    library._found.cache_clear()


needs_compiler = pytest.mark.skipif(
    library.loaded() is None, reason=f"it cannot be had here: {library.why_missing()}"
)


@needs_compiler
def test_it_is_compiled_on_first_use(bare: Path) -> None:
    """Once, and nothing else is left beside it."""
    module = library.loaded()
    assert module is not None
    assert library.why_missing() == ""
    assert sorted(path.name for path in bare.iterdir() if path.suffix != ".lock") == [
        "_fast-of-a-test.so"
    ]
    assert module.Counter(7).__next__() == 7


def test_its_name_tells_source_and_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that is made of another source, or for another Python, is not taken for it."""
    name = build.file_name()
    monkeypatch.setattr(build, "abi", lambda: "cpython-399-somewhere")
    other_python = build.file_name()
    changed = tmp_path / "_fast.c"
    changed.write_text("other")
    monkeypatch.setattr(build, "SOURCE", changed)
    assert len({name, other_python, build.file_name()}) == 3


def test_without_a_compiler_it_is_missing_and_says_why(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest works."""
    monkeypatch.setenv("CC", "no-such-compiler")
    assert library.loaded() is None
    assert "no C compiler" in library.why_missing()
    assert not [path for path in bare.iterdir() if path.suffix == ".so"]


def test_a_compiler_that_is_no_command_is_none(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one with an open quote."""
    monkeypatch.setenv("CC", "cc 'of mine")
    assert library.loaded() is None
    assert "no C compiler" in library.why_missing()


def test_without_a_home_nothing_is_kept_where_one_is(
    bare: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor run from there: whoever can write there could have put it."""
    monkeypatch.setattr(compiled, "cache_directory", lambda: Path("~/.cache"))
    monkeypatch.chdir(tmp_path)
    planted = tmp_path / "~" / ".cache" / "_fast-of-a-test.so"
    planted.parent.mkdir(parents=True)
    planted.write_bytes(b"no library")
    assert library.loaded() is None
    assert "is not an absolute path" in library.why_missing()
    assert list(planted.parent.iterdir()) == [planted]


def test_what_failed_is_not_tried_at_each_start(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is kept, with how to try again."""
    monkeypatch.setenv("CC", "false")
    assert library.loaded() is None
    monkeypatch.setenv("CC", "true")
    library._found.cache_clear()
    assert library.loaded() is None
    assert "could not be compiled" in library.why_missing()
    assert "to try again" in library.why_missing()


def test_a_broken_library_is_as_good_as_none(bare: Path) -> None:
    """Say, one of a full disk."""
    bare.mkdir()
    (bare / "_fast-of-a-test.so").write_bytes(b"no library")
    assert library.loaded() is None
    assert "cannot be loaded" in library.why_missing()


def test_it_can_be_left_out(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variable that also leaves it out of a wheel."""
    monkeypatch.setenv(library.PURE_VARIABLE, "1")
    assert library.loaded() is None
    assert library.why_missing() == "PYTEST_MULTIHOST_PURE=1 leaves it out"


@needs_compiler
def test_its_source_is_without_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that compilers have for everybody."""
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-Wall", "-Wextra", "-Werror"))
    assert build.build(tmp_path / "strict.so") == ""


@needs_compiler
def test_threads_have_states_of_their_own() -> None:
    """And one that has ended leaves none."""
    program = """
import threading
from pytest_multihost.rank.recorder.fast import library
local = library.loaded().Local()
local.work, local.at, local.coalesced = 7, 8, [9]
seen = []
def look():
    seen.append((local.work, local.at, local.coalesced))
    local.work = 1
for _ in range(3):
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
print(seen, local.work, local.at, local.coalesced)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=50,
        env=dict(os.environ),
    )
    assert done.stdout.strip() == f"{[(0, 0, None)] * 3} 7 8 [9]"
