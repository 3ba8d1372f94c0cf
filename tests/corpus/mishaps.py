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

    A socket filter that accepts nothing: needs no rights, and the peers see neither an error nor
    an end. Returns how many connections it is.
    """
    instruction = struct.pack("HBBI", _RETURN_CONSTANT, 0, 0, 0)
    program = ctypes.create_string_buffer(instruction)
    option = struct.pack("HL", 1, ctypes.addressof(program))
    found = 0
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
            if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.getpeername():
                copy.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)
                found += 1
    return found


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
