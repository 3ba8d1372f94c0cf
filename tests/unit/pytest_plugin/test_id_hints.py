"""The advice for a test id whose part for the size or the backend does not exist."""

from __future__ import annotations

import pytest

from pytest_multihost.core.pytest_plugin.id_hints import Axes, hint_of_id

TESTS = {
    "a/t.py::test_any": Axes((2,), ("none",), is_of_any_size=True, is_of_any_backend=True),
    "a/t.py::test_two": Axes((2,), ("gloo",), is_of_any_size=False, is_of_any_backend=False),
    "a/t.py::test_list": Axes((2, 3), ("none",), is_of_any_size=False, is_of_any_backend=True),
}
BACKENDS = ("none", "gloo", "jax")


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        ("t.py::test_any[4]", "with 4 ranks: pytest t.py::test_any --ranks 4"),
        ("t.py::test_any[gloo]", "over gloo: pytest t.py::test_any --multihost-backend gloo"),
        (
            "t.py::test_any[x-4-jax]",
            "with 4 ranks over jax: pytest 't.py::test_any[x]' --ranks 4 --multihost-backend jax",
        ),
        ("t.py::test_two[2-gloo]", "with 2 ranks over gloo: pytest t.py::test_two"),
        (
            "t.py::test_list[3-gloo]",
            "with 3 ranks over gloo: pytest 't.py::test_list[3]' --multihost-backend gloo",
        ),
    ],
)
def test_the_advice_is_a_command_that_runs_what_was_asked_for(asked: str, command: str) -> None:
    """Its options replace the parts that the id does not have."""
    assert hint_of_id([asked], TESTS, BACKENDS).endswith(f"To run the test {command}")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("t.py::test_two[4]", "only with ranks 2."),
        ("t.py::test_two[jax]", "only with backend gloo."),
        ("t.py::test_list[4]", "only with ranks 2 and 3."),
        ("t.py::test_list[gloo]", "only with ranks 2 and 3."),
    ],
)
def test_what_a_marker_rules_out_is_said(asked: str, reason: str) -> None:
    """No option runs such a test."""
    assert hint_of_id([asked], TESTS, BACKENDS).endswith(reason)


@pytest.mark.parametrize("asked", ["t.py", "t.py::test_any[x]", "t.py::test_other[4]"])
def test_other_ids_get_no_advice(asked: str) -> None:
    """A file, a test's own parameter, or a test that is no multihost test."""
    assert hint_of_id([asked], TESTS, BACKENDS) == ""
