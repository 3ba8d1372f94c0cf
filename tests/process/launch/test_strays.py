"""What the ranks of a server that has ended left behind is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from pytest_multihost.core.launch.reaper import kill_strays

MARKED = """
import sys, time
from pytest_multihost.core.launch.reaper import mark_descendants

mark_descendants(int(sys.argv[1]))
print(flush=True)
time.sleep(600)
"""


def test_what_descends_from_ranks_of_a_living_server_is_spared() -> None:
    """Other runs on this machine have servers, too."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    started = []
    try:
        for server in (os.getpid(), ended.pid):
            command = [sys.executable, "-c", MARKED, str(server)]
            started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
            started[-1].stdout.readline()
        kill_strays()
        assert started[1].wait(timeout=20) == -signal.SIGKILL
        assert started[0].poll() is None
    finally:
        for process in started:
            process.kill()
            process.communicate()
