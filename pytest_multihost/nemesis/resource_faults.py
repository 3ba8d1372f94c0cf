"""Make memory or file descriptors scarce, for this process alone."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from collections.abc import Collection
from pathlib import Path

from pytest_multihost.model.fault import Fault
from pytest_multihost.nemesis.kind import FaultKind, Strike, positive, truth, whole

MIB = 1 << 20

_GROUP_PREFIX = "multihost-"

_CGROUPS = (
    # cgroups(7), version 1 and 2: the parent, its file for the limit, and for memory with swap.
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
)


# Memory


def _limit_memory(strike: Strike) -> None:
    headroom = int(strike.fault.params["headroom_mb"] * MIB)
    if strike.fault.params.get("oom_kill"):
        _enter_cgroup(headroom, strike)
        return
    # RLIMIT_DATA counts what a process allocates. RLIMIT_AS would also count address space that
    # runtimes reserve and never touch; jax dies of it at start-up. Allocating a ballast instead
    # would take the memory from the other ranks as well.
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = _data_bytes() + headroom
    limits = [limit for limit in (wanted, soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    strike.healing.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """Return how much data this process has allocated, as RLIMIT_DATA counts it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmData")


def _enter_cgroup(headroom: int, strike: Strike) -> None:
    """Move this process into a cgroup of its own with a memory limit: the OOM killer ends it."""
    parent, limit_name, swap_name = _writable_cgroup()
    home = parent / "cgroup.procs"
    for stale in parent.glob(f"{_GROUP_PREFIX}*"):  # of a rank whose controller was killed, too
        with contextlib.suppress(OSError):  # there is a process in it
            stale.rmdir()
    group = parent / f"{_GROUP_PREFIX}{os.getpid()}"
    group.mkdir(exist_ok=True)
    limit = str(_resident_bytes() + headroom)
    (group / limit_name).write_text(limit)
    with contextlib.suppress(OSError):  # without this limit, what does not fit is swapped out
        (group / swap_name).write_text(limit if "limit" in swap_name else "0")
    (group / "cgroup.procs").write_text(str(os.getpid()))
    # Undone in reverse: a cgroup can be removed only when no process is left in it.
    strike.healing.callback(group.rmdir)
    strike.healing.callback(home.write_text, str(os.getpid()))


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def _writable_cgroup() -> tuple[Path, str, str]:
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


def _lacks_cgroup(fault: Fault) -> str | None:
    if fault.params.get("oom_kill"):
        try:
            _writable_cgroup()
        except OSError as error:
            return f"memory_pressure(oom_kill=True): {error}"
    return None


def remove_cgroup(pid: int) -> None:
    """Remove the cgroup of a rank that the OOM killer has ended."""
    for parent, _, _ in _CGROUPS:
        with contextlib.suppress(OSError):
            (parent / f"{_GROUP_PREFIX}{pid}").rmdir()


MEMORY_PRESSURE = FaultKind(
    name="memory_pressure",
    perform=_limit_memory,
    params={"headroom_mb": positive, "oom_kill": truth},
    required=frozenset({"headroom_mb"}),
    announce=lambda params, _now_s: {"kills": True} if params.get("oom_kill") else {},
    lasts=True,
    lacking=_lacks_cgroup,
)


# File descriptors


def descriptor_limit(open_descriptors: Collection[int], headroom: int) -> int:
    """Return the RLIMIT_NOFILE under which `headroom` more descriptors can be opened.

    The kernel hands out the lowest free number, and only numbers below the limit.
    """
    free = (number for number in itertools.count() if number not in open_descriptors)
    return next(itertools.islice(free, headroom, None))


def _limit_descriptors(strike: Strike) -> None:
    # Listing the folder takes a descriptor itself, which is closed by the time that they are
    # counted: so each is checked again.
    listed = [int(name) for name in os.listdir("/proc/self/fd")]
    found = [number for number in listed if os.path.exists(f"/proc/self/fd/{number}")]  # noqa: PTH110
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = descriptor_limit(found, strike.fault.params["headroom"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))
    strike.healing.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))


FD_PRESSURE = FaultKind(
    name="fd_pressure",
    perform=_limit_descriptors,
    params={"headroom": whole},
    required=frozenset({"headroom"}),
    lasts=True,
)
