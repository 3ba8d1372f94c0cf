"""`multihost attach` beside processes whose users mean harm."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from foreign import CONTROL, SECRET_LINE, require_printable

HOSTILE = "\x1b[31m\n::error::owned\r\u202e"
WAITS = "import time; print('up', flush=True); time.sleep(600)"
NAMES = """
import os, sys, time
def run(file, user):
    text = "\\n" * 2 + "def wait_here():\\n    print('up', flush=True)\\n    time.sleep(600)\\n"
    space = {"time": time}
    exec(compile(text, file, "exec"), space)
    if user:
        os.setuid(user)
    space["wait_here"]()
run(sys.argv[1], int(sys.argv[2]))
"""


@contextmanager
def process(program: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a running process of Python."""
    running = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
    )
    with running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == b"up\n"
            yield running
        finally:
            running.kill()


def attach(*options: str, cwd: Path) -> str:
    """Return what the command prints."""
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "attach"]
    done = subprocess.run(
        [*command, *options], cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("size", ["2147483647", "9" * 5000, "-1", "x"])
def test_a_hostile_environment_does_not_hide_other_jobs(tmp_path: Path, size: str) -> None:
    """The other job is listed, and no text of a command line repaints the terminal."""
    with (
        process(WAITS, RANK="0", WORLD_SIZE=size),
        process(WAITS, HOSTILE, RANK="1", WORLD_SIZE="37"),
    ):
        shown = attach(cwd=tmp_path)
    assert "37 ranks, a program that sets RANK, of which 1 are here" in shown
    require_printable(shown)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read another user's process")
def test_a_frame_of_another_user_leads_to_no_file_outside_the_roots(tmp_path: Path) -> None:
    """Neither does one of our own, unless it leads to a source file; a named root is read."""
    secret, page = tmp_path / "secret" / "code.py", tmp_path / "report.html"
    secret.parent.mkdir()
    secret.write_text(f"{SECRET_LINE}\n" * 9)
    here = tmp_path / "here"
    here.mkdir()
    options = ("--html", str(page))
    with process(NAMES, str(secret), "65534", RANK="0", WORLD_SIZE="1") as job:
        shown = attach(str(job.pid), *options, cwd=here)
        assert "wait_here" in shown + page.read_text()
        assert SECRET_LINE not in shown + page.read_text()
        root = ("--source-root", str(secret.parent))
        assert SECRET_LINE in attach(str(job.pid), *root, *options, cwd=here) + page.read_text()
    plain = secret.rename(secret.with_suffix(""))
    with process(NAMES, str(plain), "0", RANK="0", WORLD_SIZE="1") as job:
        shown = attach(str(job.pid), *options, cwd=here)
        assert "wait_here" in shown + page.read_text()
        assert SECRET_LINE not in shown + page.read_text()


def test_a_frame_that_names_a_fifo_does_not_hold_up_the_page(tmp_path: Path) -> None:
    """Names of files and functions are printable."""
    fifo, page = tmp_path / f"fifo{HOSTILE.replace('/', '')}.py", tmp_path / "report.html"
    os.mkfifo(fifo)
    with process(NAMES, str(fifo), "0", RANK="0", WORLD_SIZE="1") as job:
        shown = attach(str(job.pid), "--html", str(page), cwd=tmp_path)
    assert "wait_here" in shown + page.read_text()
    require_printable(shown)
    assert not CONTROL.search(page.read_text())
