"""Each promise has a test that fails when the promise is not kept."""

from __future__ import annotations

from argparse import Namespace

import pytest
from claims import ROOT, claims_and_tests, options_and_files, rows_of

ROWS = rows_of((ROOT / "README.md").read_text())


def test_each_row_of_readme_has_a_test() -> None:
    """It carries the row's own words, so that a row that is rewritten asks for its test again."""
    found = claims_and_tests()
    assert [row for row in ROWS if row not in found] == []
    assert [claim for claim in found if claim not in ROWS] == []


def test_rows_are_those_of_tables() -> None:
    """Heads and rules are none, and of a link its text counts."""
    page = "| I want to | |\n|---|---|\n| run [it](docs/run.md) now | `run` |\n\ntext | more |\n"
    assert rows_of(page) == ["run it now"]


def options(config: pytest.Config) -> list[str]:
    """Return the names of our options, as pytest itself knows them."""
    own: Namespace = config.option
    return sorted(name.replace("_", "-") for name in vars(own) if name.startswith("multihost_"))


def test_each_option_is_used_by_a_test(pytestconfig: pytest.Config) -> None:
    """Without the option, pytest refuses that test's command line; --ranks is a short form."""
    found = options_and_files([*options(pytestconfig), "ranks"])
    found = {name: files for name, files in found.items() if name != "multihost-ranks"}
    assert len(found) > 20
    assert [name for name, files in found.items() if not files] == []
