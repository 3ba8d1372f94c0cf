"""Libraries of our own: found, or compiled once by one process for all."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pytest_multihost.nemesis.io_shim import compiled


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where libraries are kept; there is none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pytest-multihost-hangs"


def test_two_at_once_compile_once(cache: Path, tmp_path: Path) -> None:
    """The second waits for the first, and finds what he has made."""
    is_building, builds = threading.Event(), []

    def build(target: Path) -> str:
        builds.append(target)
        is_building.set()
        target.write_text("made")
        return ""

    def come_second() -> tuple[Path | None, str]:
        assert is_building.wait(20)
        return compiled.find("some.so", tmp_path, build)

    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(come_second)
        first = pool.submit(compiled.find, "some.so", tmp_path, build)
        assert first.result() == second.result() == (cache / "some.so", "")
    assert builds == [cache / "some.so"]


def test_who_compiles_for_too_long_is_not_waited_for(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """His compiler may hang: everybody else does without."""
    monkeypatch.setattr(compiled, "OTHERS_S", 0.2)
    is_building, may_end = threading.Event(), threading.Event()

    def hang(_: Path) -> str:
        is_building.set()
        assert may_end.wait(20)
        return "given up"

    with ThreadPoolExecutor(1) as pool:
        pool.submit(compiled.find, "some.so", tmp_path, hang)
        assert is_building.wait(20)
        path, problem = compiled.find("some.so", tmp_path, hang)
        may_end.set()
    assert path is None
    assert "another process" in problem


def test_what_a_library_is_made_of_is_in_its_name(tmp_path: Path) -> None:
    """Each source, each header and each flag; not what else lies there."""
    (tmp_path / "one.c").write_text("int one;")
    names = {compiled.digest(tmp_path), compiled.digest(tmp_path, "-O3")}
    (tmp_path / "one.h").write_text("int more;")
    names.add(compiled.digest(tmp_path))
    (tmp_path / "notes.txt").write_text("nothing")
    assert compiled.digest(tmp_path) in names
    assert len(names) == 3


def test_what_is_beside_its_sources_is_taken(cache: Path, tmp_path: Path) -> None:
    """As it is in a wheel, whether or not there is a compiler."""
    (tmp_path / "some.so").write_text("made")
    assert compiled.find("some.so", tmp_path, lambda _: "no compiler") == (tmp_path / "some.so", "")
    assert not cache.exists()
