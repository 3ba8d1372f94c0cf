"""What is asked of the kernel to make hosts from namespaces: namespaces(7), mount(2), capset(2).

Python 3.12 has some of it; with 3.11 as the floor, all of it goes through the C library.
"""

from __future__ import annotations

import ctypes
import os
import socket

NEW_MOUNTS = 0x00020000
NEW_NAMES = 0x04000000
NEW_USERS = 0x10000000
NEW_NETWORK = 0x40000000

_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_CAPABILITIES_3 = 0x20080522


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library.

    Raises:
        OSError: It failed; the error says which one it was.
    """
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(kinds: int) -> None:
    """Move this process into new namespaces."""
    _call("unshare", kinds)


def join(namespace: int, kind: int) -> None:
    """Move this process into the namespace that a descriptor names."""
    _call("setns", namespace, kind)


def keep_mounts_to_oneself() -> None:
    """Let nothing that is mounted from now on show in other mount namespaces."""
    _call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)


def bind(source: str, target: str) -> None:
    """Show the file `source` at the place of the file `target`."""
    _call("mount", os.fsencode(source), os.fsencode(target), None, _BIND, None)


def name_host(name: str) -> None:
    """Name the host that this process is on."""
    socket.sethostname(name)


def become_same_user() -> None:
    """Move this process into a new user namespace, in which it is who it was.

    It has every capability there. All other users and groups are "nobody" to it: without
    privileges only one of each can be mapped, and only without `setgroups` (user_namespaces(7)).
    """
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USERS)
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def drop_capabilities() -> None:
    """Give up every capability, as an ordinary user has none."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _call("capset", header, none)
