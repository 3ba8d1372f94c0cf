"""Jobs in containers, seen from the host, and of Pythons that do not keep ids of threads."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from runs import await_that

from pytest_multihost.core.watch.kernel import path_below, root_of
from pytest_multihost.core.watch.probes import ids_by_handle, ids_by_own_id, threads_of

ATTACH = (sys.executable, "-m", "pytest_multihost.core.command.main", "attach")
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes a namespace of processes")
PROGRAM = """
import fcntl, os, sys, threading, time
folder, rank = sys.argv[1], int(os.environ["RANK"])
threading.Thread(target=threading.Event().wait, daemon=True).start()
file = open(folder + "/lock", "w")
if rank == 1:
    fcntl.flock(file, fcntl.LOCK_EX)
    open(folder + "/locked", "w").close()
while not os.path.exists(folder + "/locked"):
    time.sleep(0.01)
open(f"{folder}/up-{rank}", "w").close()
if rank == 1:
    time.sleep(100000)  # WHERE
fcntl.flock(file, fcntl.LOCK_EX)
"""
START = "for RANK in 0 1 2; do {python} {program} {folder} & done; wait"
"""What runs in a container: three ranks in one shell."""

PIVOT = """
mount --make-rprivate /
mount --bind {root} {root}
for each in usr bin sbin lib lib64 etc {home}; do
    [ -e /$each -a ! -e {root}/$each ] || continue
    mkdir -p {root}/$each
    mount --rbind /$each {root}/$each
