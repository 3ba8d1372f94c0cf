"""However a world ends, the names that its ranks have made are gone: shared memory, semaphores."""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest
from runs import await_that, living, server_of, start_pytest
from runtimes import needs

# Each rank makes names of every kind that outlives a process, and writes them down.
WORLD = """
import json, multiprocessing, multiprocessing.managers, multiprocessing.util, os, pathlib, pytest
import signal, time
from multiprocessing.shared_memory import SharedMemory

kept = []

def make_names(path):
    lock = multiprocessing.get_context("spawn").Lock()
    memory = SharedMemory(create=True, size=100)
    kept.extend([lock, memory])
    names = [f"/dev/shm/sem.{{lock._semlock.name[1:]}}", f"/dev/shm/{{memory.name}}"]
    names.append(multiprocessing.util.get_temp_dir())
    {more_names}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(names))
    new.rename(path)

@pytest.mark.multihost(ranks=2, timeout={timeout}{marks})
def test_it(world):
    make_names(pathlib.Path(f"names-{{world.rank}}"))
    {body}
"""

BODIES = {
    "passes": "world.barrier()",
    "fails": "assert world.rank != 1",
    "hangs": "world.barrier() if world.rank else time.sleep(600)",
    "busy": "\n    while True: pass",
    "deaf": "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)",
    "killed": "time.sleep(0.1); os.kill(os.getpid(), signal.SIGKILL)",
}


def made_names(path: Path) -> list[Path]:
    """Return the names that the ranks have made, once both have written them down."""
    files = [path / f"names-{rank}" for rank in range(2)]
    if not all(file.exists() for file in files):
        return []
    return [Path(name) for file in files for name in json.loads(file.read_text())]


@pytest.fixture
def base() -> Iterator[Path]:
    """Pytest's temporary directory; it is short enough for the addresses of sockets."""
    with tempfile.TemporaryDirectory(prefix="base-") as directory:
        yield Path(directory, "temp")


def left_names(path: Path, base: Path) -> list[Path]:
    """Return those that are still there, but for those in pytest's own temporary directory."""
    names = made_names(path)
    assert names
    return [name for name in names if name.exists() and not name.is_relative_to(base)]


@pytest.mark.parametrize(("launch", "body"), [*product(["fork"], BODIES), ("server", "hangs")])
def test_a_world_that_ends_leaves_no_names(
    tmp_path: Path, base: Path, launch: str, body: str
) -> None:
    """By itself, by a failure, by a proof of a hang, by its timeout, by SIGKILL."""
    source = WORLD.format(timeout=4, marks="", more_names="", body=BODIES[body])
    run = start_pytest(tmp_path, source, f"--multihost-launch={launch}", f"--basetemp={base}")
    output, _ = run.communicate(timeout=60)
    assert left_names(tmp_path, base) == [], output
    assert list(base.glob("**/sockets")) == []
    assert "left behind" not in output


END: dict[str, Callable[[subprocess.Popen[str]], None]] = {
    "Ctrl-C": lambda run: run.send_signal(signal.SIGINT),
    "SIGTERM": lambda run: run.send_signal(signal.SIGTERM),
    "the controller is killed": lambda run: run.kill(),
    "the server is killed": lambda run: server_of(run).kill(),
}


@pytest.mark.parametrize("how", END)
def test_a_run_that_is_ended_leaves_no_names(tmp_path: Path, base: Path, how: str) -> None:
    """By a signal to pytest, or to the process that has forked the ranks."""
    source = WORLD.format(timeout=60, marks="", more_names="", body=BODIES["deaf"])
    run = start_pytest(tmp_path, source, f"--basetemp={base}")
    try:
        await_that(lambda: bool(made_names(tmp_path)))
        END[how](run)
        run.communicate(timeout=30)
        await_that(lambda: living(tmp_path) == [])
        assert left_names(tmp_path, base) == []
    finally:
        run.kill()


TORCH = """
    import glob, torch, torch.multiprocessing
    torch.multiprocessing.set_sharing_strategy("file_system")
    kept.append(torch.zeros(10).share_memory_())
    names += glob.glob(f"/dev/shm/torch_{os.getpid()}_*") + glob.glob("torch-shm-dir-*")
    assert len(names) >= 5, names
"""


@needs("torch")
@pytest.mark.parametrize("body", ["passes", "hangs", "deaf"])
def test_shared_memory_of_torch_is_removed(
    tmp_path: Path, base: Path, body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its own process, which ends with the last rank that uses it."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    source = WORLD.format(timeout=10, marks="", more_names=TORCH, body=BODIES[body])
    run = start_pytest(tmp_path, source, f"--basetemp={base}")
    output, _ = run.communicate(timeout=100)
    assert left_names(tmp_path, base) == [], output
    assert list(tmp_path.glob("torch-shm-dir-*")) == []


@pytest.mark.usefixtures("netns_hosts")
def test_ranks_on_hosts_of_their_own_leave_no_names(tmp_path: Path, base: Path) -> None:
    """They share the machine's /dev/shm."""
    source = WORLD.format(timeout=10, marks=', hosts="netns"', more_names="", body=BODIES["deaf"])
    run = start_pytest(tmp_path, source, f"--basetemp={base}")
    output, _ = run.communicate(timeout=100)
    assert left_names(tmp_path, base) == [], output


SYSTEM_V = """
    import ctypes
    kept.append(ctypes.CDLL(None).shmget(0, 4096, 0o1600))
    names.append(str(kept[-1]))
"""


def segments() -> set[str]:
    """Return the ids of all System V shared memory."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines}


def test_system_v_memory_of_killed_ranks_is_removed_and_no_other(
    tmp_path: Path, base: Path
) -> None:
    """The kernel keeps its maker's process id."""
    libc = ctypes.CDLL(None)
    foreign = libc.shmget(0, 4096, 0o1600)
    try:
        source = WORLD.format(timeout=10, marks="", more_names=SYSTEM_V, body=BODIES["deaf"])
        run = start_pytest(tmp_path, source, f"--basetemp={base}")
        run.communicate(timeout=100)
        made = {str(name) for name in made_names(tmp_path) if "/" not in str(name)}
        assert len(made) == 2
        assert segments() & {*made, str(foreign)} == {str(foreign)}
    finally:
        libc.shmctl(foreign, 0, None)
