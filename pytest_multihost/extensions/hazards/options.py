"""The options of hazards."""

from __future__ import annotations

from typing import get_args

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.option import Option
from pytest_multihost.core.pytest_plugin.option_texts import one_of
from pytest_multihost.extensions.hazards.names import DEFAULT_RULES, HazardMode, Rule


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Read "order,threads", or "all".

    Raises:
        SettingError: There is no such rule.
    """
    rules: tuple[Rule, ...] = get_args(Rule)
    parts = {part.strip() for part in text.split(",")}
    if text != "all" and (unknown := parts - set(rules)):
        raise SettingError(f"rules are {', '.join(rules)}, or all, not {shown(min(unknown))}")
    return tuple(rule for rule in rules if text == "all" or rule in parts)


MODE: Option[HazardMode] = Option(
    name="hazards",
    metavar="off|warn|fail",
    help="What to do where a passing test shows what can hang elsewhere",
    parse=one_of(*get_args(HazardMode)),
    default="warn",
)

RULES: Option[tuple[Rule, ...]] = Option(
    name="hazard_rules",
    metavar="RULE[,...]|all",
    help=f"Hazards to look for (default: {','.join(DEFAULT_RULES)})",
    parse=parse_rules,
    default=DEFAULT_RULES,
)
