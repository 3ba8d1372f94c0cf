"""Whether another user may have made a file, or listens at a port, that this user's ranks trust.

A file alone does not show it: a user who may rename one of the folders above it replaces it as
well.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import socket
import stat
import struct
from functools import cache
from pathlib import Path

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.netlink import LISTEN, dump_sockets


def why_untrusted(path: Path) -> str:
    """Return why another user may replace a file or a folder; empty if none may.

    The file and all folders above it must belong to this user or to root, and no other user may
    write them. Folders in which all users may make files, but replace only their own (as /tmp),
    count as folders that no other user may write. So does a group that is the user's alone.

    In a user namespace root's folders belong to the number of all users without one there. So
    folders of the owner of "/" count as root's, but not the file itself, nor the folder it is in.

    Raises:
        OSError: It cannot be looked at.
    """
    real = path.resolve(strict=True)
    for each in (real, *real.parents):
        found = each.lstat()
        owners = {os.geteuid(), 0} if each in (real, real.parent) else _owners()
        if found.st_uid not in owners:
            return f"{each} belongs to the user with the id {found.st_uid}"
        may_write = found.st_mode & stat.S_IWOTH or (
            found.st_mode & stat.S_IWGRP and not _is_own_group(found.st_gid)
        )
        is_shared = each != real and found.st_mode & stat.S_ISVTX
        if may_write and not is_shared:
            return f"other users can write {each}"
    return ""


_STATE, _UID = 3, 7
_REQUEST = struct.Struct("=BBBBI48x")  # struct inet_diag_req_v2: family, protocol, states
_PORT_AT, _UID_AT = 4, 64  # in struct inet_diag_msg


def listeners(port: int) -> frozenset[int]:
    """Return the users whose processes listen at a TCP port of this machine, or of this host.

    The kernel lets any user listen at a port that another one has bound with SO_REUSEADDR.
    """
    try:
        found = _read_sock_diag()
    except OSError:  # gVisor has no sock_diag(7)
        found = _read_proc()
    return frozenset(user for at, user in found if at == port)


def _read_sock_diag() -> set[tuple[int, int]]:
    """Return port and user of each TCP socket that listens.

    Raises:
        OSError: The kernel refuses.
    """
    found = set()
    for family in (socket.AF_INET, socket.AF_INET6):
        request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << LISTEN)
        for each in dump_sockets(request):
            (port,) = struct.unpack_from(">H", each, _PORT_AT)
            found.add((port, *struct.unpack_from("=I", each, _UID_AT)))
    return found


def _read_proc() -> set[tuple[int, int]]:
    """Return the same from /proc/net, which takes 100 times longer: it has every connection."""
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):  # no IPv6
            for line in Path("/proc/self/net", name).read_text("ascii").splitlines()[1:]:
                words = line.split()
                if int(words[_STATE], 16) == LISTEN:
                    found.add((int(words[1].rpartition(":")[2], 16), int(words[_UID])))
    return found


def require_own_listener(port: int) -> bool:
    """Check that no other user listens at a port of this machine that was reserved for this world.

    The listener there tells ranks their peers' addresses, and sends data to unpickle.

    Returns:
        Whether this user listens there: then no other user can begin to.

    Raises:
        LaunchError: Another user does.
    """
    found = listeners(port)
    strangers = found - {os.geteuid(), os.getuid()}
    if strangers:
        raise LaunchError(
            f"another user's process listens at port {port}, which is reserved for this world",
            seen=f"It belongs to the user with the id {min(strangers)}.",
            remedy="Run it again: it gets another port. On a machine with users whom you do not"
            " trust, run it in a container.",
        )
    return bool(found)


def _owners() -> frozenset[int]:
    """Return the users whose files are trusted: this one, and the owner of the file system."""
    # In a user namespace root's files belong to another number.
    return frozenset((os.geteuid(), 0, os.stat("/").st_uid))  # noqa: PTH116 - as for PTH115


@cache
def _is_own_group(gid: int) -> bool:
    """Return whether a group is this user's alone, as many systems make one for each user."""
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return gid == 0  # a user of a container, who has no name there
    is_named_alike = group.gr_name == user.pw_name and user.pw_gid == gid
    return (is_named_alike or gid == 0) and not {*group.gr_mem} - {user.pw_name, "root"}
