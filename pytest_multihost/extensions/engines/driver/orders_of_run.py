"""Derives the orders of the peers from the driver's own run of pytest."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_multihost.core.launch.launcher_env import is_foreign
from pytest_multihost.extensions.engines.driver import heartbeats
from pytest_multihost.extensions.engines.driver.order import PeerOrder
from pytest_multihost.extensions.engines.driver.start_peer import PACKAGE

_CARRIED = (
    *("PYTEST_", "PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH"),
    *("TORCH_", "NCCL_", "GLOO_", "JAX_", "XLA_", "OMP_NUM_THREADS"),
    *("TZ", "LANG", "LC_", "CI"),
)
"""Variables of the driver that the peers get: names, or the beginnings of names."""

_NOT_CARRIED = ("PYTEST_XDIST", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")
_OF_ATTACHED = ("ATTACH", "RANK", "SIZE", "ADDRESS", "SECRET", "SECRET_FILE", "SERVER")


def orders_of_run(
    config: pytest.Config, engine: str, secret: str, count: int
) -> Sequence[PeerOrder]:
    """Return the order of each peer.

    Args:
        engine: The engine's name.
        secret: The run's secret, in hexadecimal digits.
        count: The number of nodes.
    """
    start = Path(config.invocation_params.dir)
    return [
        PeerOrder(
            plugin=version(PACKAGE),
            secret=secret,
            rank=rank,
            size=count + 1,
            engine=engine,
            args=tuple(_portable(str(arg), start) for arg in config.invocation_params.args),
            directory=str(start),
            landmarks=tuple(_landmarks(config, start)),
            environment=carried_variables(os.environ),
            silent_s=heartbeats.SILENT_S,
            path=tuple(_below(start, sys.path)),
        )
        for rank in range(1, count + 1)
    ]


def carried_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the peers get from the driver."""
    own = {f"PYTEST_MULTIHOST_{name}" for name in _OF_ATTACHED}
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_CARRIED)
        and not name.startswith(_NOT_CARRIED)
        and name not in own
        and not is_foreign(name)
    }


def _portable(arg: str, start: Path) -> str:
    """Return an argument for another copy of the project: a path inside becomes relative."""
    path, separator, rest = arg.partition("::")
    if path.startswith("/") and Path(path).is_relative_to(start):
        return f"{Path(path).relative_to(start)}{separator}{rest}"
    return arg


def _landmarks(config: pytest.Config, start: Path) -> Sequence[str]:
    """Return files of the project relative to the directory where pytest was started."""
    named = [str(arg).partition("::")[0] for arg in config.args]
    found = [*([config.inipath] if config.inipath else []), *(start / each for each in named)]
    return list(dict.fromkeys(str(p.relative_to(start)) for p in found if p.is_relative_to(start)))


def _below(start: Path, entries: Sequence[str]) -> Sequence[str]:
    """Return the entries of `sys.path` below a directory, relative to it."""
    paths = [start / each for each in entries]
    return [str(each.relative_to(start)) for each in paths if each.is_relative_to(start)]
