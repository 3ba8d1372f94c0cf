"""slow_io against real ranks: by the preloaded shim where it can be had, else as far as Python."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_multihost.extensions.faults.io_shim import LIBRARY, find_library, why_missing

HEAD = """
import ctypes, os, time
import pytest
from pytest_multihost import at, faults

C = ctypes.CDLL(None, use_errno=True)

def c_read(file, size=1000):
    "As C++ readers do: returns what was read, or the number of the error."
    descriptor = C.open(os.fsencode(file), 0)
    if descriptor < 0:
        return ctypes.get_errno()
    buffer = ctypes.create_string_buffer(size)
    count = C.read(descriptor, buffer, size)
    C.close(descriptor)
    return buffer.raw[:count] if count >= 0 else ctypes.get_errno()

def took(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began

def slow(**given):
    fault = faults.slow_io(rank=1, **{"path": "*/ckpt/*", **given})
    return pytest.mark.multihost(ranks=2, timeout=20, faults=[fault])

@pytest.fixture
def file(tmp_path):
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "other").write_bytes(b"x" * 1000)
    return tmp_path / "ckpt" / "a"
"""

with_shim = pytest.mark.skipif(find_library() is None, reason=why_missing())


def faults_of(worlds: Any, test: str) -> dict[str, Any]:  # noqa: ANN401 - of the conftest file
    """Return what the verdict says of a test's only fault."""
    [fault] = worlds.verdicts[test]["faults"]
    return fault


@with_shim
def test_files_that_c_reads_are_slow_and_broken_too(run_worlds) -> None:
    """Each compares the rank that is struck with the one that is not, and a file beside it."""
    worlds = run_worlds(
        HEAD
        + """
@pytest.fixture
def healed(file):
    yield
    assert took(lambda: c_read(file)) < 0.2

@slow(seconds=0.3)
def test_delay(world, file, healed):
    file.write_bytes(b"x" * 1000)
    assert (took(lambda: c_read(file)) >= 0.6) == (world.rank == 1)
    assert took(lambda: c_read(file.parent.parent / "other")) < 0.3

@slow(bytes_per_s=2000)
def test_rate(world, file, healed):
    file.write_bytes(b"x" * 1000)
    assert (took(lambda: c_read(file)) >= 0.4) == (world.rank == 1)

@slow(error="EIO", at=at.sync_point("written"))
def test_error(world, file):
    file.write_bytes(b"x" * 1000)
    world.sync_point("written")
    assert c_read(file) == (5 if world.rank else b"x" * 1000)

@slow(error="ENOSPC")
def test_full(world, file):
    with file.open("wb", buffering=0) as stream:
        try:
            stream.write(b"x")
        except OSError as error:
            assert (world.rank, error.errno) == (1, 28)
        else:
            assert world.rank == 0
    assert isinstance(c_read(file), bytes)

@slow(short_reads=True, at=at.sync_point("written"))
def test_short(world, file):
    file.write_bytes(b"x" * 1000)
    world.sync_point("written")
    assert len(c_read(file)) == (500 if world.rank else 1000)
    assert len(file.read_bytes()) == 1000
"""
    )
    worlds.run.assert_outcomes(passed=5)
    assert "launch: server (slow_io)" in worlds.stdout
    for name in worlds.verdicts:
        fault = faults_of(worlds, name)
        assert set(fault["fired"]) == {"1"}, name
        assert "note" not in fault


@with_shim
@pytest.mark.program(
    HEAD
    + """
@slow(seconds=600, at=at.sync_point("x"))
def test_hang(world, file):
    file.write_bytes(b"x")
    world.sync_point("x")
    if world.rank == 1:
        c_read(file)
    world.barrier("end")
"""
)
def test_a_rank_that_reads_for_longer_than_the_test_may_take_is_proven_to_hang(worlds) -> None:
    """Its delay is one sleep, and that it fired is known though it lives to tell nothing."""
    worlds.run.assert_outcomes(failed=1)
    verdict = worlds.verdicts["test_hang"]
    diagnosis = verdict["diagnosis"]
    told = (diagnosis["kind"], diagnosis["culprits"], diagnosis["detected_by"], diagnosis["notes"])
    assert told == ("straggler", [1], "proof", [])
    assert diagnosis["where"]["function"] == "c_read"
    assert set(faults_of(worlds, "test_hang")["fired"]) == {"1"}


@pytest.mark.parametrize("launch", ["auto", "fork"])
@pytest.mark.program(
    HEAD
    + """
@slow(seconds=0.1)
def test_child(world, file):
    if world.rank == 1:
        pid = os.fork()
        if pid == 0:
            file.write_text("hello")
            os._exit(0)
        os.waitpid(pid, 0)
""",
    "--multihost-launch=$launch",
)
def test_what_only_a_forked_child_reads_counts(worlds, launch: str) -> None:
    """As workers of a DataLoader do: the child tells nobody, the page does."""
    worlds.run.assert_outcomes(passed=1)
    assert set(faults_of(worlds, "test_child")["fired"]) == {"1"}


