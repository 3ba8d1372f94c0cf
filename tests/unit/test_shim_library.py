"""The I/O shim's library: found, or compiled once by one process for all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_multihost.nemesis.io_shim import library


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where libraries are kept; there is none yet. The source lies in a folder of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "SOURCE", tmp_path / "some.c")
    return tmp_path / "pytest-multihost-hangs"


def test_two_at_once_compile_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, and finds what it has made."""
    is_building, builds = threading.Event(), []

    def build(target: Path) -> str:
        builds.append(target)
        is_building.set()
        target.write_text("made")
        return ""

    def come_second() -> tuple[Path | None, str]:
        assert is_building.wait(20)
        return library.find("some.so")

    monkeypatch.setattr(library, "build", build)
    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(come_second)
        first = pool.submit(library.find, "some.so")
        assert first.result() == second.result() == (cache / "some.so", "")
    assert builds == [cache / "some.so"]


def test_a_process_that_compiles_for_too_long_is_not_waited_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its compiler may hang: everybody else does without."""
    monkeypatch.setattr(library, "OTHERS_S", 0.2)
    is_building, may_end = threading.Event(), threading.Event()

    def hang(_: Path) -> str:
        is_building.set()
        assert may_end.wait(20)
        return "given up"

    monkeypatch.setattr(library, "build", hang)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(library.find, "some.so")
        assert is_building.wait(20)
        path, problem = library.find("some.so")
        may_end.set()
    assert path is None
    assert "another process" in problem
    assert not (cache / "some.so").exists()


def test_the_source_and_the_flags_are_in_the_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library of another version is never taken; what else lies there does not matter."""
    source = tmp_path / "some.c"
    source.write_text("int one;")
    (tmp_path / "notes.txt").write_text("nothing")
    names = {library.file_name()}
    (tmp_path / "notes.txt").write_text("something")
    names.add(library.file_name())
    source.write_text("int two;")
    names.add(library.file_name())
    monkeypatch.setattr(library, "_FLAGS", ("-O3",))
    names.add(library.file_name())
    assert len(names) == 3
    assert not cache.exists()


def test_a_library_beside_its_source_is_taken(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is in a wheel for one system, whether or not there is a compiler."""
    monkeypatch.setattr(library, "build", lambda _: "no compiler")
    (tmp_path / "some.so").write_text("made")
    assert library.find("some.so") == (tmp_path / "some.so", "")
    assert not cache.exists()
