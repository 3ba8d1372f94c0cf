"""Judge a world from what torch's flight recorders have dumped of it, after the fact.

`recording` finds and reads a folder of dumps, `launched` joins them: who has launched which
operation of which group. `progress` tells how far each rank has come, and `told_world` makes the
world that is judged, with the offsets of the hosts' clocks and what dumps show besides.
`command` does that for ``multihost explain``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.command.explainer import Explainer


@hookimpl
def pytest_multihost_explainers() -> Sequence[Explainer]:
    """Explain folders of dumps."""
    from pytest_multihost.extensions.flight.command import DUMPS

    return [DUMPS]
