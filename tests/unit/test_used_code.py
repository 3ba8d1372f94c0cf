"""What the test's own code certainly does not look at, found in programs written by hand."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from pytest_multihost.core.rank.used_code import UsedCode

Unused = Callable[..., tuple[str, ...]]
"""Gets a test's body; returns what it does not look at."""

PROGRAM = """
import datetime, time, contextlib, functools, pytest
from time import time as wall_clock
from datetime import datetime as dt

NAMES = {"loss", "accuracy"}

class Log:
    def __init__(self):
        self.began = time.time()

class Quiet:
    def __init__(self):
        self.began = time.monotonic()

@pytest.fixture
def stamp():
    return time.time()

@contextlib.contextmanager
def hashed():
    print(hash("a"))
    yield

def helper():
    return dt.now()

"""


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    """Numbers for modules."""
    return count()


@pytest.fixture
def unused(tmp_path: Path, numbers: Iterator[int], monkeypatch: pytest.MonkeyPatch) -> Unused:
    """Return a function that says what a test's body does not look at."""

    def of(body: str, more: str = "", arguments: str = "") -> tuple[str, ...]:
        name = f"used_{next(numbers)}"
        lines = "\n    ".join([*body.splitlines(), "pass_point()"])
        text = f"{PROGRAM}\n{more}\ndef test_it(pass_point, {arguments}):\n    {lines}\n"
        file = tmp_path / f"{name}.py"
        file.write_text(text)
        module = types.ModuleType(name)
        module.__file__ = str(file)
        monkeypatch.setitem(sys.modules, name, module)
        exec(compile(text, str(file), "exec"), vars(module))  # noqa: S102 - the text is above
        found = UsedCode()
        codes = {str(file)}
        monkeypatch.setattr(
            "pytest_multihost.core.rank.used_code.is_library", lambda path: path not in codes
        )

        def pass_point() -> None:
            found.see(sys._getframe(1))

        module.test_it(pass_point, *[None] * bool(arguments))
        return found.unused()

    return of


EVERYTHING = ("clock", "hashes")


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "time.sleep(0)",
        "time.monotonic()",
        "Quiet()",
        "'a' in {'a', 'b'}",
        "sorted([3, 1])",
        "{'a': 1}.keys()",
    ],
)
def test_code_that_looks_at_neither_is_known_to(unused: Unused, body: str) -> None:
    """Other clocks do not jump; a constant set that is asked for a member has no order."""
    assert unused(body) == EVERYTHING


@pytest.mark.parametrize(
    "body",
    [
        "time.time()",
        "wall_clock()",
        "datetime.datetime.now()",
        "dt.now()",
        "datetime.date.today()",
        "time.strftime('%H')",
        "Log()",
        "helper()",
        "functools.partial(helper)()",
        "(lambda: time.time_ns())()",
    ],
)
def test_code_that_reads_the_clock_is_known_to_use_it(unused: Unused, body: str) -> None:
    """By any name, and in whatever it calls."""
    assert unused(body) == ("hashes",)


@pytest.mark.parametrize(
    "body",
    [
        "set('ab')",
        "a = 'x'; {a, 'y'}",
        "[each for each in {'a', 'b'}]",
        "{each for each in 'ab'}",
        "hash('a')",
        "list(NAMES)",
        "list({'a': 1}.keys() & {'b': 2}.keys())",
        "with hashed(): pass",
    ],
)
def test_code_that_makes_a_set_is_known_to_use_hashes(unused: Unused, body: str) -> None:
    """Its order depends on them."""
    assert unused(body) == ("clock",)


def test_a_fixture_is_used_by_its_name(unused: Unused) -> None:
    """It is an argument."""
    assert unused("pass", arguments="stamp") == ("hashes",)


def test_a_fixture_for_all_tests_is_used_without_a_name(unused: Unused) -> None:
    """It runs for each."""
    fixture = "@pytest.fixture(autouse=True)\ndef begun():\n    return time.time()\n"
    assert unused("pass", more=fixture) == ("hashes",)


def test_of_code_that_uses_another_package_nothing_is_known(unused: Unused) -> None:
    """It may look at anything; this one is installed."""
    assert unused("import xdist\nxdist") == ()


def test_where_no_code_was_seen_nothing_is_known() -> None:
    """No point was passed by the user's."""
    assert UsedCode().unused() == ()
