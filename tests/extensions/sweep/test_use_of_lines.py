"""What a function does with the value of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.extensions.sweep.local_decisions.source import use_of_line

pytestmark = pytest.mark.unit

SOURCE = """
def test(self):
    begun = now()
    while now() > 3:  # other
        pass
    assert now() < 3  # asserted
    self.assertLess(
        now(),  # asserted
        3,
    )
    return now()  # returned

def assigns():
    first = now()  # asserted
    elapsed = first - 3
    assert elapsed < 3
    second = now()  # other
    if second > 3:
        third = now()  # returned
    assert second
    fourth = now()  # other
    print(fourth)
    return third

def measures():
    with timer() as taken:  # asserted
        pass
    assert taken.seconds < 3

now()  # other
"""
LINES = SOURCE.splitlines()


@pytest.mark.parametrize(
    "line", [number for number, text in enumerate(LINES, 1) if "#" in text], ids=str
)
def test_a_value_is_asserted_or_returned_by_name_or_at_once(line: int, tmp_path: Path) -> None:
    """What decides a branch is neither, even if it is asserted as well."""
    file = tmp_path / "module.py"
    file.write_text(SOURCE)
    assert use_of_line(str(file), line) == LINES[line - 1].rpartition("# ")[2]


def test_source_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """As of code that was made from a text."""
    (tmp_path / "broken.py").write_text("if")
    for name in ("broken.py", "missing.py"):
        assert use_of_line(str(tmp_path / name), 1) == "other"
