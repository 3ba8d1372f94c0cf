"""What befalls a rank in the corpus, where it takes more than a line."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import struct
import subprocess
import sys
from pathlib import Path

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
                _drop_all(copy)
                found += 1
    return found


def _drop_all(connection: socket.socket) -> None:
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
