"""What the system refuses when processes are started is said in three parts, not by a traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WORLD = """
import pytest

@pytest.mark.multihost(ranks=12, hosts="{hosts}", timeout=60)
def test_it(world):
    world.barrier()
"""

# The kernel exempts root, and whoever may exceed resource limits, from the limit on processes. This
# user has no process, so that the limit counts only those of the test; each worker of pytest-xdist
# has a user of its own.
USER = 100_000 + os.getpid()
NOBODY = (
    ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
    + [f"--{kind}-caps=+dac_override,+dac_read_search" for kind in ("inh", "ambient")]
)  # fmt: skip


def run_limited(path: Path, limit: str, *args: str, hosts: str = "one", user: bool = False) -> str:
    """Run pytest on a world of 12 ranks under a limit of the shell; return what it prints."""
    (path / "test_worlds.py").write_text(WORLD.format(hosts=hosts))
    (path / "pytest.ini").write_text("[pytest]\n")
    (path / "tmp").mkdir()
    python = [sys.executable, "-m", "pytest", "-p", "multihost_hangs", *args]
    done = subprocess.run(
        [*(NOBODY if user else []), "bash", "-c", f'ulimit {limit}; exec "$@"', "bash", *python],
        cwd=path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "TMPDIR": str(path / "tmp")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    output = " ".join(done.stdout.split() + done.stderr.split())
    assert "Traceback" not in output
    assert "INTERNALERROR" not in output
    return output


needs_setpriv = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root can become a user without processes",
)


@needs_setpriv
@pytest.mark.parametrize("mode", ["fork", "server", "spawn"])
def test_a_server_that_may_not_be_started(tmp_path: Path, mode: str) -> None:
    """`ulimit -u 1`: pytest itself is the only process."""
    output = run_limited(tmp_path, "-u 1", f"--multihost-launch={mode}", user=True)
    assert "ERROR: the server that starts the ranks could not be started" in output
    assert "Resource temporarily unavailable" in output
    assert "Raise the limit on processes (ulimit -u" in output


@needs_setpriv
@pytest.mark.parametrize("processes", [2, 5])
def test_ranks_that_may_not_be_started(tmp_path: Path, processes: int) -> None:
    """The server may be, and some of the ranks; the rest of the run goes on."""
    output = run_limited(tmp_path, f"-u {processes}", user=True)
    assert "the ranks could not be started [Errno 11]" in output
    assert "Raise the limit on processes (ulimit -u" in output
    assert "1 error" in output


def test_a_server_whose_connections_cannot_be_opened(tmp_path: Path) -> None:
    """Or its files: pytest itself has almost all descriptors."""
    output = run_limited(tmp_path, "-n 14", "-p", "no:cacheprovider")
    assert "the ranks could not be started" in output
    assert "Raise the limit on open files of a process (ulimit -n)" in output


TOO_FEW = "12 ranks take 224 open files The hard limit of open files is {}. Raise it (ulimit -Hn)"


@pytest.mark.parametrize("descriptors", [17, 25, 33])
def test_ranks_whose_connections_cannot_be_opened(tmp_path: Path, descriptors: int) -> None:
    """They are counted before any is opened, in the server or in the controller."""
    output = run_limited(tmp_path, f"-n {descriptors}", "-p", "no:cacheprovider")
    assert TOO_FEW.format(descriptors) in output


@pytest.mark.usefixtures("netns_hosts")
def test_hosts_whose_namespaces_cannot_be_opened(tmp_path: Path) -> None:
    """Each takes descriptors, too; the kernel allows namespaces, so that is not to be changed."""
    output = run_limited(tmp_path, "-n 45", "-p", "no:cacheprovider", hosts="netns")
    assert TOO_FEW.format(45) in output
