"""Runs a program that reads a process's memory, and performs these readings for the program.

Where ``kernel.yama.ptrace_scope`` is 1, as on Ubuntu, only an ancestor may read a process. This
process is an ancestor of the ranks that it watches, but py-spy, its child, is not. So the kernel
hands each process_vm_readv(2) of the program to a thread of this process (seccomp_unotify(2)). The
thread reads the wanted bytes, writes it into the program's memory, and answers. It reads no other
process than the target of the program.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import platform
import select
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import IO

from pytest_multihost.core.launch.libc import hand_over_calls
from pytest_multihost.core.model.foreign_bytes import MAX_READ, read_at

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_ANCESTORS = "1"

_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_NOTE, _NOTE_ARGUMENTS, _ANSWER = struct.Struct("=QII16s6Q"), 4, struct.Struct("=QqiI")
_PIECE = struct.Struct("=QQ")
_MAX_PIECES = 1024

_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _HAND_OVER = 0x7FFF0000, 0x7FC00000
_CALL_AT, _PROCESSOR_AT = 0, 4


@dataclass(frozen=True, slots=True)
class _Processor:
    """Numbers of the kernel on one kind of processor.

    Attributes:
        audit: Its name in a filter.
        seccomp: seccomp(2).
        read: process_vm_readv(2).
    """

    audit: int
    seccomp: int
    read: int


_PROCESSORS = {
    "x86_64": _Processor(0xC000003E, 317, 310),
    "aarch64": _Processor(0xC00000B7, 277, 270),
}


def needs_lender(pid: int) -> bool:
    """Return whether this process may read another one, and its child may not."""
    try:
        if _SCOPE.read_text("utf-8").strip() != _ANCESTORS:
            return False
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except OSError:
        return False
    return platform.machine() in _PROCESSORS


@dataclass(slots=True)
class LentMemory:
    """Runs one program that reads a process, and reads it for the program.

    Attributes:
        pid: The process that may be read.
        readings: How often it was read.
        error: Why the program could not be run, if so.
    """

    pid: int
    readings: int = 0
    error: OSError | None = None
    _files: dict[int, int] = field(default_factory=dict)

    def run(
        self, command: Sequence[str], out: IO[bytes], errors: IO[bytes], timeout_s: float
    ) -> None:
        """Run the program until it ends.

        Raises:
            OSError: It cannot be run, or the kernel hands over no calls.
            subprocess.TimeoutExpired: It takes too long, and was ended.
        """
        end_s = time.monotonic() + timeout_s
        # The filter stays with the thread that sets it.
        thread = Thread(target=self._run, args=(command, out, errors, end_s))
        thread.start()
        thread.join()
        if self.error is not None:
            raise self.error
        if time.monotonic() >= end_s:
            raise subprocess.TimeoutExpired(list(command), timeout_s)

    def _run(self, command: Sequence[str], out: IO[bytes], errors: IO[bytes], end_s: float) -> None:
        kind = _PROCESSORS[platform.machine()]
        try:
            calls = hand_over_calls(kind.seccomp, _filter(kind))
        except OSError as error:
            self.error = error
            return
        try:
            program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors)
            try:
                self._serve(program.pid, calls, end_s)
            finally:
                program.kill()
                program.wait()
        except OSError as error:
            self.error = error
        finally:
            os.close(calls)
            for each in self._files.values():
                os.close(each)

    def _serve(self, program: int, calls: int, end_s: float) -> None:
        """Answer the calls of a program until it ends."""
        ended = os.pidfd_open(program)
        try:
            waiter = select.poll()
            waiter.register(calls, select.POLLIN)
            waiter.register(ended, select.POLLIN)
            while (left_s := end_s - time.monotonic()) > 0:
                found = dict(waiter.poll(left_s * 1e3))
                if found.get(calls, 0) & select.POLLIN:
                    with contextlib.suppress(FileNotFoundError):  # the program has been killed
                        self._answer(calls)
                elif found:
                    return
        finally:
            os.close(ended)

    def _answer(self, calls: int) -> None:
        """Perform one call."""
        note = bytearray(_NOTE.size)
        fcntl.ioctl(calls, _RECEIVE, note)
        which, thread, _, _, *arguments = _NOTE.unpack(note)
        try:
            count, error = self._read(thread, *arguments), 0
        except OSError as failure:
            count, error = 0, -(failure.errno or errno.EFAULT)
        fcntl.ioctl(calls, _SEND, _ANSWER.pack(which, count, error, 0))

    def _read(
        self, thread: int, pid: int, to: int, to_count: int, at: int, at_count: int, flags: int
    ) -> int:
        """Perform process_vm_readv(2) for a thread of the program; return the number of bytes.

        Raises:
            OSError: It fails.
        """
        if pid != self.pid:
            raise PermissionError(errno.EPERM, "another process")
        if flags or max(to_count, at_count) > _MAX_PIECES:
            raise OSError(errno.EINVAL, "flags or pieces")
        own = self._file(thread, os.O_RDWR)
        theirs = self._file(self.pid, os.O_RDONLY)
        self.readings += 1
        found = b"".join(_pieces(theirs, [*_listed(own, at, at_count)]))
        written = 0
        for address, size in _listed(own, to, to_count):
            written += os.pwrite(own, found[written : written + size], address)
        return written

    def _file(self, pid: int, mode: int) -> int:
        """Return a descriptor of a process's memory."""
        if pid not in self._files:
            self._files[pid] = os.open(f"/proc/{pid}/mem", mode | os.O_CLOEXEC)
        return self._files[pid]


def _listed(memory: int, at: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield the addresses and sizes that a program's memory lists (iovec(3type))."""
    return _PIECE.iter_unpack(read_at(memory, count * _PIECE.size, at))


def _pieces(memory: int, asked: Sequence[tuple[int, int]]) -> Iterator[bytes]:
    """Yield the bytes at some addresses, up to the first that cannot be read.

    Raises:
        OSError: None can be read.
    """
    for number, (address, size) in enumerate(asked):
        found = read_at(memory, min(size, MAX_READ), address)
        if not found and size and not number:
            raise OSError(errno.EFAULT, "no such memory")
        yield found
        if len(found) < size:
            return


def _filter(kind: _Processor) -> bytes:
    """Return a filter that hands over the readings of memory, and permits all else."""
    steps = (
        (_LOAD | 0x00, 0, 0, _PROCESSOR_AT),
        (_EQUAL, 0, 3, kind.audit),
        (_LOAD | 0x00, 0, 0, _CALL_AT),
        (_EQUAL, 0, 1, kind.read),
        (_RETURN, 0, 0, _HAND_OVER),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("=HBBI", *each) for each in steps)
