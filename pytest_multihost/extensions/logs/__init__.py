"""Judges a job by its logs: files, folders of a launcher, or standard input.

`sources` finds the files and opens them. `lines` searches them in one pass and takes the prefixes
of launchers off the lines that matter. `readers` has one file for each kind of text; each turns
lines into facts of `said`. `told_job` joins the facts of all ranks to a world and judges it.
`groups` does that for the collectives of one process group. `progress` shows how much of long
inputs has been read. `command` is the part of ``multihost explain``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.core.command.explainer import Explainer


@hookimpl(trylast=True)  # a folder of dumps may have logs, too
def pytest_multihost_explainers() -> Sequence[Explainer]:
    """Explain logs."""
    from pytest_multihost.extensions.logs.command import LOGS

    return [LOGS]
