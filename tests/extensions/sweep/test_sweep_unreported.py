"""Sweeps of real tests that go wrong although no rank reports it, and of those that look alike."""

from __future__ import annotations

import re
from typing import Any

import pytest
from runtimes import needs

from pytest_multihost.extensions.sweep.record import read_sweep
from pytest_multihost.extensions.sweep.result import DisturbedRun

pytestmark = [needs("torch"), pytest.mark.worlds]

SWEEP = "--multihost-sweep=fails,differs"

HEAD = """
import contextlib, json, pytest, time
import torch, torch.distributed as dist

def meet(value=1.0):
    dist.all_reduce(torch.full((2,), value))

def any_rank(is_so):
    flag = torch.tensor(int(is_so))
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)

def written(folder, names):
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_text("1")
"""

TEST = """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
"""

# Each rank counts the files that it sees itself, and reduces so many values.
SIZES = (
    HEAD
    + TEST
    + """
def test_sizes(world, shared_tmp_path):
    dist.barrier()
    error = None
    try:
        if world.rank == 0:
            written(shared_tmp_path / "rows", "abc")
    except OSError as caught:
        error = caught
    if any_rank(error is not None):
        raise RuntimeError("the rows are not all there")
    count = len([*(shared_tmp_path / "rows").iterdir()])
    dist.all_reduce(torch.ones(4 * (count + 1)))
"""
)

# Each rank saves by its own clock.
CLOCK = (
    HEAD
    + TEST
    + """
def test_clock(world):
    saved_at = time.time()
    for _ in range(4):
        meet()
        if time.time() - saved_at > 1800:
            dist.barrier()
            saved_at = time.time()
"""
)

# The mark is set whether or not all parts could be saved; the agreed one only if they could.
PARTS = (
    HEAD
    + """
def saved(folder, rank):
    try:
        folder.mkdir(exist_ok=True)
        torch.save(torch.ones(4), folder / f"part-{rank}.pt")
    except OSError:
        return False
    return True
"""
    + TEST
    + """
def test_parts(world, shared_tmp_path):
    saved(shared_tmp_path / "step", world.rank)
    dist.barrier()
    with contextlib.suppress(OSError):
        if world.rank == 0:
            (shared_tmp_path / "step" / "done").touch()
"""
    + TEST
    + """
def test_agreed_parts(world, shared_tmp_path):
    if any_rank(not saved(shared_tmp_path / "step", world.rank)):
        raise RuntimeError("a part was not saved")
    with contextlib.suppress(OSError):
        if world.rank == 0:
            (shared_tmp_path / "step" / "done").touch()
"""
)

# The test asserts what each rank has; it looks itself at a file, and at the time.
ASSERTED = (
    HEAD
    + """
def newest(folder):
    return max((int(each.name) for each in folder.iterdir()), default=0)

def prepared(world, folder):
    dist.barrier()
    error = None
    try:
        if world.rank == 0:
            written(folder, ["7"])
    except OSError as caught:
        error = caught
    if any_rank(error is not None):
        raise RuntimeError("not prepared")
"""
    + TEST
    + """
def test_resumed(world, shared_tmp_path):
    prepared(world, shared_tmp_path / "steps")
    step = newest(shared_tmp_path / "steps")
    meet()
    assert step == 7
"""
    + TEST
    + """
def test_looks_itself(world, shared_tmp_path):
    begun = time.time()
    prepared(world, shared_tmp_path / "steps")
    meet()
    assert time.time() - begun < 60
    assert (shared_tmp_path / "steps" / "7").exists()
"""
)


def line_of(source: str, text: str) -> int:
    """Return the line of a source text, as pytester writes it, that contains a text."""
    lines = source.strip().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def witnesses(worlds: Any, test: str) -> list[DisturbedRun]:  # noqa: ANN401 - of conftest.py
    """Return the witnesses of all weaknesses of a test."""
    result = read_sweep(worlds.directory(test) / "sweep.json")
    return [each.witness for each in result.weaknesses]


@pytest.mark.program(SIZES, SWEEP)
def test_sizes_that_cannot_match_are_found_however_gloo_ends_them(worlds) -> None:
    """Each rank passes a tensor of another size."""
    found = [e for e in witnesses(worlds, "test_sizes") if e.outcome == "mismatched"]
    assert found
    assert {each.culprit.line for each in found if each.culprit} == {
        line_of(SIZES, "all_reduce(torch.ones(4")
    }
    assert all("entered all_reduce f32[" in each.summary for each in found)
    worlds.run.stdout.fnmatch_lines(["WRONG  when rank 1 did not see *"])


@pytest.mark.program(CLOCK, SWEEP)
def test_a_clock_is_found_at_the_line_that_reads_it(worlds) -> None:
    """Not at the barrier that only one rank enters."""
    (found,) = witnesses(worlds, "test_clock")
    assert found.has_decided
    assert found.culprit is not None
    assert found.culprit.line == line_of(CLOCK, "> 1800")
    worlds.run.stdout.fnmatch_lines(["*test_worlds.py:*time.time() - saved_at > 1800*"])


@pytest.mark.program(PARTS, SWEEP)
def test_a_mark_without_all_parts_is_wrong(worlds) -> None:
    """Nobody says that a part is missing; if all agree first, there is no mark."""
    found = [each for each in witnesses(worlds, "test_parts") if each.wrong_by == "files"]
    assert found
    assert {each.culprit.line for each in found if each.culprit} == {
        line_of(PARTS, "except OSError:")
    }
    assert all(re.search("lacks part-[01].pt, although step/done says", e.summary) for e in found)
    assert witnesses(worlds, "test_agreed_parts") == []


@pytest.mark.program(ASSERTED, SWEEP)
def test_an_assertion_of_the_test_alone_is_wrong(worlds) -> None:
    """The rank went on from another step; a test that looks itself is to blame itself."""
    found = [each for each in witnesses(worlds, "test_resumed") if each.wrong_by]
    assert {each.wrong_by for each in found} == {"test"}
    assert {each.culprit.line for each in found if each.culprit} == {
        line_of(ASSERTED, "return max(")
    }
    assert "rank 1's own assertion of the test failed" in found[0].summary
    assert witnesses(worlds, "test_looks_itself") == []
