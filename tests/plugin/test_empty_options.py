"""An option without a value does not silently do nothing."""

from __future__ import annotations

import pytest

SOURCE = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_it(world):
    pass
"""


@pytest.mark.parametrize("option", ["--multihost-replay", "--multihost-timeout", "--ranks"])
def test_an_empty_option_is_refused(run_worlds, option: str) -> None:
    """As from a shell variable that is not set; a test without its replay would pass."""
    run = run_worlds(SOURCE, option, "").run
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines([f"*{option}: its value is empty*", f"*leave {option} out.*"])


def test_an_empty_variable_sets_nothing(run_worlds, monkeypatch) -> None:
    """As it is usual for variables."""
    monkeypatch.setenv("PYTEST_MULTIHOST_TIMEOUT", "")
    run_worlds(SOURCE).run.assert_outcomes(passed=1)
