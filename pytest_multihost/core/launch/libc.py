"""System calls for which Python has no function, through the C library.

These are namespaces(7), mount(2), capset(2) and prctl(2), among others. Python 3.12 has some of
them, but this package also supports 3.11.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from functools import cache, partial
from pathlib import Path

from pytest_multihost.core import files

NEW_MOUNTS = 0x00020000
NEW_UTS = 0x04000000
NEW_USERS = 0x10000000
NEW_NETWORK = 0x40000000

_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
_CAPABILITIES_3 = 0x20080522
_REMOVE_ID = 0
_SET_PARENT_DEATH_SIGNAL, _SET_NAME, _GET_NAME, _SET_CHILD_SUBREAPER = 1, 15, 16, 36
_NO_NEW_PRIVILEGES, _SET_MODE_FILTER, _NEW_LISTENER = 38, 1, 1 << 3
_NAME_BYTES = 16
_COLLAPSE = 25
_DONTNEED = 4
_PIDFD_GETFD = 438
_INSTRUCTION_BYTES = 8

_libc = cache(partial(ctypes.CDLL, None, use_errno=True))  # once: ranks inherit the server's


def _call(name: str, *arguments: object) -> None:
    """Call a function of the C library.

    Raises:
        OSError: It failed; the text names the function.
    """
    if getattr(_libc(), name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def unshare(kinds: int) -> None:
    """Move this process into new namespaces."""
    _call("unshare", kinds)


def join(namespace: int, kind: int) -> None:
    """Move this process into the namespace that a descriptor refers to (setns(2))."""
    _call("setns", namespace, kind)


def unshare_user() -> None:
    """Move this process into a new user namespace, with its user and group mapped to themselves.

    An unprivileged user may do that, and then has every capability over namespaces created in it.
    All other users and groups appear as `nobody`, because an unprivileged user can map only one of
    each, and only after disabling `setgroups` (user_namespaces(7)).
    """
    user, group = os.geteuid(), os.getegid()
    unshare(NEW_USERS)
    files.put(Path("/proc/self/setgroups"), "deny")
    files.put(Path("/proc/self/uid_map"), f"{user} {user} 1")
    files.put(Path("/proc/self/gid_map"), f"{group} {group} 1")


def drop_capabilities() -> None:
    """Drop every capability, because a rank of an ordinary user has none outside a namespace."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _call("capset", header, none)


def make_mounts_private() -> None:
    """Keep future mounts of this process out of other mount namespaces.

    Most systems mount / as shared, and a copy of a shared mount propagates (mount_namespaces(7)).
    """
    _call("mount", None, b"/", None, _RECURSIVE | _PRIVATE, None)


def bind_mount(source: str, target: str) -> None:
    """Make the file `source` appear at the path of the file `target`."""
    _call("mount", os.fsencode(source), os.fsencode(target), None, _BIND, None)


def adopt_orphans() -> None:
    """Make this process the parent of every descendant whose own parent ends."""
    _call("prctl", _SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the kernel kill this process, or send it another signal, when `parent` ends.

    The signal is sent when the thread that forked this process ends; the server has only one
    thread. If the parent ended before this call took effect, no signal comes. Then this process
    exits.
    """
    _call("prctl", _SET_PARENT_DEATH_SIGNAL, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `die_with_parent`, in a process that can end properly when its parent is gone.

    The kernel continues it then, because a rank may have stopped it (SIGSTOP).
    """
    _call("prctl", _SET_PARENT_DEATH_SIGNAL, signal.SIGCONT, 0, 0, 0)


def rename_thread(name: str) -> str:
    """Set the name of this thread in the kernel, of up to 15 characters; return the old one."""
    old = ctypes.create_string_buffer(_NAME_BYTES)
    _call("prctl", _GET_NAME, old, 0, 0, 0)
    _call("prctl", _SET_NAME, os.fsencode(name), 0, 0, 0)
    return os.fsdecode(old.value)


def collapse(start: int, size: int) -> None:
    """Move memory of this process into huge pages (madvise(2), MADV_COLLAPSE)."""
    _call("madvise", ctypes.c_void_p(start), ctypes.c_size_t(size), _COLLAPSE)


def forget_memory(start: int, end: int) -> None:
    """Make whole pages of private memory read as zeros (madvise(2))."""
    _call("madvise", ctypes.c_void_p(start), ctypes.c_size_t(end - start), _DONTNEED)


def descriptor_of(process: int, number: int) -> int:
    """Return a new descriptor for a file that another process has open (pidfd_getfd(2)).

    Args:
        process: A pidfd of the process, such as a child of this one.

    Raises:
        OSError: There is none, or this process may not have it.
    """
    found = int(_libc().syscall(_PIDFD_GETFD, process, number, 0))
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"pidfd_getfd: {os.strerror(error)}")
    return found


def hand_over_calls(seccomp: int, program: bytes) -> int:
    """Have a filter decide about the system calls of this thread, and of processes that it starts.

    Args:
        seccomp: The number of seccomp(2) on this processor.
        program: The filter, as BPF.

    Returns:
        A descriptor that receives the calls which the filter hands over (seccomp_unotify(2)).

    Raises:
        OSError: The kernel cannot do that, or does it for this thread already.
    """
    code = ctypes.create_string_buffer(program, len(program))
    count = len(program) // _INSTRUCTION_BYTES
    header = struct.pack("@HP", count, ctypes.addressof(code))
    _call("prctl", _NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    found = int(_libc().syscall(seccomp, _SET_MODE_FILTER, _NEW_LISTENER, header))
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"seccomp: {os.strerror(error)}")
    return found


def remove_shared_memory(segment: int) -> None:
    """Remove a System V shared memory segment (shmctl(2))."""
    _call("shmctl", segment, _REMOVE_ID, None)
