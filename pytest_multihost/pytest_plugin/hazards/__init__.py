"""Hazards of tests that have passed: looked for in what their ranks have recorded, and told.

`look` reads the records and applies the rules, `tell` warns.
"""

from pytest_multihost.pytest_plugin.hazards.look import look_for_hazards
from pytest_multihost.pytest_plugin.hazards.tell import fails_test

__all__ = ["fails_test", "look_for_hazards"]
