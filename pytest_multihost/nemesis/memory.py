"""Make memory scarce for this process alone.

RLIMIT_DATA counts what a process allocates; RLIMIT_AS would also count what runtimes map and never
touch - jax dies of it at start-up - so it is never set. A ballast would take the memory from the
other ranks as well.
"""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path

from pytest_multihost.model.fault import Fault
from pytest_multihost.nemesis.kind import FaultKind, Strike, positive, truth

MIB = 1 << 20

_GROUP = "multihost-"

_CGROUPS = (
    # Version 1 and 2: where groups are made, what limits one, what may already be there.
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
)


def data_bytes() -> int:
    """Return how much data this process has allocated, as the kernel counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("the kernel tells no VmData in /proc/self/status")


def _press(strike: Strike) -> None:
    headroom = int(strike.fault.params["headroom_mb"] * MIB)
    if strike.fault.params.get("oom_kill"):
        _enter_group(headroom, strike)
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = data_bytes() + headroom
    limits = [limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    strike.healing.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))


def _enter_group(headroom: int, strike: Strike) -> None:
    """Put this process into a cgroup of its own whose memory is limited."""
    parent, limit_name, swap_name = _writable()
    home = parent / "cgroup.procs"
    for stale in parent.glob(f"{_GROUP}*"):  # of a rank whose controller was killed too
        with contextlib.suppress(OSError):  # somebody is in it
            stale.rmdir()
    group = parent / f"{_GROUP}{os.getpid()}"
    group.mkdir(exist_ok=True)
    limit = str(_resident_bytes() + headroom)
    (group / limit_name).write_text(limit)
    with contextlib.suppress(OSError):  # without it, what does not fit is swapped out
        (group / swap_name).write_text(limit if "limit" in swap_name else "0")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    strike.healing.callback(group.rmdir)
    strike.healing.callback(home.write_text, str(os.getpid()))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _writable() -> tuple[Path, str, str]:
    for parent, limit, swap in _CGROUPS:
        procs = parent / "cgroup.procs"
        has_memory = parent.name == "memory" or _controls_memory(parent)
        if has_memory and os.access(parent, os.W_OK) and os.access(procs, os.W_OK):
            return parent, limit, swap
    raise OSError("no memory cgroup here is writable")


def _controls_memory(parent: Path) -> bool:
    with contextlib.suppress(OSError):
        return "memory" in (parent / "cgroup.subtree_control").read_text().split()
    return False


def _lacking(fault: Fault) -> str | None:
    if fault.params.get("oom_kill"):
        try:
            _writable()
        except OSError as error:
            return f"memory_pressure(oom_kill=True): {error}"
    return None


def remove_group(pid: int) -> None:
    """Remove the group of a rank that the kernel has killed."""
    for parent, _, _ in _CGROUPS:
        with contextlib.suppress(OSError):
            (parent / f"{_GROUP}{pid}").rmdir()


MEMORY_PRESSURE = FaultKind(
    name="memory_pressure",
    perform=_press,
    params={"headroom_mb": positive, "oom_kill": truth},
    required=frozenset({"headroom_mb"}),
    announce=lambda params, _: {"kills": True} if params.get("oom_kill") else {},
    lasts=True,
    lacking=_lacking,
)
