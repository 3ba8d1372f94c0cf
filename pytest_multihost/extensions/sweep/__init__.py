"""Plans the disturbances of a sweep, and judges what they brought about; pure.

The values are in `model.sweep`. What runs the worlds is `pytest_plugin.sweep`. A sweep calls, in
this order:

* `plan` makes the plan from the points of the undisturbed run, and cuts it into shards: `classes`
  finds points that are alike, and ranks that pass the same points, `sharing` files that several
  ranks use, what certainly comes after what, and what whoever holds a lock does. `choices` says
  what to do where, `lateness` where to hold a rank. `order_rest` leaves out what would only show
  again what is known.
* `judge` says what a disturbance has brought about.
* `weaknesses` reduces the runs to what they show, says what to repeat, and marks what the project
  accepts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.model.errors import MultihostError


@hookimpl
def pytest_multihost_rebuild(run: Path) -> Iterator[Path | MultihostError]:
    """Write the pages of a run's sweeps again."""
    from pytest_multihost.extensions.sweep.rebuilt import rebuild_pages

    return rebuild_pages(run)
