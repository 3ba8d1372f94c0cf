"""A program that reads memory may have these readings performed by the process that starts it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_multihost.core.slots import py_spy_command
from pytest_multihost.core.watch.probes import lent_memory, spied_threads
from pytest_multihost.core.watch.probes.lent_memory import LentMemory

pytestmark = pytest.mark.processes

PROGRAM = """
import sys

def hold(number):
    values = list(range(number))
    print("up", flush=True)
    sys.stdin.readline()

hold(30)
"""

READS_ITSELF = """
import ctypes, os

class Piece(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]

mine, to = ctypes.create_string_buffer(b"mine"), ctypes.create_string_buffer(4)
one, two = Piece(ctypes.addressof(to), 4), Piece(ctypes.addressof(mine), 4)
read = ctypes.CDLL(None, use_errno=True).process_vm_readv
count = read(os.getpid(), ctypes.byref(one), 1, ctypes.byref(two), 1, 0)
print(count, ctypes.get_errno())
"""


@pytest.fixture
def held() -> Iterator[int]:
    """A process that rests in a function."""
    if not py_spy_command():
        pytest.skip("py-spy is not installed")
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_reading_by_an_ancestor_shows_what_py_spy_reads_itself(
    held: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Where only ancestors may read a process, its stacks and variables are the same."""
    scope = tmp_path / "ptrace_scope"
    by_itself, _ = spied_threads({0: held})
    scope.write_text("1\n")
    monkeypatch.setattr(lent_memory, "_SCOPE", scope)
    lent, why = spied_threads({0: held})
    assert why == {}
    assert lent == by_itself
    assert lent[0][0].values[0]["number"] == "30"


def test_all_of_the_memory_is_read_by_this_process(held: int) -> None:
    """Each reading of py-spy's reaches the lender, and it ends as always."""
    lender = LentMemory(held)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        lender.run((*py_spy_command(), str(held)), out, errors, 60.0)
        out.seek(0)
        assert b'"hold"' in out.read()
    assert lender.readings > 10


def test_no_other_process_is_read_for_the_program(held: int) -> None:
    """A program that asks for a process which it was not started for gets nothing."""
    lender = LentMemory(held)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        lender.run((sys.executable, "-c", READS_ITSELF), out, errors, 60.0)
        out.seek(0)
        assert out.read() == b"-1 1\n"
    assert lender.readings == 0


def test_a_program_that_takes_too_long_is_ended(held: int) -> None:
    """As without a lender."""
    lender = LentMemory(held)
    with tempfile.TemporaryFile() as out, pytest.raises(subprocess.TimeoutExpired):
        lender.run((sys.executable, "-c", "import time; time.sleep(600)"), out, out, 0.5)


def test_a_program_that_does_not_exist_is_an_error(held: int) -> None:
    """As without a lender."""
    with tempfile.TemporaryFile() as out, pytest.raises(FileNotFoundError):
        LentMemory(held).run(("/nonexistent/program",), out, out, 60.0)
