"""Make the launcher of containers: which files, programs and variables of this run they get."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import pytest

from pytest_multihost.launch.docker import ContainerLauncher, ContainerSpec
from pytest_multihost.launch.server import ServerProgram
from pytest_multihost.pytest_plugin.launching.launcher_factory import (
    SERVER_MODES,
    LauncherFactory,
)
from pytest_multihost.pytest_plugin.options import Settings
from pytest_multihost.pytest_private import base_temp
from pytest_multihost.rank import foreign_variables, thread_variables

HOST_PYTHON = "host"
"""Stands for the interpreter that runs pytest, mounted into the containers with its packages."""

_CARRIED = re.compile(
    r"""
    PYTEST_.*|PYTHON(?!HOME$|PATH$|STARTUP$|USERBASE$|EXECUTABLE$).*
    |(CUDA|GLOO|JAX|LC|MKL|NCCL|OMP|OPENBLAS|TF|TORCH|XLA|COVERAGE)_.*
    |CI|COLUMNS|LANG|TERM|TZ
    """,
    re.VERBOSE,
)
"""Environment variables that a container gets: those that mean the same in another root file
system. All others are the image's."""


def container_launcher(
    factory: LauncherFactory, mode: str, env: Mapping[str, str], settings: Settings
) -> ContainerLauncher:
    """Return a launcher of worlds whose hosts are containers.

    Args:
        factory: Makes the programs that containers run.
        mode: "auto", or the one way to use.
        env: Variables that must be in place before the ranks' interpreter starts.
        settings: The settings.
    """
    config = factory.config
    shared, python = _shared(config, settings.artifacts), settings.docker_python
    is_mounted = python == HOST_PYTHON
    spec = ContainerSpec(
        image=settings.docker_image,
        python=sys.executable if is_mounted else python,
        shared=shared,
        read_only=(*_preloaded(env), *(_interpreter() if is_mounted else ())),
        cwd=config.invocation_params.dir,
    )
    variables = _variables(env, shared, is_mounted=is_mounted)
    path = sys.path if is_mounted else None
    names = [mode] if mode in SERVER_MODES else list(SERVER_MODES)
    programs = {name: partial(_program, factory, name, variables, path) for name in names}
    return ContainerLauncher(spec, programs)


def _program(
    factory: LauncherFactory,
    mode: str,
    environment: Mapping[str, str],
    path: list[str] | None,
    host: str,
) -> ServerProgram:
    return factory.program(mode, environment, log=f"{mode}-{host}.log", path=path)


def _shared(config: pytest.Config, artifacts: Path) -> tuple[Path, ...]:
    """Return the directories in which both pytest and the containers read and write."""
    return (config.rootpath, config.invocation_params.dir, artifacts, base_temp(config))


def _interpreter() -> Iterable[Path]:
    """Return the directories of this interpreter and of its packages."""
    program = Path(os.path.realpath(sys.executable)).parent
    found = [Path(sys.prefix), Path(sys.base_prefix), program, *map(Path, sys.path)]
    return [path for path in found if path.is_absolute() and path.exists()]


def _preloaded(env: Mapping[str, str]) -> Iterable[Path]:
    """Return the directories of the libraries in LD_PRELOAD."""
    libraries = env.get("LD_PRELOAD", "").replace(":", " ").split()
    return [Path(each).parent for each in libraries if each.startswith("/")]


def _variables(
    env: Mapping[str, str], shared: Iterable[Path], *, is_mounted: bool
) -> Mapping[str, str]:
    """Return the variables that a container's environment has beside the image's."""
    foreign = set(foreign_variables(os.environ))
    carried = {
        name: value
        for name, value in os.environ.items()
        if _CARRIED.fullmatch(name) and name not in foreign
    }
    own = {} if is_mounted else {"PYTHONPATH": os.pathsep.join(_importable(shared))}
    return {
        **carried,
        **thread_variables(carried),
        # The container runs with this process's user id, which the image may not know.
        "HOME": "/tmp",  # noqa: S108 - in the container
        "USER": "multihost",
        **own,
        "PYTEST_MULTIHOST_SERVER": "1",
        **env,
    }


def _importable(shared: Iterable[Path]) -> list[str]:
    """Return the entries of sys.path that lie in a shared directory."""
    folders = list(shared)
    found = [Path(each or ".").absolute() for each in sys.path]
    return [str(each) for each in found if any(each.is_relative_to(folder) for folder in folders)]
