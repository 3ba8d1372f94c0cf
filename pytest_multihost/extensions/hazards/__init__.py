"""Looks in the record of one passing run for what hangs elsewhere, above all on GPUs; pure.

gloo on CPU forgives what NCCL punishes. Matching of collectives has no wildcards, so that one run
shows what others would do.

* `rule` says what a rule is. Each rule has a file of its own - `order`, `threads`, `unwaited` and
  `skipped` - and is named in `RULES`. `records` has the parts of a record that several rules need.
* `find` applies rules, and words what they find; `accept` marks what a project accepts; `disturb`
  says what a sweep can do so that a hazard hangs.
"""

from collections.abc import Collection, Mapping

from pytest_multihost.extensions.hazards.accept import accept_hazards
from pytest_multihost.extensions.hazards.disturb import disturbances_of
from pytest_multihost.extensions.hazards.find import find_hazards
from pytest_multihost.extensions.hazards.order import ORDER
from pytest_multihost.extensions.hazards.rule import Found, HazardRule, Occurrences
from pytest_multihost.extensions.hazards.skipped import SKIPPED
from pytest_multihost.extensions.hazards.threads import THREADS
from pytest_multihost.extensions.hazards.unwaited import UNWAITED

__all__ = [
    "RULES",
    "Found",
    "HazardRule",
    "Occurrences",
    "accept_hazards",
    "chosen_rules",
    "disturbances_of",
    "find_hazards",
]

RULES: Mapping[str, HazardRule] = {rule.name: rule for rule in (ORDER, THREADS, UNWAITED, SKIPPED)}
"""The rules by name, in the order in which their hazards are reported."""


def chosen_rules(names: Collection[str]) -> tuple[HazardRule, ...]:
    """Return the rules with these names; without any, those that are applied by default."""
    return tuple(
        rule for name, rule in RULES.items() if (name in names if names else rule.is_default)
    )
