"""The names that ranks give to their children."""

from __future__ import annotations

from pytest_multihost.core.model.child_names import child_key, find_names
from pytest_multihost.testing import Child, Operations


def test_names_are_those_that_programs_give() -> None:
    """What multiprocessing calls a process without a name says nothing."""
    keys = [child_key(1, 300, "EngineCore_1"), child_key(1, 301, "SpawnProcess-2")]
    page = Operations(1, (), dict.fromkeys(keys, 0))
    assert find_names([page]) == {300: "EngineCore_1"}


def test_a_child_without_a_name_has_a_title() -> None:
    """Its program, if that is known, and its process id."""
    titles = [Child(7, "core").title, Child(7, program="sleep").title, Child(7).title]
    assert titles == ["core", "sleep 7", "process 7"]
