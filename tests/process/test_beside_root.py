"""Another user beside a run of root can read, lock, connect to and signal nothing of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

INTRUDER = 4711
PYTHON = shutil.which("python3", path="/usr/bin:/bin")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts a program of another user"),
    pytest.mark.skipif(PYTHON is None, reason="another user needs a Python that he may read"),
]

TEST = """
import pathlib, time, pytest
@pytest.mark.multihost(ranks=2, timeout=120)
def test_a(world):
    print("password is hunter2")
    world.barrier()
    pathlib.Path("ready-%d" % world.rank).touch()
    time.sleep(60)
"""

TRIES = """
import fcntl, json, os, pathlib, signal, socket, sys
found, pids, folder = [], json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
def attempt(what, act):
    try:
        act()
    except (OSError, ValueError):
        return
    found.append(what)
for pid in pids:
    for name in ("environ", "mem", "maps", "syscall", "stack"):
        attempt(f"read {name} of {pid}", lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
    attempt(f"list fd of {pid}", lambda: os.listdir(f"/proc/{pid}/fd"))
    for number in (signal.SIGCONT, 0):
        attempt(f"signal {pid}", lambda: os.kill(pid, number))
seen = 0
for base in (folder, pathlib.Path(sys.argv[3])):
    for top, folders, files in os.walk(base):
        for name in files:
            path = os.path.join(top, name)
            if ".pytest_multihost" not in path and not path.startswith(sys.argv[3]):
                continue
            seen += 1
            def read(path=path):
                with open(path, "rb") as file:
                    file.read(1)
            attempt(f"read {path}", read)
            def lock(path=path):
                descriptor = os.open(path, os.O_RDONLY)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            attempt(f"lock {path}", lock)
            attempt(f"write {path}", lambda path=path: open(path, "ab"))
for kind, where in json.loads(sys.argv[4]):
    def ask(kind=kind, where=where):
        with socket.socket(getattr(socket, kind)) as sock:
            sock.settimeout(3)
            sock.connect(tuple(where) if kind == "AF_INET" else where)
            sock.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n" * 20)
            while sock.recv(1000):
                pass
            raise OSError("it was refused")
    attempt(f"be served at {where}", ask)
print(json.dumps(found))
"""


def test_another_user_gets_nothing(tmp_path: Path) -> None:
    """Neither memory, files, locks, connections nor signals, while the ranks run and afterwards."""
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == 0 and each not in {Path("/"), Path("/tmp")}:  # noqa: S108 - as it is
            each.chmod(each.stat().st_mode | 0o055)
    folder, temp = tmp_path / "project", tmp_path / "temp"
    folder.mkdir(mode=0o755)
    (folder / "test_a.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={temp}"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL) as run:
        try:
            until_s = time.monotonic() + 120
            while not all((folder / f"ready-{rank}").exists() for rank in (0, 1)):
                assert time.monotonic() < until_s
                assert run.poll() is None
                time.sleep(0.1)
            processes = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
            assert len(processes) >= 4
            assert tries(processes, folder, temp) == []
        finally:
            for each in psutil.Process(run.pid).children(recursive=True):
                each.kill()
            run.kill()
    assert tries([], folder, temp) == []


def tries(processes: list[psutil.Process], folder: Path, temp: Path) -> list[str]:
    """Return what another user can do with the processes and files of a run."""
    places = [
        ["AF_INET", list(each.laddr)] if each.family == 2 else ["AF_UNIX", each.laddr]
        for process in processes
        for each in process.net_connections("all")
        if each.laddr and each.status in {"LISTEN", "NONE"}
    ]
    asked = [
        json.dumps([each.pid for each in processes]),
        str(folder),
        str(temp),
        json.dumps(places),
    ]
    done = subprocess.run(
        [str(PYTHON), "-c", TRIES, *asked],
        user=INTRUDER,
        group=INTRUDER,
        extra_groups=[],
        start_new_session=True,  # in the same one he may send SIGCONT
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    found: list[str] = json.loads(done.stdout)
    return found
