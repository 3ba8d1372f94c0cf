"""Which words on a stack are return addresses: those behind a call, in each of its forms."""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import threading
from pathlib import Path

import pytest

from pytest_multihost.core.proof import is_interpreter
from pytest_multihost.core.watch.kernel.memory import Memory
from pytest_multihost.core.watch.kernel.return_addresses import BYTES, ReturnAddresses, is_call


@pytest.mark.parametrize(
    "code",
    [
        "e8 10 00 00 00",  # call near
        "66 48 e8 10 00 00 00",  # call __tls_get_addr
        "ff d0",  # call *%rax
        "41 ff d4",  # call *%r12
        "ff 10",  # call *(%rax)
        "ff 50 08",  # call *8(%rax)
        "ff 54 24 08",  # call *8(%rsp)
        "ff 90 10 01 00 00",  # call *0x110(%rax)
        "ff 15 10 00 00 00",  # call *0x10(%rip)
        "ff 94 24 10 01 00 00",  # call *0x110(%rsp)
    ],
)
def test_a_call_of_intel_is_one(code: str) -> None:
    """As an assembler writes it."""
    assert is_call(bytes.fromhex(code).rjust(BYTES, b"\x90"), "x86_64")


@pytest.mark.parametrize(
    "code",
    [
        "e9 10 00 00 00",  # jmp near: what follows is not returned to
        "ff e0",  # jmp *%rax
        "ff 25 10 00 00 00",  # jmp *0x10(%rip), as in a table of procedures
        "ff 75 08",  # push 8(%rbp)
        "c3 66 0f 1f 44 00 00",  # ret, and what fills up to the next function
        "0f 05",  # syscall
    ],
)
def test_another_instruction_of_intel_is_none(code: str) -> None:
    """Neither what goes elsewhere for good, nor what lies before a function."""
    assert not is_call(bytes.fromhex(code).rjust(BYTES, b"\x90"), "x86_64")


@pytest.mark.parametrize("word", [0x94000010, 0xD63F0100, 0xD63F081F, 0xD73F0909])
def test_a_call_of_arm_is_one(word: int) -> None:
    """BL, BLR, BLRAAZ and BLRAA."""
    assert is_call(struct.pack("<II", 0xD503201F, word), "aarch64")


@pytest.mark.parametrize("word", [0x14000010, 0xD61F0200, 0xD65F03C0, 0xD503201F])
def test_another_instruction_of_arm_is_none(word: int) -> None:
    """B, BR, RET and NOP; a call further up does not matter."""
    assert not is_call(struct.pack("<II", 0x94000010, word), "aarch64")


def test_on_another_machine_everything_may_be_a_call() -> None:
    """Then no word that is returned to is missed."""
    assert is_call(bytes(BYTES), "riscv64")


FUNCTIONS = (
    *("qsort", "malloc", "free", "calloc", "realloc", "fopen", "fclose", "fread", "fwrite"),
    *("pthread_create", "pthread_join", "pthread_mutex_lock", "strlen", "memcpy", "memset"),
    *("printf", "puts", "read", "write", "open", "close", "poll", "select", "fork", "waitpid"),
    *("sleep", "time", "mktime", "rand", "srand", "abs", "labs", "atoi", "strtol", "getenv"),
)


def test_pointers_to_functions_are_not_returned_to() -> None:
    """They lie on every stack, and in what an ended thread has left of its own."""
    if os.uname().machine not in {"x86_64", "aarch64"}:
        pytest.skip("the machine's calls are not known")
    libc = ctypes.CDLL("libc.so.6")
    pointers = [ctypes.cast(libc[name], ctypes.c_void_p) for name in FUNCTIONS]
    words = [pointer.value or 0 for pointer in pointers]
    found = returns_on(struct.pack(f"={len(words)}Q", *words), pages=1)
    assert found is not None
    # The code before a function may end with a call: of one that never returns.
    assert len(found) <= len(FUNCTIONS) // 10


def returns_on(stack: bytes, *, pages: int) -> tuple[tuple[str, int], ...] | None:
    """Return the return addresses on a stack at the begin of a mapping, of which a page is there.

    Pages beyond the end of a mapped file cannot be read, like the guard pages of a stack.
    """
    with os.fdopen(os.memfd_create("stack"), "r+b") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), mmap.PAGESIZE) as page:
            page[: len(stack)] = stack
        map_ = ctypes.CDLL(None, use_errno=True).mmap
        map_.restype, map_.argtypes = ctypes.c_void_p, [*[ctypes.c_size_t] * 2, *[ctypes.c_int] * 4]
        size = pages * mmap.PAGESIZE
        address = map_(0, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
        memory = Memory(os.getpid())
        found = ReturnAddresses(memory).of_stack(address)
        memory.close()
        unmap = ctypes.CDLL(None).munmap
        unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        unmap(address, size)
    return found


def test_a_stack_ends_at_a_page_that_cannot_be_read() -> None:
    """A thread's guard pages need not be a mapping of their own: stacks can be one mapping."""
    assert returns_on(b"", pages=1000) == ()


def test_the_interpreter_is_found_on_the_stack_of_a_thread_that_runs_python() -> None:
    """All that it returns to is behind a call: none of it is missed."""
    done, tids = threading.Event(), list[int]()
    thread = threading.Thread(target=lambda: (tids.append(threading.get_native_id()), done.wait()))
    thread.start()
    try:
        file = Path("/proc/self/task")
        while not tids or len(words := (file / f"{tids[0]}/syscall").read_text().split()) < 9:
            pass  # it has not come to its wait
        memory = Memory(os.getpid())
        found = ReturnAddresses(memory).of_stack(int(words[-2], 16)) or ()
        memory.close()
    finally:
        done.set()
        thread.join()
    assert sum(is_interpreter(path) for path, _ in found) >= 5
