"""Judges a world after the fact, from the dumps of torch's flight recorders.

`recording` finds and reads a folder of dumps, with `plain_pickle`. `launched` joins them to the
operations that each rank has launched in each group. `progress` derives how far each rank has come.
`told_world` builds the world from that and judges it, with the offsets of the hosts' clocks.
`command` is the part of ``multihost explain``.
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
