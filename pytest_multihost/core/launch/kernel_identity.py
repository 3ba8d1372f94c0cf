"""An identity by which two processes can tell whether they share a process table and a clock."""

from __future__ import annotations

import os
from pathlib import Path


def kernel_identity() -> tuple[str, str, str]:
    """Return the identities of this process's kernel, time namespace and pid namespace.

    Processes with the same kernel and time namespace (time_namespaces(7)) have the same monotonic
    time. If the pid namespace is also the same, they see each other in /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    time, pid = (os.readlink(f"/proc/self/ns/{name}") for name in ("time", "pid"))
    return boot, time, pid
