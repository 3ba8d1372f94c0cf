"""Programs that restore a checkpoint, with the orbax that is installed or with the newest."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "single_replica.py"
ORBAX = {"installed": "0.11.33", "newest": "0.12.8"}
NEWEST = Path(sys.prefix) / "orbax-newest" / "site-packages"
"""Where the Makefile puts the newest orbax, beside the one that is installed."""


@pytest.fixture
def run_restores(run_worlds, pytester, monkeypatch) -> Callable[..., Any]:
    """Run tests that `import single_replica`, on the orbax that is asked for.

    The ranks find its version in the environment, as ORBAX, to see that they have it.
    """

    def run(source: str, *args: str, orbax: str = "installed") -> Any:  # noqa: ANN401 - of the conftest file
        monkeypatch.setenv("ORBAX", ORBAX[orbax])
        if orbax == "newest":
            monkeypatch.setenv("PYTHONPATH", str(_newest()), prepend=os.pathsep)
        pytester.makepyfile(single_replica=PROGRAM.read_text())
        return run_worlds(source, *args, timeout=180)

    return run


def _newest() -> Path:
    version = ORBAX["newest"]
    if not (NEWEST / f"orbax_checkpoint-{version}.dist-info").exists():
        pytest.fail(
            f"The newest orbax is not beside the installed one: there is no orbax {version} in "
            f"{NEWEST}. `make test` puts it there, or: {sys.executable} -m pip install --no-deps "
            f"--target {NEWEST} orbax-checkpoint=={version}",
            pytrace=False,
        )
    return NEWEST
