"""Why a machine cannot make hosts from namespaces, and what would help."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable
from pathlib import Path

from pytest_multihost.launch.netns.build import Refused
from pytest_multihost.launch.netns.child import ChildFailed
from pytest_multihost.model.errors import LaunchError

Read = Callable[[str], str]
"""Returns the text of a file, empty where there is none."""

_APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
_CLONE = "/proc/sys/kernel/unprivileged_userns_clone"
_ABSENT = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENODEV, errno.EAFNOSUPPORT)
_AS_ROOT = "run pytest as root"


def refusal(reason: Refused | ChildFailed) -> LaunchError:
    """Return the error that says why hosts cannot be made here."""
    happened = "hosts cannot be made from namespaces here"
    if isinstance(reason, ChildFailed):
        return LaunchError(happened, seen=f"The process that builds them failed: {reason.error}.")
    seen = f"The kernel does not let this process {reason.step}: {reason.error}."
    return LaunchError(happened, seen=seen, remedy=remedy(reason.errno, _read))


def remedy(number: int, read: Read) -> str:
    """Return what helps against an error of the kernel.

    Args:
        number: The error's number.
        read: Reads files of /proc and of the root directory.
    """
    if number in _ABSENT:
        return "A kernel with network namespaces, veth and bridge is needed: modprobe veth bridge."
    if number in (errno.ENOSPC, errno.EUSERS):
        return "There is a limit: see /proc/sys/user/max_{user,net,mnt,uts}_namespaces."
    return f"{_against_refusal(read)}, or use hosts='one'."


def _against_refusal(read: Read) -> str:
    """Return what helps where namespaces exist and are not allowed."""
    if re.search(r"^Seccomp:\s*2", read("/proc/self/status"), re.MULTILINE):
        options = "--cap-add SYS_ADMIN --cap-add NET_ADMIN --security-opt apparmor=unconfined"
        return f"In a container: start it with {options} (or --privileged)"
    if read(_APPARMOR).strip() == "1":
        return f"Either {_AS_ROOT}, or: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"
    if read(_CLONE).strip() == "0":
        return f"Either {_AS_ROOT}, or: sysctl -w kernel.unprivileged_userns_clone=1"
    return f"Either {_AS_ROOT}, or allow user namespaces (in a container: --privileged)"


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""
