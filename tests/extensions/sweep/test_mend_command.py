"""What `multihost mend` prints."""

from __future__ import annotations

import pytest

from pytest_multihost.core.command.main import make_parser
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.extensions.sweep.mend_command import section
from pytest_multihost.extensions.sweep.mendings import MENDINGS
from pytest_multihost.testing import MultihostError


def ran(*args: str) -> int:
    """Run a command of `multihost`, and return its exit code."""
    hook = new_plugin_manager().hook
    options = make_parser(hook)[0].parse_args(["mend", *args])
    return int(options.act(options, hook))


@pytest.mark.parametrize("name", MENDINGS)
def test_each_pattern_that_a_sweep_names_can_be_printed(name: str) -> None:
    """With its code before and after, or with what to do instead of code."""
    text = section(name)
    assert "```python" in text or name == "lost-ranks"
    assert "<a id" not in text


def test_without_a_name_it_lists_the_patterns(capsys: pytest.CaptureFixture[str]) -> None:
    """One on each line, with its advice."""
    assert ran() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(MENDINGS)


def test_a_wrong_name_gets_the_nearest_one() -> None:
    """As with other names."""
    with pytest.raises(MultihostError, match="Did you mean agree-on-errors"):
        ran("agree-on-error")
