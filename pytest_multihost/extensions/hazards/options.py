"""The options of hazards."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from pytest_multihost.core.model.errors import shown
from pytest_multihost.core.option import Option, one_of, parse_names
from pytest_multihost.core.pytest_plugin.usage_errors import usage_error

HazardMode = Literal["off", "warn", "fail"]
"""The modes for hazards: ignore them, warn of each, or fail the test."""

MODE: Option[HazardMode] = Option(
    name="hazards",
    metavar="off|warn|fail",
    help="Action for a passing test that shows a hazard, which can hang elsewhere",
    parse=one_of(*get_args(HazardMode)),
    default="warn",
)

RULES: Option[tuple[str, ...]] = Option(
    name="hazard_rules",
    metavar="RULE[,...]|all",
    help="Rules of hazards to check (default: the certain ones)",
    parse=parse_names,
    default=(),
)
"""Names of rules; if empty, the default rules apply. `check_names` checks the names later."""


def check_names(names: Collection[str], rules: Collection[str]) -> None:
    """Check that all names given by the user are names of rules.

    Raises:
        pytest.UsageError: A rule does not exist; the message lists the rules that do.
    """
    if unknown := set(names) - {*rules, "all"}:
        known = ", ".join(rules)
        raise usage_error(f"{RULES.flag}: rules are {known}, or all, not {shown(min(unknown))}")
