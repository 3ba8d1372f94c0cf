"""Calls of a function are seen by every name that it has."""

from __future__ import annotations

import sys
from contextlib import ExitStack

from pytest_multihost.intercept.calls import wrap_calls
from pytest_multihost.intercept.targets import load_target


def test_a_watched_function_is_watched_wherever_it_was_imported() -> None:
    """And put back there, also where it was imported in the meantime."""
    import json as defined_in

    module, later = type(sys)("one"), type(sys)("two")
    module.loads = defined_in.loads  # type: ignore[attr-defined]
    original, seen = defined_in.loads, []
    with ExitStack() as undoing:
        wrap_calls(load_target("json:loads"), seen.append, undoing, more_modules=[module, later])
        later.loads = defined_in.loads  # type: ignore[attr-defined]
        assert module.loads("1") + later.loads("2") == 3  # type: ignore[attr-defined]
        assert seen == ["before", "after"] * 2
    assert defined_in.loads is module.loads is later.loads is original  # type: ignore[attr-defined]
