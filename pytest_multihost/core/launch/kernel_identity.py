"""What two processes compare to know whether they see the same processes and the same clock."""

from __future__ import annotations

import os
from pathlib import Path


def kernel_identity() -> tuple[str, str, str]:
    """Return the identities of this process's kernel, time namespace and pid namespace.

    Processes with the same kernel and clock (time_namespaces(7)) have the same monotonic time;
    those that share the table of processes too see each other in /proc.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    time, pid = (os.readlink(f"/proc/self/ns/{name}") for name in ("time", "pid"))
    return boot, time, pid