done
mkdir -p {root}/proc {root}/dev {root}/before
mount -t proc proc {root}/proc
mount --rbind /dev {root}/dev
cd {root}
pivot_root . before
cd /
umount -l /before
"""
"""Makes a directory the root of a mount namespace, with this machine's programs in it."""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes of containers, which end with the test."""
    found: list[subprocess.Popen[bytes]] = []
    yield found
    for each in found:
        for child in psutil.Process(each.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()
        each.kill()
        each.communicate()


def contained(shell: str, up: Path, started: list[subprocess.Popen[bytes]], *options: str) -> int:
    """Run a shell in namespaces of its own until all ranks are up; return the outermost process."""
    command = ["unshare", "--pid", "--fork", "--mount-proc", *options, "sh", "-eu", "-c", shell]
    shared = {"WORLD_SIZE": "3", "RANK": "", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    process = subprocess.Popen(command, env={**os.environ, **shared})
    started.append(process)
    await_that(lambda: all((up / f"up-{rank}").exists() for rank in range(3)), 120)
    return process.pid


def verdict_on(launcher: int) -> dict[str, Any]:
    """Return the verdict on the job that a process has started."""
    command = [*ATTACH, "--json", "-", "--children-of", str(launcher)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@ROOT
def test_a_late_rank_in_another_pid_namespace_is_named(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """There its main thread has another id than here."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    shell = START.format(python=sys.executable, program=program, folder=tmp_path)
    found = verdict_on(contained(shell, tmp_path, started))
    assert found["outcome"] == "hung"
    assert found["diagnosis"]["culprits"] == [1]
    assert found["diagnosis"]["where"]["source"] == "time.sleep(100000)  # WHERE"


@ROOT
def test_lines_of_a_container_are_those_of_its_own_files(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """A file with the same name here is another one."""
    root, own = tmp_path / "root", Path("/job-of-a-test")
    inside = root / own.name
    inside.mkdir(parents=True)
    (inside / "train.py").write_text(PROGRAM)
    python = Path(sys.executable).resolve()
    home = python.relative_to("/").parts[0]
    shell = PIVOT.format(root=root, home=home) + START.format(
        python=python, program=own / "train.py", folder=own
    )
    own.mkdir()
    try:
        (own / "train.py").write_text(PROGRAM.replace("WHERE", "ELSEWHERE"))
        found = verdict_on(contained(shell, inside, started, "--mount"))
    finally:
        shutil.rmtree(own)
    assert found["diagnosis"]["culprits"] == [1]
    assert found["diagnosis"]["where"]["source"] == "time.sleep(100000)  # WHERE"


@ROOT
def test_two_containers_with_the_same_address_have_two_jobs(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """An address of one machine is another one in each network namespace."""
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    launchers = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        shell = START.format(python=sys.executable, program=program, folder=folder)
        launchers.append(contained(shell, folder, started, "--net"))
    listed = subprocess.run(ATTACH, capture_output=True, text=True, check=False, timeout=120).stdout
    shells = [psutil.Process(each).children()[0].pid for each in launchers]
    assert all(f"multihost attach --children-of {each}\n" in listed for each in shells), listed


# Ids of threads


def kernel_ids() -> Mapping[int, int]:
    """Return the id of each Python thread of this process by its address (pthread_self(3))."""
    threads = threading.enumerate()
    return {each.ident or 0: each.native_id or 0 for each in threads}


def test_the_descriptor_of_a_thread_has_its_id() -> None:
    """This is how threads of Python 3.10 and older are known."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(3)]
    for each in threads:
        each.start()
    try:
        found = ids_by_handle(os.getpid(), kernel_ids(), ids_by_own_id(os.getpid()))
        assert found == kernel_ids()
    finally:
        end.set()
        for each in threads:
            each.join()


def test_what_is_no_descriptor_has_no_id() -> None:
    """Nor has any other thread then: one that is wrong makes all of them doubtful."""
    buffer = ctypes.create_string_buffer(4096)
    handles = {**kernel_ids(), ctypes.addressof(buffer): 0}
    assert ids_by_handle(os.getpid(), handles, ids_by_own_id(os.getpid())) == {}


def dumped(*threads: tuple[str, int | None]) -> str:
    """Return what py-spy prints of threads with these names and ids, but no known addresses."""
    return json.dumps(
        [
            {
                "pid": os.getpid(),
                "thread_id": number,
                "thread_name": name,
                "os_thread_id": tid,
                "owns_gil": False,
                "frames": [],
            }
            for number, (name, tid) in enumerate(threads, 1)
        ]
    )


def test_the_main_thread_is_known_by_its_name_where_there_is_no_id() -> None:
    """Its id is that of the process."""
    found = threads_of(os.getpid(), dumped(("side", None), ("MainThread", None)))
    assert [(each.tid, each.is_main) for each in found] == [(0, False), (os.getpid(), True)]


def test_without_ids_and_names_no_thread_is_the_main_one() -> None:
    """Nor is one of two with the same name."""
    for names in (("", ""), ("MainThread", "MainThread")):
        found = threads_of(os.getpid(), dumped(*((name, None) for name in names)))
        assert not any(each.is_main for each in found)


def test_an_id_of_another_namespace_is_not_taken_for_one_of_this() -> None:
    """No thread of the process has it, as after a fork that Python has not noted."""
    found = threads_of(os.getpid(), dumped(("side", 1)))
    assert [(each.tid, each.is_main) for each in found] == [(0, False)]


# Files below another root


def test_a_process_with_the_same_root_has_the_same_files() -> None:
    """So its files are read by their names."""
    assert root_of(os.getpid()) == ""


def test_a_link_does_not_lead_out_of_a_root(tmp_path: Path) -> None:
    """Absolute, upwards, or in a circle: it leads where the process itself would come to."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "absolute").symlink_to("/etc/passwd")
    (tmp_path / "etc" / "up").symlink_to("../../../etc/passwd")
    (tmp_path / "etc" / "round").symlink_to("round")
    assert path_below(str(tmp_path), "/etc/absolute") == f"{tmp_path}/etc/passwd"
    assert path_below(str(tmp_path), "/etc/up") == f"{tmp_path}/etc/passwd"
    assert path_below(str(tmp_path), "/etc/../../x") == f"{tmp_path}/x"
    assert path_below(str(tmp_path), "/etc/round") == ""
