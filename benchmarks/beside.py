"""What can another user reach of a run of root's? Try it while the run goes, and print a table.

    sudo python benchmarks/beside.py [--uid 4712]

A run of two ranks over gloo with an object store sleeps. A process with another user's rights then
tries to read and lock every file of the run, to read the memory and environment of its processes,
to signal them, and to use whatever listens. Exits with 1 if it gets anything.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

PROGRAM = """
import os, time, pytest, torch
pytest_plugins = []

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=120)
def test_sleeps(world, object_store, tmp_path, shared_tmp_path):
    (tmp_path / "own").write_text("secret")
    (shared_tmp_path / "shared").write_text("secret")
    torch.distributed.all_reduce(torch.ones(1))
    open(os.environ["UP"] + str(world.rank), "w").close()
    time.sleep(60)
"""
START_S = 120.0
ASK_S = 3.0


def main() -> int:
    """Run, try, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--uid", type=int, default=4712, help="the other user")
    uid = parser.parse_args().uid
    if os.geteuid():
        parser.error("only root takes the rights of another user")
    folder = Path(tempfile.mkdtemp(prefix="beside-"))
    folder.chmod(0o755)  # else nobody would get as far as the run's own folders
    (folder / "test_it.py").write_text(PROGRAM, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    run = subprocess.Popen(
        [*command, f"--basetemp={folder / 'temp'}"],
        cwd=folder,
        env={**os.environ, "UP": str(folder / "up")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until_s = time.monotonic() + START_S
        while len([*folder.glob("up*")]) < 2:
            if run.poll() is not None or time.monotonic() > until_s:
                sys.exit(f"the run has not come to its test: {run.poll()}")
            time.sleep(0.1)
        pids = [run.pid, *(each.pid for each in psutil.Process(run.pid).children(recursive=True))]
        paths = [p for name in (".pytest_multihost", "temp") for p in (folder / name).rglob("*")]
        listeners = _listeners(pids)  # while this is root
        return _as_user(uid, lambda: _tried(pids, paths, listeners))
    finally:
        os.killpg(run.pid, signal.SIGTERM)
        run.wait(60)
        subprocess.run(["rm", "-rf", str(folder)], check=False)


def _listeners(pids: list[int]) -> list[tuple[int, str | tuple[str, int]]]:
    """Return the family and address of each socket that these processes listen at."""
    found: list[tuple[int, str | tuple[str, int]]] = []
    for pid in pids:
        with suppress(psutil.Error):
            for each in psutil.Process(pid).net_connections("all"):
                if each.status == psutil.CONN_LISTEN:
                    found.append((each.family, (each.laddr.ip, each.laddr.port)))
                elif each.family == socket.AF_UNIX and each.laddr:
                    found.append((each.family, each.laddr))
    return [*dict.fromkeys(found)]


def _as_user(uid: int, look: Callable[[], int]) -> int:
    sys.stdout.flush()
    child = os.fork()
    if not child:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        code = 1
        try:
            code = look()
            sys.stdout.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _tried(
    pids: list[int], paths: list[Path], listeners: list[tuple[int, str | tuple[str, int]]]
) -> int:
    """Try everything, print a row for each kind, and return 1 if something was reached."""
    kinds: dict[str, list[Callable[[], object]]] = {
        "read a file of the run": [lambda p=p: os.open(p, os.O_RDONLY) for p in paths],
        "lock a file of the run": [lambda p=p: _locked(p) for p in paths],
        "write a file of the run": [lambda p=p: os.open(p, os.O_WRONLY) for p in paths],
        "signal a process": [lambda p=p: os.kill(p, 0) for p in pids],
        "use what listens": [lambda e=each: _used(*e) for each in listeners],
    }
    for name in ("environ", "mem", "maps", "fd", "cwd"):
        kinds[f"read {name} of a process"] = [lambda p=p, n=name: _read(p, n) for p in pids]
    reached = Counter[str]()
    for kind, tries in kinds.items():
        for each in tries:
            with suppress(OSError):
                reached[kind] += each() is not False
        print(f"{kind:28} {len(tries):4} tried  {reached[kind]:4} reached", flush=True)
    return int(bool(reached.total()))


def _locked(path: Path) -> None:
    fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read(pid: int, name: str) -> object:
    path = f"/proc/{pid}/{name}"
    if name == "fd":
        return os.listdir(path)
    return os.readlink(path) if name == "cwd" else os.open(path, os.O_RDONLY)


def _used(family: int, address: str | tuple[str, int]) -> bool:
    """Connect, ask for the list of buckets, and return whether anything but a refusal comes."""
    with socket.socket(family) as asked:
        asked.settimeout(ASK_S)
        asked.connect(address)
        asked.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = b"".join(_parts(asked))
    return bool(answer) and b" 403 " not in answer.partition(b"\r\n")[0]


def _parts(asked: socket.socket) -> Iterator[bytes]:
    while part := asked.recv(1 << 16):
        yield part


if __name__ == "__main__":
    sys.exit(main())
