"""What the benchmarks make of their measurements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import psutil
import pytest
from programs import loaded_together

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
OURS = ("bench", "cost", "figures", "floor", "overhead", "peers", "projects", "suite", "truth")


@pytest.fixture(scope="module")
def modules() -> Iterator[Mapping[str, ModuleType]]:
    """The benchmarks' modules, which are programs beside each other and no package."""
    with loaded_together(BENCHMARKS, OURS) as found:
        yield found


# Taking turns


def test_ways_take_turns_and_go_backwards_every_second_round(modules) -> None:
    """Else the first of a round would always meet the machine that the last has left."""
    order: list[str] = []
    ways = {name: lambda name=name: order.append(name) for name in "abc"}
    modules["figures"].in_turns(ways, 3)
    assert "".join(order) == "abccbaabc"


def test_a_way_that_fails_is_left_out_and_says_why(modules) -> None:
    """The others go on: a peer that is broken here must not cost the whole table."""
    figures, asked = modules["figures"], []

    def fail() -> None:
        asked.append(1)
        raise figures.FailedError("no such thing")

    turns = figures.in_turns({"fails": fail, "works": lambda: 1.0}, 3)
    assert turns.failed == {"fails": "no such thing"}
    assert turns.found == {"fails": [], "works": [1.0, 1.0, 1.0]}
    assert asked == [1]


