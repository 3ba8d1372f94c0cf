"""Every hang of `shapes` is found with both of its lines, and none of the mended programs is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import shapes
from shape_worlds import Verdict, marked, run_shapes, sides, told

pytestmark = pytest.mark.worlds

SIZE = 8


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Verdict]:
    """Run all shapes at eight ranks, once; return their verdicts by test."""
    return run_shapes(tmp_path_factory.mktemp("shapes"), SIZE, list(shapes.PROGRAMS))


@pytest.fixture(scope="module")
def nccl_verdicts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Verdict]:
    """Run the shapes that only NCCL's rules let hang, by these rules."""
    return run_shapes(tmp_path_factory.mktemp("nccl"), SIZE, list(shapes.NCCL_BUGS), "nccl")


@pytest.mark.parametrize("name", shapes.BUGS)
def test_a_shape_that_hangs_is_told_with_both_lines(
    verdicts: Mapping[str, Verdict], name: str
) -> None:
    """By proof, and long before the deadline."""
    check_hang(name, verdicts[f"{name}-guilty"])


def check_hang(name: str, verdict: Verdict) -> None:
    """Check that a verdict has both lines of a program, and was found before the deadline."""
    assert verdict["outcome"] == "hung"
    assert verdict["diagnosis"]["detected_by"] in ("proof", "mismatch")
    assert marked(name, "one") & told(verdict)
    assert marked(name, "other") & told(verdict)


@pytest.mark.parametrize("name", shapes.ONE)
def test_the_sides_of_a_shape_are_the_ranks_of_its_classes(
    verdicts: Mapping[str, Verdict], name: str
) -> None:
    """They are known from the program."""
    expected = frozenset(rank for rank in range(SIZE) if shapes.ONE[name](rank, SIZE))
    found = sides(verdicts[f"{name}-guilty"])
    assert expected in [found[line] for line in found.keys() & marked(name, "one")]


@pytest.mark.parametrize("name", shapes.BUGS)
def test_a_mended_shape_passes(verdicts: Mapping[str, Verdict], name: str) -> None:
    """It is an innocent that looks like the guilty one."""
    assert verdicts[f"{name}-mended"]["outcome"] == "passed"


@pytest.mark.parametrize("name", shapes.NCCL_BUGS)
def test_a_shape_of_nccl_hangs_only_by_its_rules(
    verdicts: Mapping[str, Verdict], nccl_verdicts: Mapping[str, Verdict], name: str
) -> None:
    """Its mended twin passes by these rules, too."""
    check_hang(name, nccl_verdicts[f"{name}-guilty"])
    assert nccl_verdicts[f"{name}-mended"]["outcome"] == "passed"
    assert verdicts[f"{name}-guilty"]["outcome"] == "passed"
    assert verdicts[f"{name}-mended"]["outcome"] == "passed"
