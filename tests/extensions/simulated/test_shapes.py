"""Every hang of `shapes` is found with both of its lines, and none of the mended programs is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import shapes
from shape_worlds import Verdict, marked, run_shapes, sides, told

# The first test of a few programs runs them all.
pytestmark = [pytest.mark.worlds, pytest.mark.timeout(600)]

SIZE, AT_A_TIME = 8, 8

Run = Callable[[str, str], Verdict]
"""Returns how a program has ended, guilty or mended."""


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run programs at eight ranks by gloo's rules, a few at a time and each once."""
    return runner(tmp_path_factory, "gloo")


@pytest.fixture(scope="module")
def nccl(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run programs at eight ranks by NCCL's rules."""
    return runner(tmp_path_factory, "nccl")


def runner(factory: pytest.TempPathFactory, semantics: str) -> Run:
    """Return a function that runs programs by some rules."""
    names = list(shapes.PROGRAMS if semantics == "gloo" else shapes.NCCL_BUGS)
    found: dict[str, Verdict] = {}

    def run(name: str, how: str) -> Verdict:
        if f"{name}-{how}" not in found:
            first = names.index(name) // AT_A_TIME * AT_A_TIME
            chunk = names[first : first + AT_A_TIME]
            found.update(run_shapes(factory.mktemp("shapes"), SIZE, chunk, semantics))
        return found[f"{name}-{how}"]

    return run


@pytest.mark.parametrize("name", shapes.BUGS)
def test_a_shape_that_hangs_is_told_with_both_lines(gloo: Run, name: str) -> None:
    """By proof, and long before the deadline."""
    check_hang(name, gloo(name, "guilty"))


def check_hang(name: str, verdict: Verdict) -> None:
    """Check that a verdict has both lines of a program, and was found before the deadline."""
    assert verdict["outcome"] == "hung"
    assert verdict["diagnosis"]["detected_by"] in ("proof", "mismatch")
    assert marked(name, "one") & told(verdict)
    assert marked(name, "other") & told(verdict)


@pytest.mark.parametrize("name", shapes.ONE)
def test_the_sides_of_a_shape_are_the_ranks_of_its_classes(gloo: Run, name: str) -> None:
    """They are known from the program."""
    expected = frozenset(rank for rank in range(SIZE) if shapes.ONE[name](rank, SIZE))
    found = sides(gloo(name, "guilty"))
    assert expected in [found[line] for line in found.keys() & marked(name, "one")]


@pytest.mark.parametrize("name", shapes.BUGS)
def test_a_mended_shape_passes(gloo: Run, name: str) -> None:
    """It is an innocent that looks like the guilty one."""
    assert gloo(name, "mended")["outcome"] == "passed"


@pytest.mark.parametrize("name", shapes.NCCL_BUGS)
def test_a_shape_of_nccl_hangs_only_by_its_rules(gloo: Run, nccl: Run, name: str) -> None:
    """Its mended twin passes by these rules, too."""
    check_hang(name, nccl(name, "guilty"))
    assert nccl(name, "mended")["outcome"] == "passed"
    assert gloo(name, "guilty")["outcome"] == "passed"
    assert gloo(name, "mended")["outcome"] == "passed"
