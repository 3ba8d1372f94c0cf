"""Worlds whose hosts are containers, each with a server in it.

`containers` talks to the Docker API, `launcher` starts worlds.
"""

from pytest_multihost.launch.docker.containers import ContainerSpec
from pytest_multihost.launch.docker.launcher import ContainerLauncher

__all__ = ["ContainerLauncher", "ContainerSpec"]
