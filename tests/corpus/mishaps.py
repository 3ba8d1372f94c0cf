"""What befalls a rank in the corpus, where it takes more than a line."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SO_ATTACH_FILTER = 26
_RETURN_CONSTANT = 0x06
_TCP_MD5SIG = 14
_STORAGE = 128  # bytes that an address is given in struct tcp_md5sig of tcp(7)
_TCP_LISTEN = "0A"

FOREVER_S = 600
"""Beyond the deadline of every program here."""


def signalled_by_a_child(name: str, after_s: float = 0.0) -> subprocess.Popen[bytes]:
    """Let a child process send this one a signal: somebody else does it."""
    return subprocess.Popen(["sh", "-c", f"sleep {after_s}; kill -{name} {os.getpid()}"])


def idle_threads(count: int) -> None:
    """Start threads that wait for nothing, as a large pool does."""
    for _ in range(count):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def libc() -> ctypes.CDLL:
    """Return the C library."""
    return ctypes.CDLL(None, use_errno=True)


def report_much(results: Any) -> None:  # noqa: ANN401 - a queue of a context
    """Put more than a pipe holds."""
    results.put(b"x" * 1_000_000)


def python_child(program: str) -> subprocess.Popen[str]:
    """Start a fresh interpreter on a program; its standard output is a pipe."""
    command = [sys.executable, "-c", program]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def cut_off() -> int:
    """Drop all that arrives on this process's TCP connections, as a dead link does.

    The peers see neither an error nor an end. Returns how many connections it is.
    """
    found = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getpeername():
                drop_all(copy)
                found += 1
    return found


def drop_all(connection: socket.socket) -> None:
    """Drop what arrives: by a filter that accepts nothing, or for want of a signature.

    From Linux 6.18 on a filter takes CAP_NET_ADMIN, which a container has not. To ask for segments
    that are signed with a key that the peer does not know takes nothing, and drops as silently.
    """
    instruction = struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, 0)
    program = ctypes.create_string_buffer(instruction)
    option = struct.pack("HL", 1, ctypes.addressof(program))
    try:
        connection.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
    except PermissionError:
        connection.setsockopt(socket.IPPROTO_TCP, _TCP_MD5SIG, _key_for_peer(connection))


def _key_for_peer(connection: socket.socket) -> bytes:
    """Return a struct tcp_md5sig with the peer's address and a key of one byte."""
    family, (address, port, *_) = connection.family, connection.getpeername()
    where = struct.pack("=H", family) + struct.pack("!H", port)
    where += bytes(4) if family == socket.AF_INET6 else b""  # the flow
    where += socket.inet_pton(family, address)
    return where.ljust(_STORAGE, b"\0") + struct.pack("=BBHi80s", 0, 0, 1, 0, b"k")


def listening_ports() -> set[int]:
    """Return the TCP ports that this process listens on."""
    links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    inodes = {os.readlink(link) for link in links if link.is_symlink()}
    lines = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    lines += Path("/proc/self/net/tcp6").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {
        int(each[1].rpartition(":")[2], 16)
        for each in fields
        if each[3] == _TCP_LISTEN and f"socket:[{each[9]}]" in inodes
    }


def starve_descriptors() -> None:
    """Leave this process without a free file descriptor."""
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    with contextlib.suppress(OSError):
        while True:
            os.open(os.devnull, os.O_RDONLY)


def may_mount_fuse() -> bool:
    """Whether this process may mount a file system that another one serves."""
    return os.access("/dev/fuse", os.R_OK | os.W_OK) and os.geteuid() == 0


@contextlib.contextmanager
def slow_file(place: Path, answers_s: float) -> Iterator[Path]:
    """A file system of one file, whose server takes its time for each read."""
    libc = ctypes.CDLL(None, use_errno=True)
    place.touch()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=100644,user_id=0,group_id=0".encode()
    if libc.mount(b"slow", os.fsencode(place), b"fuse", 0, options):
        os.close(device)
        message = "mount"
        raise OSError(ctypes.get_errno(), message)
    program = f"import mishaps; mishaps.serve_file({device}, {answers_s})"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, pass_fds=[device], env=environment):
        os.close(device)
        try:
            yield place
        finally:
            libc.umount2(os.fsencode(place), 2)


def serve_file(device: int, answers_s: float) -> None:
    """Be the server of a file system that is one file of nine bytes (linux/fuse.h)."""
    attributes = struct.pack("=QQQQQQIIIIIIIIII", 1, 9, 1, *[0] * 6, 0o100644, 1, *[0] * 5)
    bodies = {
        26: struct.pack("=IIIIHHIII", 7, 31, 4096, 0, 1, 1, 4096, 1, 0) + bytes(28),  # INIT
        3: struct.pack("=QII", 0, 0, 0) + attributes,  # GETATTR
        14: struct.pack("=QII", 0, 1, 0),  # OPEN, for direct I/O
        15: b"x",  # READ
    }
    with contextlib.suppress(OSError):  # it was unmounted
        while True:
            _, opcode, unique = struct.unpack_from("=IIQ", os.read(device, 1 << 17))
            time.sleep(answers_s if opcode == 15 else 0)
            body = bodies.get(opcode, b"")
            with contextlib.suppress(OSError):  # nobody waits for this answer
                os.write(device, struct.pack("=IiQ", 16 + len(body), 0, unique) + body)


class Uring:
    """An io_uring that does nothing but time out, at most 32 times (io_uring(7))."""

    _ENTRIES = 16
    _SETUP, _ENTER, _REGISTER = 425, 426, 427
    _EVENTFD, _TIMEOUT = 4, 11

    def __init__(self, counter: int) -> None:
        """Make one that raises an eventfd whenever something has been done.

        Raises:
            OSError: The kernel refuses.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        parameters = ctypes.create_string_buffer(120)
        self._fd = self._call(self._SETUP, self._ENTRIES, parameters)
        self._tail_at, self._array_at = (
            struct.unpack_from("=I", parameters, 40 + at)[0] for at in (4, 24)
        )
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        self._ring = mmap.mmap(self._fd, self._array_at + 4 * self._ENTRIES, flags)
        self._entries = mmap.mmap(self._fd, 64 * self._ENTRIES, flags, offset=0x10000000)
        self._call(self._REGISTER, self._fd, self._EVENTFD, ctypes.byref(ctypes.c_int(counter)), 1)

    def submit_timeout(self, seconds: float) -> None:
        """Have the kernel do something in so many seconds."""
        limit = struct.pack("=qq", int(seconds), round(seconds % 1 * 1e9))
        self._limit = ctypes.create_string_buffer(limit)
        where = ctypes.addressof(self._limit)
        entry = struct.pack("=BBHiQQII", self._TIMEOUT, 0, 0, -1, 0, where, 1, 0)
        self._entries[: len(entry)] = entry
        (tail,) = struct.unpack_from("=I", self._ring, self._tail_at)
        struct.pack_into("=I", self._ring, self._array_at + 4 * (tail % self._ENTRIES), 0)
        struct.pack_into("=I", self._ring, self._tail_at, tail + 1)
        self._call(self._ENTER, self._fd, 1, 0, 0, None, 0)

    def _call(self, number: int, *arguments: object) -> int:
        found = int(self._libc.syscall(number, *arguments))
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return found
