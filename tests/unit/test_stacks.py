"""What the stacks of ranks add to what was seen of them."""

from __future__ import annotations

import pytest

from pytest_multihost.blame.inferred import with_stacks
from pytest_multihost.model.result import Label, RankSnapshot, WorldSnapshot
from pytest_multihost.model.stack import Dump


@pytest.mark.parametrize(
    ("label", "is_deaf", "holds"),
    [("RUNNING", True, True), ("RUNNING", False, False), ("SLEEPING", False, True)],
)
def test_a_rank_that_computes_is_in_native_code_if_it_is_deaf(
    label: Label, *, is_deaf: bool, holds: bool
) -> None:
    """It holds the interpreter in Python, too; one that sleeps with it is in native code."""
    seen = RankSnapshot(rank=0, label=label, holds_gil=True)
    dumps = [Dump(0, "faulthandler", (), is_deaf=is_deaf)]
    (told,) = with_stacks([WorldSnapshot(at_s=1.0, reason="end", ranks=(seen,))], dumps)
    assert told.ranks[0].holds_gil == holds


def test_a_rank_that_computes_and_gave_no_stack_is_not_said_to_be_in_native_code() -> None:
    """Nobody knows."""
    seen = RankSnapshot(rank=0, label="RUNNING", holds_gil=True)
    (told,) = with_stacks([WorldSnapshot(at_s=1.0, reason="end", ranks=(seen,))], [])
    assert not told.ranks[0].holds_gil
