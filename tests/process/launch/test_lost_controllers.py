"""A server whose controller is killed ends, and removes the controller's directory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ATTEMPTS = 4
"""The kernel may report the end of the controller before its request."""

SERVER = """
import os, signal, socket, sys, time
from pytest_multihost.core.launch.packets import receive_packet, send_packet
from pytest_multihost.core.launch.server.serve import serve
from pytest_multihost.testing import EndWorld, FromServer

ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
controller = os.fork()
if controller == 0:
    time.sleep(600)
server = os.fork()
if server == 0:
    ours.close()
    serve(theirs, lambda *_: None, controller=controller, scratch=sys.argv[1])
theirs.close()
receive_packet(ours, FromServer)
os.kill(server, signal.SIGSTOP)  # so that it reads the request when nobody waits for an answer
if sys.argv[2] == "asked":
    send_packet(ours, EndWorld(0.0))
os.kill(controller, signal.SIGKILL)
ours.close()
os.kill(server, signal.SIGCONT)
os.waitpid(controller, 0)
os.waitpid(server, 0)
"""


@pytest.mark.parametrize("when", ["idle", "asked"])
def test_the_directory_is_removed_whatever_the_controller_has_asked(
    tmp_path: Path, when: str
) -> None:
    """Users kill pytest when worlds end slowly, so that an answer finds nobody."""
    scratch = tmp_path / "scratch"
    for _ in range(ATTEMPTS):
        scratch.mkdir()
        subprocess.run([sys.executable, "-c", SERVER, str(scratch), when], check=True, timeout=60)
        assert not scratch.exists()
