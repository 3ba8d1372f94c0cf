"""Faults that leave one rank with little memory, or few file descriptors."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from collections.abc import Collection
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.faults.kind import FaultKind, Strike, positive, truth, whole

_MIB = 1 << 20
_GROUP_PREFIX = "multihost-"
_CGROUPS = (
    # cgroups(7), version 1 and 2: the parent, its file for the limit, and for memory with swap.
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max", "memory.swap.max"),
)


def _limit_memory(strike: Strike) -> None:
    headroom = int(strike.fault.params["headroom_mb"] * _MIB)
    if strike.fault.params.get("oom_kill"):
        _enter_cgroup(headroom, strike)
        return
    # RLIMIT_DATA counts the memory that a process allocates. RLIMIT_AS would also count address
    # space that runtimes reserve and never touch; jax dies of it at start-up. Allocating a ballast
    # instead would take the memory from the other ranks as well.
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    status = Path("/proc/self/status").read_text()
    data_bytes = int(status.partition("VmData:")[2].split()[0]) * 1024
    wanted = (data_bytes + headroom, soft, hard)
    limits = [limit for limit in wanted if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), hard))
    strike.healing.callback(resource.setrlimit, resource.RLIMIT_DATA, (soft, hard))


def _enter_cgroup(headroom: int, strike: Strike) -> None:
    """Move this process into a cgroup of its own with a memory limit: the OOM killer ends it."""
    parent, limit_name, swap_name = _writable_cgroup()
    home = _own_group(parent) / "cgroup.procs"
    for stale in parent.glob(f"{_GROUP_PREFIX}*"):  # also of a rank whose controller was killed
        with contextlib.suppress(OSError):  # there is a process in it
            stale.rmdir()
    group = parent / f"{_GROUP_PREFIX}{os.getpid()}"
    group.mkdir(exist_ok=True)
    if group.stat().st_uid != os.geteuid():
        raise OSError(f"{group} belongs to another user")
    resident_pages = int(Path("/proc/self/statm").read_text().split()[1])
    limit = str(resident_pages * resource.getpagesize() + headroom)
    files.put(group / limit_name, limit)
    with contextlib.suppress(OSError):  # without this limit, excess pages are swapped out
        files.put(group / swap_name, limit if "limit" in swap_name else "0")
    files.put(group / "cgroup.procs", str(os.getpid()))
    # Undone in reverse: a cgroup can be removed only when no process is left in it.
    strike.healing.callback(group.rmdir)
    strike.healing.callback(files.put, home, str(os.getpid()))


def _own_group(parent: Path) -> Path:
    """Return this process's group in a tree of groups: the tree itself if it is not to be found.

    In a container the path is often that on the host.
    """
    own = Path("/proc/self/cgroup").read_text(errors="replace")
    entries = [line.split(":", 2) for line in own.splitlines() if line.count(":") > 1]
    controller = parent.name if parent.name == "memory" else ""
    paths = [path for _, names, path in entries if controller in names.split(",")]
    found = parent / paths[0].lstrip("/") if paths else parent
    return found if os.access(found / "cgroup.procs", os.W_OK) else parent


def _writable_cgroup() -> tuple[Path, str, str]:
    for parent, limit, swap in _CGROUPS:
        procs, controllers = parent / "cgroup.procs", parent / "cgroup.subtree_control"
        has_memory = parent.name == "memory" or (
            controllers.exists() and "memory" in controllers.read_text().split()
        )
        if has_memory and os.access(parent, os.W_OK) and os.access(procs, os.W_OK):
            return parent, limit, swap
    raise OSError("no memory cgroup here is writable")


def _lacks_cgroup(fault: Fault) -> str | None:
    try:
        if fault.params.get("oom_kill"):
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
    one_per="point",
)


def descriptor_limit(open_descriptors: Collection[int], headroom: int) -> int:
    """Return the RLIMIT_NOFILE under which `headroom` more descriptors can be opened.

    The kernel hands out the lowest free number, and only numbers below the limit.
    """
    free = (number for number in itertools.count() if number not in open_descriptors)
    return next(itertools.islice(free, headroom, None))


def _limit_descriptors(strike: Strike) -> None:
    # Listing the folder opens a descriptor itself, which is closed again before they are counted.
    # So each is checked again.
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
    one_per="point",
)
