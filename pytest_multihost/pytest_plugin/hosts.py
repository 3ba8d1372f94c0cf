"""Whether this machine lets hosts be made, asked once in a run."""

from __future__ import annotations

import shutil

import pytest

from pytest_multihost.launch.ladder import Ladder
from pytest_multihost.model.hosts import ONE

_REFUSED = pytest.StashKey[str]()


def why_no_hosts(config: pytest.Config, hosts: str, ladder: Ladder) -> str:
    """Return why hosts cannot be made from namespaces here, and what helps; empty if they can.

    Args:
        config: pytest's configuration.
        hosts: What is asked for; one host is always there.
        ladder: Has a server, which tries it.
    """
    if hosts == ONE:
        return ""
    if _REFUSED not in config.stash:
        factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]  # noqa: SLF001
        base = factory.mktemp("hosts-")
        error = ladder.why_no_hosts(base / "trial")
        shutil.rmtree(base)
        config.stash[_REFUSED] = " ".join(str(error).splitlines()) if error else ""
    return config.stash[_REFUSED]
