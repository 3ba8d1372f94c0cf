"""What each side did where ranks parted, word for word."""

from __future__ import annotations

from functools import partial

import builders
import pytest

from pytest_multihost.core.blame.divergence import described
from pytest_multihost.testing import (
    RUNTIME_SCOPE,
    Divergence,
    DivergenceSide,
    Frame,
    Operation,
    OperationName,
    Parting,
    Place,
    Side,
    SourceContext,
)

LINE, OTHER = Frame("/t/train.py", 7, "save"), Frame("/t/step.py", 9, "step")
CONTEXT = SourceContext("/t", lambda file, line: f"{file}@{line}")


operation = partial(builders.operation, sequence=4)


def told(*sides: Side, waits: dict[int, Operation] | None = None, common: int = 3) -> Divergence:
    """Return the description of ranks that parted so; some wait elsewhere."""
    parting = Parting(
        group=((0, 1, 2), 0, RUNTIME_SCOPE),
        common=common,
        evidence="operations",
        at_s=1.0,
        sides=sides,
    )
    states = {rank: builders.stands(rank) for rank in range(3)}
    states |= {rank: builders.stands(rank, each) for rank, each in (waits or {}).items()}
    return described(parting, states, builders.world(), CONTEXT)


def test_a_side_has_its_operation_its_line_and_its_count() -> None:
    """As fields and in words."""
    found = told(Side((1,), operation("barrier"), LINE, OTHER, 2), Side((0, 2), operation(), OTHER))
    assert found.sides == (
        DivergenceSide(
            ranks=(1,),
            operation=OperationName("barrier", 4, (0, 1, 2)),
            file="train.py",
            line=7,
            function="save",
            source="/t/train.py@7",
            through=Place("step.py", 9, "step", "/t/step.py@9"),
            count=2,
            text="entered barrier from save(), train.py:7, through step(), step.py:9,"
            " for the 2nd time",
        ),
        DivergenceSide(
            ranks=(0, 2),
            operation=OperationName("all_reduce", 4, (0, 1, 2)),
            file="step.py",
            line=9,
            function="step",
            source="/t/step.py@9",
            through=None,
            count=None,
            text="entered all_reduce from step(), step.py:9",
        ),
    )
    assert found.lead == "after 3 operations in common (world group)"
    assert found.summary == (
        f"{found.lead}, rank 1 {found.sides[0].text}, where ranks 0,2 {found.sides[1].text}"
    )
    assert (found.common, found.group, found.evidence) == (3, (0, 1, 2), "operations")
    assert found.minority == (1,)


@pytest.mark.parametrize(
    ("common", "words"),
    [(0, "0 operations"), (1, "1 operation"), (2, "2 operations")],
)
def test_the_lead_counts_what_the_sides_had_in_common(common: int, words: str) -> None:
    """In good grammar."""
    found = told(Side((0,), operation()), Side((1, 2), operation("barrier")), common=common)
    assert found.lead == f"after {words} in common (world group)"


def texts(*sides: Side, waits: dict[int, Operation] | None = None) -> list[str]:
    """Return the words for each side."""
    return [each.text for each in told(*sides, waits=waits).sides]


def test_roots_and_shapes_are_told_where_they_differ() -> None:
    """Among the sides with the same operation."""
    one = operation("broadcast", root=0, detail="f32[5]")
    roots = [Side((0,), one), Side((1,), operation("broadcast", root=1, detail="f32[5]"))]
    assert texts(*roots) == ["entered broadcast (root 0)", "entered broadcast (root 1)"]
    shapes = [Side((0,), one), Side((1,), operation("broadcast", root=0, detail="f32[3]"))]
    assert texts(*shapes) == ["entered broadcast f32[5]", "entered broadcast f32[3]"]
    names = [Side((0,), one), Side((1,), operation("reduce", root=1, detail="f32[3]"))]
    assert texts(*names) == ["entered broadcast", "entered reduce"]


def test_a_side_that_entered_nothing_went_on_or_returned() -> None:
    """With the count of what it had entered, if that tells a loop."""
    there = Side((0, 1), operation(frame=LINE), count=5)
    gone = operation("barrier", ordinal=1, group=(0, 2), sequence=2, frame=OTHER)
    one, two = texts(there, Side((2,), None, count=4), waits={2: gone})
    assert one == "entered all_reduce from save(), train.py:7, for the 5th time"
    assert two == (
        "went on to barrier #2 (2nd group 0,2) from step(), step.py:9,"
        " having entered that all_reduce 4 times"
    )
    assert texts(there, Side((2,), None, count=1))[1] == (
        "returned from the test, having entered that all_reduce 1 time"
    )
    assert texts(there, Side((2,), None))[1] == "returned from the test"
    assert texts(Side((0,), operation(), count=1), Side((2,), None))[0] == "entered all_reduce"


def test_ranks_of_a_side_that_went_on_to_different_operations_are_told_apart() -> None:
    """The first of them does not speak for the others."""
    there = Side((0,), operation(frame=LINE))
    waits = {
        1: operation("send", kind="transfer", sequence=1, frame=LINE),
        2: operation("recv", kind="transfer", sequence=1, frame=OTHER),
        3: operation("send", kind="transfer", sequence=2, frame=LINE),
    }
    found = told(there, Side((1, 2, 3), None), waits=waits).sides
    assert [each.ranks for each in found] == [(0,), (1, 3), (2,)]
    assert found[1].text == "went on to send #1 from save(), train.py:7"
    assert found[2].text == "went on to recv #1 from step(), step.py:9"


def test_a_side_without_a_line_has_none() -> None:
    """A thread of a library called it."""
    [found, _] = told(Side((0,), operation()), Side((1,), None)).sides
    assert (found.file, found.line, found.function, found.source) == (None,) * 4
    assert found.through is None
