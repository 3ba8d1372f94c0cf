"""What a function does with the value of a line, and whether code depends on hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.extensions.sweep.local_decisions.source import (
    is_asked_whether_empty,
    may_depend_on_hashes,
    use_of_line,
)

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


LISTS = """
def train(self):
    found = gradients()  # asked
    apply(1, found)
    left = gradients()  # asked
    if not left:
        return
    kept = gradients()  # asked
    while len(kept):
        kept.pop()
    given = gradients()  # asked
    self.step(given)
    some = gradients()  # asked
    if len(some) == 0:
        return
    many = gradients()
    if len(many) > 3:
        return
    apply(many, [])
    sum(gradients())

def apply(lr, values):
    return sum(values) * lr if values else 0

class Trainer:
    def step(self, values):
        if not values:
            return
"""


@pytest.mark.parametrize(
    "line", [number for number, text in enumerate(LISTS.splitlines(), 1) if "radients()" in text]
)
def test_code_may_ask_whether_a_list_is_empty(line: int, tmp_path: Path) -> None:
    """In the function that gets it, or in one to which this passes it."""
    file = tmp_path / "module.py"
    file.write_text(LISTS)
    is_asked = LISTS.splitlines()[line - 1].endswith("# asked")
    assert is_asked_whether_empty(str(file), line) == is_asked


def test_source_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    """As of code that was made from a text."""
    (tmp_path / "broken.py").write_text("if")
    for name in ("broken.py", "missing.py"):
        assert use_of_line(str(tmp_path / name), 1) == "other"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for name in {'loss', 'seconds'}: reduce(name)", True),
        ("found = {each.name for each in folder}", True),
        ("names = set(read())", True),
        ("shard = hash(name) % size", True),
        ("for name in one.keys() - other.keys(): reduce(name)", True),
        ("if kind in {'sum', 'mean'}: reduce()", False),
        ("found = {name: 1 for name in names}", False),
        ("total.set(1); model.hash(2)", False),
    ],
)
def test_code_depends_on_hashes_if_it_makes_sets(
    source: str, *, expected: bool, tmp_path: Path
) -> None:
    """A set that is only asked for an element has no order that shows."""
    file = tmp_path / "module.py"
    file.write_text(f"def test():\n    {source}\n")
    assert may_depend_on_hashes(str(file), ["test"]) == expected


SHARED = """
NAMES = {"loss", "seconds"}
class Metrics:
    def reduce(self):
        return [each for each in NAMES]
def helper(metrics):
    return metrics.reduce()
def metrics():
    return 1
def check(): return set()
@latent(seen_by=check)
def test_uses(): helper(1)
@latent(seen_by=check)
def test_asks(metrics): return metrics
def test_reduces(model): model.reduce()
"""


@pytest.mark.parametrize(
    ("name", "expected"), [("test_uses", True), ("test_asks", False), ("test_reduces", True)]
)
def test_code_that_a_test_does_not_use_says_nothing(
    name: str, *, expected: bool, tmp_path: Path
) -> None:
    """Functions, methods, fixtures and constants are known by their names."""
    file = tmp_path / "module.py"
    file.write_text(SHARED)
    assert may_depend_on_hashes(str(file), [name]) == expected


def test_source_that_cannot_be_read_may_depend_on_hashes(tmp_path: Path) -> None:
    """A hash seed costs time, and a weakness that is missed costs more."""
    assert may_depend_on_hashes(str(tmp_path / "missing.py"), ["test"])
