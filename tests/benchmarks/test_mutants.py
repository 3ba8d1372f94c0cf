"""What the mutation check makes of mutmut's results."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from programs import loaded_together

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def mutants() -> Iterator[ModuleType]:
    """The program, which imports mutmut only when it mutates."""
    with loaded_together(BENCHMARKS, ("mutants",)) as found:
        yield found["mutants"]


def test_a_seed_draws_the_same_sample_again(mutants: ModuleType) -> None:
    """Else no score could be compared with an earlier one."""
    names = [f"mutant {number}" for number in range(50)]
    drawn = mutants.sample(names, "10", 1)
    assert drawn == mutants.sample(names, "10", 1) != mutants.sample(names, "10", 2)
    assert len({*drawn} & {*names}) == 10
    assert mutants.sample(names, "all", 1) == mutants.sample(names, "99", 1) == sorted(names)


def test_only_a_failed_test_a_timeout_or_a_crash_kills(mutants: ModuleType) -> None:
    """What no test reached has survived."""
    statuses = dict(enumerate(("killed", "timeout", "segfault", "survived", "no tests")))
    assert mutants.score(statuses) == 60.0


def test_scores_are_told_by_module_package_and_in_all(mutants: ModuleType) -> None:
    """The sum comes last."""
    made = [
        mutants.Mutant(name, file, 1, (), ())
        for name, file in (("a", "blame/one.py"), ("b", "blame/two.py"), ("c", "blame/two.py"))
    ]
    table = mutants.table(made, {"a": "killed", "b": "killed", "c": "survived"})
    assert [line.split()[:3:2] + line.split()[3:4] for line in table.splitlines()] == [
        ["blame/", "mutants", "66.7"],
        ["blame/one.py", "mutants", "100.0"],
        ["blame/two.py", "mutants", "50.0"],
        ["all", "mutants", "66.7"],
    ]


def test_a_survivor_is_shown_with_its_line(mutants: ModuleType) -> None:
    """In the file of the package."""
    was = ("def f(x):", "    y = 1", "    return x")
    made = mutants.Mutant("proof.x_f__mutmut_1", "proof.py", 10, was, (*was[:2], "    return None"))
    assert mutants.describe(made, "survived").splitlines() == [
        "proof.py:12 survived: proof.x_f__mutmut_1",
        "-     return x",
        "+     return None",
    ]


def test_functions_are_named_alike_in_all_mutants(mutants: ModuleType) -> None:
    """What is left that differs is the change."""
    lines = ["", "", "def x_f__mutmut_orig(", "    x: int,", ") -> int:", "    return x", ""]
    other = [each.replace("orig", "12") for each in lines]
    assert mutants.function_text(lines) == mutants.function_text(other)
    assert mutants.function_text(lines)[0] == "def x_f("


def test_the_killers_are_tests_that_name_what_is_mutated(mutants: ModuleType) -> None:
    """And none that kills by chance."""
    names = {each.name for each in mutants.killers()}
    assert {"test_proof.py", "test_diagnose.py"} <= names
    assert not {"test_damaged_artifacts.py", "test_slots.py"} & names
