"""Whether this machine lets hosts be made, asked once in a run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from pytest_multihost.launch.docker.launcher import ContainerLauncher
from pytest_multihost.launch.fallback import FallbackLauncher
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.hosts import ONE, kind_of
from pytest_multihost.pytest_private import base_temp

_REFUSED = pytest.StashKey[dict[str, str]]()


def why_no_hosts(
    config: pytest.Config, hosts: str, ladder: FallbackLauncher | ContainerLauncher
) -> str:
    """Return why hosts cannot be made as asked for here, and what helps; empty if they can.

    Args:
        config: pytest's configuration.
        hosts: What is asked for; one host is always there.
        ladder: Makes them, or has a server, which tries it.
    """
    if hosts == ONE:
        return ""
    refused = config.stash.setdefault(_REFUSED, {})
    if (kind := kind_of(hosts)) not in refused:
        base = Path(tempfile.mkdtemp(prefix="hosts-", dir=base_temp(config)))
        error = ladder.why_no_hosts(base / "trial")
        shutil.rmtree(base)
        refused[kind] = _in_one_line(error) if error else ""
    return refused[kind]


def _in_one_line(error: LaunchError) -> str:
    beats = str(error).splitlines()
    return " ".join(beat if beat.endswith((".", ":")) else f"{beat}." for beat in beats)
