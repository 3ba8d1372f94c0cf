"""The built-in engines: a command for each node, ssh, Slurm and Ray."""

from pytest_multihost.extensions.engines.cluster.commands import EXEC, SSH
from pytest_multihost.extensions.engines.cluster.ray_engine import RAY_ENGINE
from pytest_multihost.extensions.engines.cluster.slurm import SLURM

ENGINES = (EXEC, SSH, SLURM, RAY_ENGINE)

__all__ = ["ENGINES"]
