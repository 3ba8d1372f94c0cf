"""How results of the corpus on several sorts of hosts are compared, on results made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from programs import load_program

PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "same_verdicts.py"

HUNG = {
    "outcome": "hung",
    "kind": "straggler",
    "culprits": [0],
    "waiting": [1, 2],
    "where": "time.sleep(600)",
    "by": "proof",
}
INNOCENT = {**HUNG, "outcome": "passed", "kind": None, "culprits": [], "waiting": [], "by": None}
INNOCENT |= {"where": None}


@pytest.fixture(scope="module")
def same() -> ModuleType:
    """benchmarks/same_verdicts.py."""
    return load_program(PATH)


def results(hosts: str, **told: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what the corpus has written of programs by name; None: it was skipped."""
    scores = [
        {
            "name": name,
            "world": "gloo x 3",
            "told": each,
            "word": "ok" if each else "skipped",
            "is_hang": bool(each and each["kind"]),
            "is_accused": False,
            "by": (each or HUNG)["by"] or "-",
            "after_s": 2.5,
        }
        for name, each in told.items()
    ]
    return {"hosts": hosts, "scores": scores}


def test_equal_verdicts_agree(same: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Of hangs and of innocents, on three sorts of hosts."""
    found = [results(hosts, late=HUNG, slow=INNOCENT) for hosts in ("one", "netns", "netns:2")]
    assert same.report(found) == 0
    told = capsys.readouterr().out
    assert "compared            2 programs on one, netns, netns:2" in told
    assert "told alike          2, 0 of them" in told
    assert (
        "netns:2             2 of 2 right, 0 of 1 innocents accused, median of proofs 2.50 s"
        in told
    )
    assert "not run everywhere" not in told


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("outcome", "crashed"),
        ("kind", "stuck"),
        ("culprits", [0, 1]),
        ("waiting", [1]),
        ("where", None),
    ],
)
def test_whatever_differs_is_named(
    same: ModuleType, capsys: pytest.CaptureFixture[str], part: str, value: object
) -> None:
    """The program with both verdicts, and the run has failed."""
    there = {**HUNG, part: value}
    [compared] = same.compare([results("one", late=HUNG), results("netns:2", late=there)])
    assert compared.differing == (part,)
    assert same.report([results("one", late=HUNG), results("netns:2", late=there)]) == 1
    told = capsys.readouterr().out
    assert "DIFFERS   late (gloo x 3)" in told
    assert "one     hung: straggler [0] <- [1,2], by proof, at time.sleep(600)" in told
    assert f"netns:2 {same.in_words(there)}" in told


def test_an_innocent_that_is_accused_elsewhere_differs(same: ModuleType) -> None:
    """It passed here, and was ended there."""
    there = {**HUNG, "where": None}
    assert same.report([results("one", slow=INNOCENT), results("netns:2", slow=there)]) == 1


def test_how_it_was_noticed_is_mentioned_only(
    same: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proof here and the deadline there say the same."""
    there = {**HUNG, "by": "deadline"}
    assert same.report([results("one", late=HUNG), results("netns:2", late=there)]) == 0
    told = capsys.readouterr().out
    assert "noticed   late" in told
    assert "told alike          1, 1 of them noticed in another way" in told


def test_a_program_that_differs_from_itself_says_nothing_of_hosts(
    same: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is shown, and counted apart."""
    again = {**HUNG, "waiting": [1]}
    found = [results("one", late=HUNG), results("one", late=again), results("netns:2", late=again)]
    assert same.report(found) == 0
    told = capsys.readouterr().out
    assert "fickle    late" in told
    assert "told alike          0" in told
    assert "fickle by itself    1" in told


def test_parts_of_one_sort_of_hosts_go_together(same: ModuleType) -> None:
    """A file for each backend, say."""
    found = [results("one", a=HUNG), results("one", b=HUNG), results("netns:2", a=HUNG, b=HUNG)]
    assert [sorted(each.told) for each in same.compare(found)] == [["netns:2", "one"]] * 2


def test_what_was_not_run_everywhere_is_not_compared_but_named(
    same: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a program that was skipped nor one that was left out agrees with anything."""
    found = [results("one", a=HUNG, b=HUNG, c=HUNG), results("netns:2", a=HUNG, b=None)]
    assert same.report(found) == 0
    told = capsys.readouterr().out
    assert "compared            1 programs" in told
    assert "not run everywhere  2: b, c" in told


@pytest.mark.parametrize("names", [("one", "one"), ("one", "netns:2")])
def test_a_comparison_of_nothing_fails(same: ModuleType, names: tuple[str, str]) -> None:
    """One sort of hosts alone, or no program that ran on both."""
    first, second = names
    assert same.report([results(first, a=HUNG), results(second, b=HUNG)]) == 1
