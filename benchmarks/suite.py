"""How long our own suite takes, from what a run of it has left: it is not run here."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

from figures import Section

SLOWEST = 10
_DURATION = re.compile(r"^\s*([\d.]+)s (?:call|setup|teardown)\s+(\S.*?)\s*$", re.MULTILINE)
_TOTAL = re.compile(r"(\d+) passed.* in ([\d.]+)s")


def from_junit(text: str) -> tuple[float, dict[str, float]]:
    """Return the seconds of a run and of each test, from JUnit XML of our own."""
    root = ElementTree.fromstring(text)  # noqa: S314 - written by our own run
    suites = list(root.iter("testsuite"))
    tests: dict[str, float] = {}
    for case in root.iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        tests[name] = tests.get(name, 0.0) + float(case.get("time", 0))
    return sum(float(suite.get("time", 0)) for suite in suites), tests


def from_durations(text: str) -> tuple[float, dict[str, float]]:
    """Return the same from the output of ``pytest --durations=N``: of the slowest tests alone."""
    tests: dict[str, float] = {}
    for seconds, name in _DURATION.findall(text):
        tests[name] = tests.get(name, 0.0) + float(seconds)
    total = _TOTAL.findall(text)
    return float(total[-1][1]) if total else 0.0, tests


def suite(file: Path) -> Section:
    """Return the table of a run's JUnit XML or output."""
    text = file.read_text(encoding="utf-8", errors="replace")
    read = from_junit if text.lstrip().startswith("<") else from_durations
    return suite_section(*read(text))


def suite_section(total_s: float, tests: dict[str, float]) -> Section:
    """Return the table: the whole run and its slowest tests."""
    slowest = sorted(tests.items(), key=lambda each: -each[1])[:SLOWEST]
    rows = [["the run", f"{total_s:.0f}"], *([name, f"{took:.1f}"] for name, took in slowest)]
    figures = {"total_s": total_s, "slowest": dict(slowest), "tests": len(tests)}
    return Section("Our own suite", ("test", "s"), rows, figures)
