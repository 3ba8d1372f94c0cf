"""The built-in engines.

`command_node` is a node that a local command reaches; `commands` and `slurm` have such nodes.
`ray_engine` is pytest's side of Ray, `ray_client` a process beside pytest, and `ray_peer` runs on
the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_multihost.extensions.engines.engine import Engine


def built_in_engines() -> Sequence[Engine]:
    """Return the built-in engines; a node imports a module of this folder, but no engine."""
    from pytest_multihost.extensions.engines.cluster.commands import EXEC, SSH
    from pytest_multihost.extensions.engines.cluster.ray_engine import RAY_ENGINE
    from pytest_multihost.extensions.engines.cluster.slurm import SLURM

    return EXEC, SSH, SLURM, RAY_ENGINE
