"""Libraries that are preloaded: found, or compiled."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_multihost.core import preload
from pytest_multihost.core.preload import PreloadedLibrary


@pytest.fixture
def library(tmp_path: Path) -> PreloadedLibrary:
    """Return a library whose source lies in a folder of its own."""
    source = tmp_path / "some.c"
    source.write_text("int one;")
    return PreloadedLibrary(source)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where libraries are kept; there is none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pytest-multihost-hangs"


def test_the_source_and_the_flags_are_in_the_name(
    library: PreloadedLibrary, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of another version is never taken; what else lies there does not matter."""
    (tmp_path / "notes.txt").write_text("nothing")
    names = {library.file_name}
    (tmp_path / "notes.txt").write_text("something")
    names.add(library.file_name)
    library.source.write_text("int two;")
    names.add(library.file_name)
    monkeypatch.setattr(preload, "_FLAGS", ("-O3",))
    names.add(library.file_name)
    assert len(names) == 3
    assert not cache.exists()


def test_a_library_beside_its_source_is_taken(
    library: PreloadedLibrary, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is in a wheel for one system, whether or not there is a compiler."""
    monkeypatch.setenv("CC", "/nonexistent/cc")
    beside = tmp_path / library.file_name
    beside.write_text("made")
    assert preload._find_once.__wrapped__(library) == (beside, "")
    assert not cache.exists()


@pytest.mark.parametrize("writable", ["folder", "library"])
def test_a_library_that_other_users_may_have_written_is_not_loaded(
    library: PreloadedLibrary, cache: Path, writable: str
) -> None:
    """XDG_CACHE_HOME may be a directory of all users, such as /tmp."""
    cache.mkdir()
    made = cache / library.file_name
    made.write_text("made")
    assert preload._find_once.__wrapped__(library) == (made, "")
    chosen = {"folder": cache, "library": made}[writable]
    chosen.chmod(0o777)
    path, why = preload._find_once.__wrapped__(library)
    assert path is None
    assert why.startswith(f"other users can write {chosen}")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user")
def test_a_library_of_another_user_is_not_loaded(library: PreloadedLibrary, cache: Path) -> None:
    """Who owns a file may change it at any time."""
    cache.mkdir()
    made = cache / library.file_name
    made.write_text("made")
    os.chown(made, 4711, 4711)
    assert preload._find_once.__wrapped__(library)[0] is None