def test_without_the_shim_python_files_are_slow_and_the_verdict_says_what_is_not(
    run_worlds,
) -> None:
    """In a fork of pytest's process there is none: nothing can be preloaded into it."""
    worlds = run_worlds(
        HEAD
        + """
@slow(seconds=0.3)
def test_slow(world, file):
    assert (took(lambda: file.write_bytes(b"x")) >= 0.6) == (world.rank == 1)
    assert took(lambda: c_read(file)) < 0.3

@slow(seconds=600)
def test_hang(world, file):
    if world.rank == 1:
        file.write_bytes(b"x")
    world.barrier("end")

@slow(seconds=0.1)
def test_unfired(world, file):
    pass
""",
        "--multihost-launch=fork",
    )
    worlds.run.assert_outcomes(passed=1, failed=2)
    words = "slow_io works at Python level only: "
    for name in worlds.verdicts:
        assert faults_of(worlds, name)["note"].startswith(words)
    diagnosis = worlds.verdicts["test_hang"]["diagnosis"]
    assert [note for note in diagnosis["notes"] if note.startswith(words)]
    assert (diagnosis["kind"], diagnosis["culprits"]) == ("straggler", [1])
    assert worlds.stdout.count(words) >= 2


@pytest.mark.skipif(any(LIBRARY.source.parent.glob("_shim-*.so")), reason="it is installed already")
def test_without_a_compiler_the_cheapest_launch_does_and_the_verdict_says_why(
    run_worlds, monkeypatch, tmp_path
) -> None:
    """Nothing else is worse for it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "/no/compiler")
    worlds = run_worlds(
        HEAD
        + """
@slow(seconds=0.3)
def test_slow(world, file):
    assert (took(lambda: file.write_bytes(b"x")) >= 0.6) == (world.rank == 1)
"""
    )
    worlds.run.assert_outcomes(passed=1)
    assert "on several ranks\n" in worlds.stdout
    assert "C compiler" in faults_of(worlds, "test_slow")["note"]


@with_shim
@pytest.mark.program(
    HEAD
    + """
@pytest.mark.multihost(
    ranks=2, backend="gloo", timeout=30, faults=[faults.slow_io(rank="all", seconds=0.4)])
def test_all(world, shared_tmp_path):
    import importlib, json.tool, pathlib, torch.distributed
    assert took(lambda: pathlib.Path(json.tool.__file__).read_text()) < 0.4
    assert took(lambda: pathlib.Path("/proc/self/status").read_text()) < 0.4
    assert took(lambda: print("into the log")) < 0.4
    assert took(lambda: torch.distributed.new_group()) < 0.4
    assert took(lambda: (shared_tmp_path / f"{world.rank}").write_text("x")) >= 0.8
"""
)
def test_the_star_spares_what_belongs_to_nobodys_test(worlds) -> None:
    """Python's own, what is installed, the kernel's and ours; what the test writes is slow."""
    worlds.run.assert_outcomes(passed=1)


@with_shim
def test_faults_of_the_command_line_and_of_a_token_get_the_shim(run_worlds) -> None:
    """It is their need, wherever they come from."""
    source = (
        HEAD
        + """
@pytest.mark.multihost(ranks=2)
def test_it(world, file):
    file.write_bytes(b"x")
    assert (took(lambda: c_read(file)) >= 0.2) == (world.rank == 1)
"""
    )
    plain = run_worlds(source)
    plain.run.assert_outcomes(failed=1)
    assert "on several ranks\n" in plain.stdout
    text = "slow_io(rank=1, seconds=0.2, path='*/ckpt/*')"
    first = run_worlds(source, "--multihost-fault", text)
    first.run.assert_outcomes(passed=1)
    again = run_worlds(source, "--multihost-replay", first.verdicts["test_it"]["replay"])
    again.run.assert_outcomes(passed=1)
    assert "launch: server (slow_io)" in first.stdout
    assert "launch: server (slow_io)" in again.stdout


@with_shim
def test_fresh_interpreters_get_the_shim(run_worlds) -> None:
    """Where another fault needs these; the environment is handed on."""
    worlds = run_worlds(
        HEAD
        + """
@pytest.mark.multihost(ranks=2, faults=[
    faults.hash_seed(), faults.slow_io(rank=1, seconds=0.3, path="*/ckpt/*")])
def test_it(world, file):
    file.write_bytes(b"x")
    assert (took(lambda: c_read(file)) >= 0.6) == (world.rank == 1)
"""
    )
    worlds.run.assert_outcomes(passed=1)
    assert "launch: spawn (hash_seed; slow_io)" in worlds.stdout
