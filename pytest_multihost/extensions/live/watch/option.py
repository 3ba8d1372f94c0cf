"""The option `--multihost-watch`. Imports little."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pytest_multihost.core.model.errors import SettingError
from pytest_multihost.core.option import Option

if TYPE_CHECKING:
    import pytest

FOLDER = "PYTEST_MULTIHOST_WATCHED"
"""The variable with the folder of the watcher above a process."""

IN_WORKER = "PYTEST_XDIST_WORKER"
"""The variable that xdist sets in its workers."""

WORKERS = "PYTEST_XDIST_WORKER_COUNT"
"""The variable in which xdist says how many workers there are."""

WATCHER = "multihost-watch"
"""The name of a process that watches its descendants and passes on their end."""

REPORT, END, OFF = "report", "end", "off"
_VALUES = {REPORT: REPORT, "true": REPORT, END: END, OFF: OFF, "false": OFF}


def _parse(text: str) -> str:
    if text not in _VALUES:
        raise SettingError(f"must be report, end or off, not {text!r}")
    return _VALUES[text]


WATCH: Option[str] = Option(
    name="watch",
    metavar="report|end|off",
    help="Watch plain tests that start their own ranks: the report of one that fails or is"
    " interrupted says which rank the others wait for; end: also end ranks that are proven to hang",
    parse=_parse,
    default=OFF,
    bare=REPORT,
    needs_worlds=False,
)


def early_mode(config: pytest.Config) -> str:
    """Return `REPORT`, `END` or `OFF` before pytest has read its settings.

    A wrong value is refused later.
    """
    given = getattr(config.known_args_namespace, WATCH.dest, None)
    given = given or os.environ.get(WATCH.variable) or config.getini(WATCH.dest)
    return _VALUES.get(str(given), REPORT) if given else OFF
