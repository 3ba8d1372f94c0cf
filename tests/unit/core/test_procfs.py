"""What the kernel says of processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_multihost.core import procfs

PROGRAM = """
import subprocess, sys, threading
start = lambda: print(subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL).pid, flush=True)
start()
thread = threading.Thread(target=lambda: (start(), sys.stdin.read()))
thread.start()
sys.stdin.read()
"""
"""Starts a child in each of two threads, tells their ids, and stays."""


@pytest.mark.parametrize("has_lists", [True, False])
def test_children_of_all_threads_are_found(
    monkeypatch: pytest.MonkeyPatch, *, has_lists: bool
) -> None:
    """Also on a kernel that does not list them."""
    if not has_lists:
        monkeypatch.setattr(procfs, "_started_by", lambda *_: Path("/nowhere").stat())
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    told = {int(process.stdout.readline()) for _ in range(2)}
    assert {*procfs.children_of(process.pid)} == told
    assert {*procfs.descendants_of(os.getpid())} >= {process.pid, *told}
    for each in told:
        os.kill(each, 9)
    process.communicate()


def test_a_process_that_is_gone_has_no_children() -> None:
    """It may end while somebody asks."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert procfs.children_of(process.pid) == []
    with pytest.raises(OSError, match=r"No such file|No such process"):
        procfs.stat_words(process.pid)


def test_the_name_of_a_program_may_have_any_characters(tmp_path: Path) -> None:
    """Blanks and parentheses are not taken for the end of the name."""
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "100"]) as process:
        while b"a)" not in Path(f"/proc/{process.pid}/stat").read_bytes():
            pass  # it is still this program
        assert procfs.stat_words(process.pid)[1] == str(os.getpid())
        process.kill()