def test_an_error_of_our_own_is_no_failure_of_a_way(modules) -> None:
    """A mistake in a benchmark must not look like a peer that cannot be run."""
    with pytest.raises(ZeroDivisionError):
        modules["figures"].in_turns({"ours": lambda: 1 // 0}, 1)


def test_a_ratio_compares_two_of_one_round(modules) -> None:
    """The machine was twice as slow in the second round: the ratio is the same in both."""
    ratio = modules["figures"].ratio([10.0, 20.0], [1.0, 2.0])
    assert (ratio.median, ratio.low, ratio.high) == (10.0, 10.0, 10.0)


def test_no_round_with_both_has_no_ratio(modules) -> None:
    """A dash, not a division by nothing."""
    assert modules["figures"].ratio([], [1.0]) is None
    assert modules["figures"].ratio([1.0], [0.0]) is None


def test_a_spread_tells_its_ends_and_how_many_there_were(modules) -> None:
    """One value has no spread, and does not pretend to have one."""
    figures = modules["figures"]
    assert figures.spread_text([3.0, 1.0, 2.0], 1) == "2.0 (1.0-3.0, 3)"
    assert figures.spread_text([0.5], 0, 1e3) == "500"
    assert figures.spread_text([]) == "-"


def test_a_cell_of_several_lines_does_not_break_the_table(modules) -> None:
    """Reasons are quoted from other programs' output."""
    text = modules["figures"].table(["a", "b"], [["first\nsecond", "x"]])
    assert text.splitlines()[2:] == ["| first second | x |"]


# The cost of a test


def history() -> list[dict[str, object]]:
    """A world of two ranks, in seconds."""
    times = {"forked": (1, 1), "ready": (2, 4), "parked": (5, 9), "done": (9, 10)}
    return [
        {"kind": kind, "rank": rank, "at_s": at}
        for kind, several in times.items()
        for rank, at in enumerate(several)
    ]


def test_the_parts_of_a_test_end_with_the_last_rank_and_add_up(modules) -> None:
    """Forked at 1, ready at 4, over at 9, torn down at 10, gone at 12, reported at 15."""
    parts = modules["cost"].parts_of(history(), 12, 15)
    assert parts == {"fork": 1, "init": 3, "test": 5, "teardown": 1, "leave": 2, "report": 3}
    assert sum(parts.values()) == 15


def test_growth_compares_the_last_tenth_with_the_first(modules) -> None:
    """Of a few tests it says nothing."""
    growth = modules["cost"].growth_text
    assert growth([1.0] * 10 + [5.0] * 80 + [2.0] * 10) == "2.00"
    assert growth([1.0] * 9) == "-"


def peers_table(modules, *, first_is_missing: bool) -> list[list[str]]:
    """A table in which every way cost twice as much as ours."""
    cost, figures, peers = modules["cost"], modules["figures"], modules["peers"]
    own = [peers.ours(backend) for backend in cost.BACKENDS]
    missing = {peers.PEERS[0]: "not installed here: x"} if first_is_missing else {}
    turns = figures.Turns()
    for way in (*own, *peers.PEERS):
        took = 1.0 if way in own else 2.0
        turns.found[way] = [] if way in missing else [cost.Marginal(took, took, took, None)]
    return cost.peers_section(own, missing, turns, 4).rows


def test_a_peer_is_compared_with_ours_on_the_same_backend(modules) -> None:
    """Twice as much is twice as much for each of them."""
    rows = peers_table(modules, first_is_missing=False)
    assert [row[3] for row in rows] == ["1"] * 3 + ["2.0"] * len(modules["peers"].PEERS)


def test_a_peer_that_is_missing_is_listed_with_the_reason(modules) -> None:
    """Never silently: who reads the table must see that nobody was compared."""
    rows = peers_table(modules, first_is_missing=True)
    assert len(rows) == 3 + len(modules["peers"].PEERS)
    assert [row for row in rows if row[2] == "not installed here: x"] == [rows[3]]


def test_a_module_or_program_that_is_not_there_is_named(modules) -> None:
    """What to install must not be guessed."""
    way = modules["peers"].Way(
        "x", "none", ("x",), modules=("json", "no_such_module"), programs=("no-such-program",)
    )
    assert way.why_missing() == "not installed here: no_such_module, no-such-program"


# The floor


def test_a_target_is_held_against_the_ratio_of_the_walls(modules) -> None:
    """At four ranks of gloo, one and a half times the floor."""
    figures, floor = modules["figures"], modules["floor"]
    turns = figures.Turns()
    for backend, ours in (("gloo", 1.6), ("jax", 1.4)):
        turns.found[backend, 4, "floor"] = [floor.Worlds([1.0], 1.0)]
        turns.found[backend, 4, "ours"] = [floor.Worlds([ours], 1.0)]
    section = floor.distance_section(turns)
    assert [row[-1] for row in section.rows] == ["<= 1.5: no", "<= 1.5: yes"]
    assert floor.missed(section) == ["gloo at 4 ranks: 1.60 times the floor, <= 1.5"]


# Who is named


def verdict(diagnosis: dict[str, object] | None, *outcomes: str) -> dict[str, object]:
    """What is read of a verdict."""
    ranks = [{"rank": rank, "outcome": outcome} for rank, outcome in enumerate(outcomes)]
    return {"outcome": "failed", "diagnosis": diagnosis, "rank_results": ranks}


def test_the_diagnosis_names_and_without_one_whoever_stands_out(modules) -> None:
    """A rank that skips alone hangs nobody: there is no diagnosis, but a report."""
    named_in = modules["truth"].named_in
    hung = verdict({"culprits": [1], "kind": "stopped"}, "hung", "hung")
    assert named_in(hung) == ((1,), "stopped")
    assert named_in(verdict(None, "passed", "skipped")) == ((1,), "failed")


def test_only_who_fails_and_names_the_culprit_alone_is_right(modules) -> None:
    """To blame everybody, somebody else or nobody is wrong, and so is a pass."""
    told = modules["truth"].Told
    assert told("failed", (1,), 1.0, True).is_right
    assert not any(
        told(*each, 1.0, True).is_right
        for each in (("failed", (0, 1)), ("failed", (0,)), ("failed", ()), ("passed", (1,)))
    )
    assert not told("failed", (1,), 1.0, True, was_done=False).is_right


@pytest.mark.parametrize(
    ("harness", "output", "named"),
    [
        (1, "RuntimeError: Process 0 terminated or timed out after 15.1 seconds", (0,)),
        (1, "Process 1 exited with error code 10 and exception:", (1,)),
        (2, "-- Process 1 terminated with the following error:", (1,)),
        (2, "Failed: Timeout (>15.0s) from pytest-timeout.", ()),
    ],
)
def test_a_peers_words_are_understood(modules, harness, output, named) -> None:
    """As they stand in torch 2.13 and pytest-timeout 2.4."""
    ended = modules["projects"].Ended(1, 1.0, 1.0, output, Path())
    assert modules["truth"].HARNESSES[harness].named(ended)[0] == named


# Overhead


def test_the_shares_are_of_one_core_and_per_rank(modules) -> None:
    """Half a second of ten is five per cent; four ranks share it."""
    overhead = modules["overhead"]
    assert overhead.shares(overhead.Healthy(0.5, 4.0, 10.0)) == (5.0, 1.25, 10.0)


def test_what_is_added_to_a_call_is_told_for_each_way(modules) -> None:
    """In microseconds on top of the bare call's; the ratio is that of the recorder."""
    times = {"bare": 100_000.0, "empty": 110_000.0, "recorded": 130_000.0}
    (row,) = modules["overhead"].recorder_section({"all_reduce": [times]}).rows
    assert row == ["all_reduce", "100.00", "10.00", "30.00", "1.300"]


# Our own suite

JUNIT = """<testsuites><testsuite time="3.5">
<testcase classname="a" name="slow" time="2.0"/><testcase classname="a" name="quick" time="0.5"/>
</testsuite></testsuites>"""
OUTPUT = """
============================= slowest 3 durations ==============================
2.00s call     tests/test_a.py::test_slow
1.00s setup    tests/test_a.py::test_slow
0.50s call     tests/test_a.py::test_quick[1 2]
======================== 2 passed, 1 skipped in 3.50s =========================
"""


def test_junit_and_durations_tell_the_same(modules) -> None:
    """The slowest comes first; set-up counts as well."""
    suite = modules["suite"]
    assert suite.from_junit(JUNIT) == (3.5, {"a::slow": 2.0, "a::quick": 0.5})
    total, tests = suite.from_durations(OUTPUT)
    assert total == 3.5
    assert tests == {"tests/test_a.py::test_slow": 3.0, "tests/test_a.py::test_quick[1 2]": 0.5}
    rows = suite.suite_section(total, tests).rows
    assert [row[0].rpartition("::")[2] for row in rows] == [
        "the run",
        "test_slow",
        "test_quick[1 2]",
    ]


# All of it


def test_the_report_is_one_table_after_the_other_and_the_same_as_json(modules) -> None:
    """With what it was taken on: a figure without a machine says nothing."""
    bench, figures = modules["bench"], modules["figures"]
    section = figures.Section("A title", ("a",), [["1"]], {"figure": 1}, notes=("a note",))
    load = figures.load()
    about = {
        "machine": figures.machine(["pytest", "no-such-package"], []),
        "before": load,
        "after": load,
        "took_s": 5,
        "is_quick": True,
    }
    markdown, as_json = bench.report(about, {"topic": [section]})
    assert markdown.startswith("# Benchmarks, quick\n")
    assert markdown.endswith("## A title\n\n| a |\n| --- |\n| 1 |\n\n* a note\n")
    told = json.loads(as_json)
    assert told["topics"]["topic"][0]["figures"] == {"figure": 1}
    assert told["machine"]["versions"]["no-such-package"] == "not installed"
    assert f"pytest {pytest.__version__}" in markdown


# What runs


def test_a_program_that_takes_too_long_is_ended_with_its_children(modules) -> None:
    """Peers that hang leave processes behind, and the next measurement must not meet them."""
    projects = modules["projects"]
    program = "import subprocess, time; subprocess.Popen(['sleep', '60'], start_new_session=True);"
    command = [sys.executable, "-c", program + "print('here', flush=True); time.sleep(60)"]
    with projects.ran(command, {}, limit_s=1.5) as ended:
        assert ended.code is None
        assert ended.output == "here\n"
        place = ended.place
    assert [each for each in psutil.process_iter() if is_running_in(each, place)] == []


def is_running_in(process: psutil.Process, place: Path) -> bool:
    """Whether a process is alive and works in a directory."""
    try:
        is_alive = process.status() != psutil.STATUS_ZOMBIE
        return is_alive and process.cwd().startswith(str(place))
    except psutil.Error:  # gone meanwhile
        return False
