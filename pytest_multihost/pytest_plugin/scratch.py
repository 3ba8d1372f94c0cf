"""What a world has around it: a directory for temporary files, and versions."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from pytest_multihost.launch.netns.network import FOLDER
from pytest_multihost.model.spec import WorldSpec
from pytest_multihost.pytest_private import base_temp


def make_scratch(config: pytest.Config, spec: WorldSpec) -> Path:
    """Make the world's directory for temporary files, below pytest's own base directory.

    Not by the factory's `mktemp`: it leaves a symbolic link for every name.
    """
    scratch = Path(tempfile.mkdtemp(prefix=f"world-{spec.seed}-", dir=base_temp(config)))
    (scratch / "shared").mkdir()
    return scratch


def tidy(scratch: Path, config: pytest.Config) -> None:
    """Remove what a passed world has left: all of it if pytest is told so, else what is empty."""
    if str(config.getini("tmp_path_retention_policy")) != "all":
        shutil.rmtree(scratch, ignore_errors=True)
        return
    for store in scratch.glob("*-store"):
        store.unlink(missing_ok=True)
    shutil.rmtree(scratch / FOLDER, ignore_errors=True)
    for directory in (*scratch.iterdir(), scratch):
        with suppress(OSError):  # not empty: the test's own files
            directory.rmdir()


@cache
def environment() -> Mapping[str, str | None]:
    """Return the versions that a verdict depends on."""
    packages = {name: _version(name) for name in ("pytest", "torch", "jax")}
    return {"python": platform.python_version(), "platform": sys.platform, **packages}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
