"""Ranks on hosts that a real sshd lets in; a stand-in for ssh is in `test_exec`."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cluster import (
    GLOO_WORLDS,
    LIMIT_S,
    SLEEPS,
    WORLDS,
    drive,
    project,
    result_lines,
    script,
    started,
)
from runs import await_that, living
from runtimes import require
from ssh_site import SshSite, ssh_site

pytestmark = pytest.mark.launchers

ON = ("--multihost-on", "ssh:n1,n2")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshSite]:
    """Run sshd; nobody is logged in at the end."""
    with ssh_site(tmp_path_factory.mktemp("ssh")) as found:
        yield found
        await_that(lambda: not found.daemon.children())


def test_the_summary_is_the_same_as_on_one_machine(site: SshSite, tmp_path: Path) -> None:
    """Word by word; what the user has configured for ssh says how the hosts are reached."""
    require("torch")
    path = project(tmp_path / "it", WORLDS + GLOO_WORLDS)
    here = drive(path)
    there = drive(path, *ON, **site.variables)
    assert result_lines(there.stdout) == result_lines(here.stdout), there.stdout
    assert len(result_lines(here.stdout)) == 4, here.stdout
    assert "multihost: ssh: 2 nodes: n1, n2" in there.stdout
    assert not living(path)


@pytest.mark.parametrize(
    ("hosts", "option", "words"),
    [
        ("n1,n2", "-oPubkeyAuthentication=no", "Permission denied (publickey"),
        ("n1,n2", "-oUserKnownHostsFile=/dev/null", "Host key verification failed"),
        ("n1,nowhere.invalid", "", "Could not resolve hostname nowhere.invalid"),
    ],
)
def test_a_host_that_lets_nobody_in_ends_the_run(
    site: SshSite, tmp_path: Path, hosts: str, option: str, words: str
) -> None:
    """At once, and in ssh's own words: nothing asks for a password."""
    path = project(tmp_path / "it", WORLDS)
    (tmp_path / "bin").mkdir()
    script(tmp_path / "bin" / "ssh", f'exec {site.folder}/bin/ssh {option} "$@"')
    variables = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"}
    done = drive(path, "--multihost-on", f"ssh:{hosts}", **variables)
    assert words in done.stdout, done.stdout
    assert "has ended at its start: exit code 255" in done.stdout
    assert done.returncode == 4


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_on_the_hosts(site: SshSite, tmp_path: Path, number: int) -> None:
    """Neither after Ctrl-C nor after a kill, at which sshd ends the peer's input."""
    path = project(tmp_path / "it", SLEEPS)
    with started(path, *ON, **site.variables) as process:
        process.send_signal(number)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert ("time.sleep(600)" in output) == (number == signal.SIGINT)
    await_that(lambda: not living(path))


def test_a_session_that_is_killed_is_an_error_with_the_host(site: SshSite, tmp_path: Path) -> None:
    """The engine's words are ssh's."""
    path = project(tmp_path / "it", SLEEPS)
    with started(path, *ON, **site.variables) as process:
        for each in site.daemon.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):  # it has ended with the one above it
                if each.name() == "sshd":
                    each.kill()
        output, _ = process.communicate(timeout=LIMIT_S)
    assert "ERROR test_worlds.py::test_sleeps" in output, output
    assert "exit code 255" in output
    assert process.returncode == 1
    await_that(lambda: not living(path))
