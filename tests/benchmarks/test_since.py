"""What is compared with another revision, by which rule, and how it is told."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from programs import loaded_together

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


class Tree(SimpleNamespace):
    """Stands for a tree: a name will do."""

    def __hash__(self) -> int:
        return hash(self.name)


@pytest.fixture(scope="module")
def modules() -> Iterator[Mapping[str, ModuleType]]:
    """The benchmark and what it is made of."""
    with loaded_together(BENCHMARKS, ("figures", "paired", "since", "trees")) as found:
        yield found


@pytest.fixture
def paired(modules) -> ModuleType:
    """The rule and the table."""
    return modules["paired"]


# Ratios


def test_a_ratio_is_of_one_round(paired) -> None:
    """The machine was twice as slow in the second round, and nothing has changed."""
    found = paired.Compared(paired.Measure("x"), then=(1.0, 2.0), now=(1.5, 3.0))
    assert found.ratios == [1.5, 1.5]


def test_a_round_that_only_one_has_makes_no_ratio(paired) -> None:
    """One revision failed in the second round."""
    assert paired.Compared(paired.Measure("x"), then=(1.0, 2.0), now=(1.5,)).ratios == [1.5]


def test_a_difference_below_zero_makes_no_ratio(paired) -> None:
    """The longer run met a quieter machine than the shorter: that is no gain."""
    found = paired.Compared(paired.Measure("x"), then=(1.0, -0.1, 1.0), now=(-0.1, 1.0, 1.0))
    assert found.ratios == [1.0]


def test_what_there_was_nothing_of_is_the_same_or_endlessly_more(paired) -> None:
    """No file was removed for a test: a first one must show."""
    assert paired.ratio(0, 0) == 1
    assert paired.ratio(0, 1) == math.inf


@pytest.mark.parametrize(
    ("rounds", "number"), [(1, 0), (3, 0), (8, 0), (9, 1), (11, 1), (12, 2), (20, 5)]
)
def test_so_many_are_left_out_that_the_range_stays_certain(
    paired, rounds: int, number: int
) -> None:
    """As in the tables of the sign test for 95 %."""
    assert paired.left_out(rounds) == number


@pytest.mark.parametrize(("rounds", "per_cent"), [(1, 0), (3, 75), (5, 94), (7, 98), (9, 96)])
def test_the_certainty_of_a_range_is_known(paired, rounds: int, per_cent: int) -> None:
    """Three rounds are above 1 by chance alone in one of eight comparisons."""
    assert round(100 * paired.certainty(rounds)) == per_cent


def test_a_round_that_went_wrong_does_not_widen_the_range_of_many(paired) -> None:
    """With more rounds a comparison becomes surer, not vaguer."""
    found = paired.middle([0.1, *[1.2] * 8, 9.0])
    assert (found.median, found.low, found.high, found.count) == (1.2, 1.2, 1.2, 10)


# The rule


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.12, 1.15, 1.2, 1.25, 1.3], "worse"),
        ([1.01, 1.02, 1.2, 1.25, 1.3], "worse"),
        ([0.99, 1.15, 1.2, 1.25, 1.3], "unclear"),
        ([1.05, 1.06, 1.07, 1.08, 1.3], "unclear"),
        ([0.8, 0.9, 1.0, 1.1, 1.2], "unclear"),
        ([1.02, 1.03, 1.05, 1.07, 1.1], "ok"),
        ([0.95, 0.98, 1.0, 1.02, 1.05], "ok"),
        ([0.7, 0.75, 0.8, 0.9, 0.99], "better"),
        ([0.7, 0.75, 0.8, 0.9, 1.05], "ok"),
        ([1.5] * 4, "unclear"),
        ([1.0], "unclear"),
        ([math.inf] * 5, "worse"),
    ],
)
def test_the_verdict_follows_the_rule(paired, ratios: list[float], verdict: str) -> None:
    """Noise alone fails nothing, and a slower revision is never called ok."""
    assert paired.judged(ratios) == verdict


@pytest.mark.parametrize(
    ("verdict", "fails"),
    [("worse", True), ("FAILED", True), ("unclear", False), ("better", False), ("-", False)],
)
def test_only_what_is_worse_or_broken_fails_the_comparison(paired, verdict: str, fails) -> None:
    """Unclear is shown, and asks for more rounds."""
    assert paired.is_failure(SimpleNamespace(verdict=verdict)) is fails


def test_what_a_revision_does_not_have_is_a_dash_and_no_failure(paired) -> None:
    """A feature that is new, or one that has been removed."""
    for reasons in (("does not have it", ""), ("", "does not have it")):
        found = paired.Compared(paired.Measure("x"), (), (), *reasons)
        assert found.verdict == "-"
        assert found.row()[3:] == ["-", "-"]


def test_a_failure_of_the_other_revision_is_told_and_fails_nothing(paired) -> None:
    """It may not run a program of today."""
    found = paired.Compared(paired.Measure("x"), (), (1.0,), "exit code 1", "")
    assert found.row() == ["x", "- (exit code 1)", "1.000 s", "-", "-"]


def test_a_failure_of_this_revision_fails_the_comparison(paired) -> None:
    """What was measured of it before does not excuse it."""
    found = paired.Compared(paired.Measure("x"), (1.0, 1.0, 1.0), (1.0,), "", "exit code 1")
    assert found.verdict == "FAILED"


# The table


def test_a_row_has_both_medians_and_the_ratio_with_its_range(paired) -> None:
    """The ratio is the median of the ratios, not the ratio of the medians."""
    found = paired.Compared(paired.Measure("x"), (1.0, 2.0, 4.0), (2.0, 2.0, 6.0))
    assert found.row() == ["x", "2.000 s", "2.000 s", "1.50 (1.00-2.00, 3)", "unclear"]


def test_values_are_told_in_units_that_show_them(paired) -> None:
    """A plain test takes a millisecond, and a sweep is known by its worlds a second."""
    assert [paired.seconds(each) for each in (0.00123, 0.048, 12.34)] == [
        "1.23 ms",
        "0.048 s",
        "12.3 s",
    ]
    assert paired.count(27.0) == "27"
    assert paired.per_second(0.1) == "10.0/s"


def test_a_long_reason_is_told_by_its_beginning_and_its_end(paired) -> None:
    """The end of the output of a program says most."""
    text = paired.shortened("exit code 1: " + "x" * 500 + "\nthe end")
    assert text.startswith("exit code 1: ")
    assert text.endswith("x the end")
    assert len(text) < 300


def test_all_values_can_be_read_as_json(paired) -> None:
    """JSON knows no infinity."""
    found = paired.Compared(paired.Measure("x"), (0,) * 5, (1,) * 5).told()
    assert json.loads(json.dumps(found, allow_nan=False))["verdict"] == "worse"


def test_the_notes_say_what_was_compared_and_that_the_machine_was_busy(modules) -> None:
    """A figure without a machine says nothing."""
    paired, since = modules["paired"], modules["since"]
    about = {
        "then": "v0.1.0",
        "now": "v0.1.0-3-gabc",
        "rounds": 3,
        "is_quick": True,
        "warning": "the load is 9.0",
        "machine": modules["figures"].machine(("pytest",), []),
    }
    text = since.markdown(about, [paired.Compared(paired.Measure("x"), (1.0,), (1.0,))])
    assert text.startswith("## Cost since v0.1.0, quick\n\n| measure | then | now | ratio |")
    assert "| x | 1.000 s | 1.000 s | 1.00 | unclear |" in text
    assert "then: v0.1.0; now: v0.1.0-3-gabc; 3 rounds" in text
    assert "the load is 9.0" in text
    assert f"pytest {pytest.__version__}" in text


# Measuring


def compared(
    modules, look: Callable[[Tree], list[float]], *, lacks: Callable[[Tree], bool] = lambda _: False
) -> SimpleNamespace:
    """The row of a topic with one measure, after three rounds."""
    since, pair = modules["since"], modules["trees"].Pair(Tree(name="then"), Tree(name="now"))
    measure = modules["paired"].Measure("x")
    topic = since.Topic([measure], lambda: nullcontext(look), lacks)
    [row] = since.compared(topic, pair, 3)
    return row


def test_both_revisions_take_turns_after_one_turn_that_does_not_count(modules) -> None:
    """A B B A: neither always meets the machine that the other has left."""
    order = []

    def look(tree) -> list[float]:
        order.append(tree.name)
        return [float(len(order))]

    found = compared(modules, look)
    assert order == ["then", "then", "now", "now", "then", "then", "now"]
    assert (found.then, found.now) == ([2.0, 5.0, 6.0], [3.0, 4.0, 7.0])


def test_what_a_revision_lacks_is_not_measured(modules) -> None:
    """Not even of the other: there is nothing to compare."""
    found = compared(modules, lambda _: [1 // 0], lacks=lambda tree: tree.name == "then")
    assert found.row() == ["x", "- (does not have it)", "-", "-", "-"]


def test_a_revision_that_fails_says_why(modules) -> None:
    """The other goes on."""
    failed = modules["figures"].FailedError("exit code 3")

    def look(tree) -> list[float]:
        if tree.name == "now":
            raise failed
        return [1.0]

    found = compared(modules, look)
    assert (found.why_not_now, found.verdict) == ("exit code 3", "FAILED")


def test_a_topic_of_marginal_tests_tells_wall_and_processor_time(modules) -> None:
    """On a machine that does other things as well the second says more."""
    labels = [
        each.label for each in modules["since"].topics(modules["since"].QUICK)["gloo"].measures
    ]
    assert labels == ["one test more, gloo at 4", "one test more, gloo at 4: processor time"]


# The trees


def test_the_metadata_name_the_entry_points_of_the_tree(modules) -> None:
    """Where an editable install has others, pytest would load the wrong module."""
    project = {
        "name": "a-b",
        "version": "1",
        "scripts": {"multihost": "a.b:main"},
        "entry-points": {"pytest11": {"multihost_hangs": "a.c"}},
    }
    files = modules["trees"].metadata_of(project)
    points = files["entry_points.txt"]
    assert "[console_scripts]\nmultihost = a.b:main\n" in points
    assert "[pytest11]\nmultihost_hangs = a.c\n" in points
    assert "Name: a-b\nVersion: 1\n" in files["METADATA"]


def test_the_command_of_a_tree_is_called_as_its_script_would(modules) -> None:
    """Its module and its function may have had other names."""
    tree = modules["trees"].Tree(Path("/tree"), "v1", "a.c", "a.b:run")
    assert tree.multihost == (sys.executable, "-c", "import sys, a.b as m; sys.exit(m.run())")


def test_a_revision_that_is_not_there_is_an_error_with_a_remedy(modules) -> None:
    """A shallow clone has no tags."""
    trees = modules["trees"]
    with (
        pytest.raises(trees.UnknownRevisionError, match=r"no revision 'no-such'.*--unshallow"),
        trees.beside("no-such"),
    ):
        pass


@pytest.mark.parametrize(("load", "warns"), [(0.0, False), (1e6, True)])
def test_a_busy_machine_is_warned_of(modules, load: float, warns) -> None:
    """More than a process that computes for every second core."""
    assert bool(modules["figures"].busy({"load_1min": load})) is warns
