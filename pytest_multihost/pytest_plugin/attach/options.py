"""Whether this is an attached run: one over several processes that a launcher has started.

Imported in every run of pytest, so this module imports nothing heavy.
"""

from __future__ import annotations

import os

import pytest

_HELP = (
    "Be one of several processes that torchrun, srun, mpirun or the like has started with the same"
    " command: rank 0's runs the tests, and every process starts its rank of each world"
)
_ENV = "PYTEST_MULTIHOST_ATTACH"
ATTACHED_PLUGIN = "multihost_attached"
"""Name of the plugin that is registered in attached runs."""

_NO = ("", "0", "false", "no", "off")


def add_attach_option(parser: pytest.Parser) -> None:
    """Declare `--multihost-attach`."""
    group = parser.getgroup("multihost", "worlds of ranks")
    group.addoption("--multihost-attach", action="store_true", default=None, help=_HELP)
    parser.addini("multihost_attach", _HELP, type="bool", default=False)


def is_attached(config: pytest.Config) -> bool:
    """Return whether this process is part of an attached run."""
    option = config.option
    runs_no_test = option.collectonly or getattr(option, "setupplan", False)
    if runs_no_test or option.help or option.version:
        return False
    if config.getoption("multihost_attach") is not None:
        return bool(config.getoption("multihost_attach"))
    if _ENV in os.environ:
        return os.environ[_ENV].lower() not in _NO
    return bool(config.getini("multihost_attach"))
