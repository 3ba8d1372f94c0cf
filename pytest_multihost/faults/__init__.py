"""Faults make a rank late, starved, frozen, dead or cut off, at a point in the code.

Each function returns a value for ``@pytest.mark.multihost(faults=[...])``; calling it does nothing
else. All take:

* ``rank``: an index, a list of indices, ``"primary"`` (rank 0), ``"others"``, ``"all"``, ``"one"``
  (selected by the world's seed), or ``"first"`` (the rank that passes the point first in this run).
* ``at``: the point at which the fault begins, see `pytest_multihost.at`.
* ``must_fire``: whether the test fails if the fault did not happen. A test of skew proves nothing
  if the skew did not happen.

Every fault ends with the test's body at the latest, so fixtures are torn down undisturbed.

`kind` is the interface to kinds of faults, for plugins that offer their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytest_multihost.core.model.fault import START, Fault, Point

__all__ = [
    "clock_skew",
    "cpu_throttle",
    "delay",
    "dns_failure",
    "elapsed_time",
    "empty_data",
    "fails",
    "fd_pressure",
    "freeze",
    "hash_seed",
    "hold",
    "kill",
    "memory_pressure",
    "net_delay",
    "net_loss",
    "net_rate",
    "other",
    "partition",
    "raise_at",
    "reset",
    "returns",
    "short_data",
    "shuffled_listing",
    "slow_io",
    "stale_files",
    "start_skew",
    "stream_order",
]

Ranks = int | Sequence[int] | str


def delay(*, rank: Ranks, seconds: float, at: Point = START, must_fire: bool = True) -> Fault:
    """Make the thread that passes the point sleep there for `seconds`.

    For a coroutine the whole thread sleeps, as on a slow host.
    """
    return _fault("delay", rank, at, must_fire, seconds=seconds)


def hold(
    *,
    rank: Ranks,
    at: Point = START,
    until: str = "others-wait",
    what: str = "thread",
    min_s: float = 0.0,
    max_s: float | None = None,
    must_fire: bool = True,
) -> Fault:
    """Hold the thread that passes the point there until every other rank waits or has left.

    The rank is then as late as possible, and no user has to guess a delay: the kernel's scheduler
    shows when nothing else in the world can move. If several ranks are held at a time, the other
    ranks are the ranks that are not held.

    * ``until``: ``"others-wait"``, the only value. A rank that polls counts as waiting once it has
      done nothing else for 0.3 s.
    * ``what``: ``"thread"``, or ``"child"``: the rank goes on, and the process that the call at the
      point starts is stopped at once until then.
    * ``min_s``: the minimum time, for other ranks with timeouts of seconds.
    * ``max_s``: the maximum time; by default 10 s, and never more than half of the test's remaining
      time.
    """
    limits = {"min_s": min_s or None, "max_s": max_s}
    held = what if what != "thread" else None
    return _fault("hold", rank, at, must_fire, until=until, what=held, **limits)


def stream_order(*, rank: Ranks = "all", must_fire: bool = True) -> Fault:
    """Run the operations of the rank one at a time, in the order of their launch, like NCCL.

    gloo runs every operation that is ready. With this fault, a collective begins when all earlier
    operations of the rank have ended, in whatever group. A send or receive begins when all earlier
    ones with the same peer have ended, except those in the same batch. The launch itself waits, not
    a thread behind it. Groups that ask for gloo by name, and operations that C++ launches, are not
    affected. With jax, the first start of a program on devices of several processes waits for its
    results, because on GPUs the processes connect there.
    """
    return _fault("stream_order", rank, START, must_fire)


def start_skew(*, rank: Ranks, seconds: float, must_fire: bool = True) -> Fault:
    """Delay a rank by `seconds` before the rendezvous, before its backend is up."""
    return _fault("start_skew", rank, START, must_fire, seconds=seconds)


def freeze(
    *, rank: Ranks, seconds: float | None = None, at: Point = START, must_fire: bool = True
) -> Fault:
    """Stop the rank and its children for `seconds`, as on a host that swaps or migrates.

    If `seconds` is None, they stay stopped until the world ends.
    """
    return _fault("freeze", rank, at, must_fire, seconds=seconds)


def kill(
    *, rank: Ranks, at: Point = START, signal: str | None = None, must_fire: bool = True
) -> Fault:
    """End the rank's process at the point.

    The rank counts as killed as planned, not as failed, because the test is about the others.
    `signal` is the name of the signal, by default SIGKILL.
    """
    return _fault("kill", rank, at, must_fire, signal=signal)


def raise_at(
    *,
    rank: Ranks,
    error: type[BaseException] | str | None = None,
    message: str | None = None,
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Raise an exception at the point, by default RuntimeError.

    `error` is its class, or the name of a built-in one, or ``module:Class``. Its only argument is
    the message.
    """
    if isinstance(error, type):
        module = "" if error.__module__ == "builtins" else f"{error.__module__}:"
        error = f"{module}{error.__qualname__}"
    return _fault("raise_at", rank, at, must_fire, error=error, message=message)


def fails(*, rank: Ranks, at: Point, error: str | None = None, must_fire: bool = True) -> Fault:
    """Make a call fail as in production: ``at=at.io("*/ckpt/*", call="rename")``.

    `error` is the name of the error of a call on a file. The default depends on the call: ENOSPC of
    write and mkdir, ESTALE of stat, rename and listdir, EIO of open, read and fsync, EACCES of
    unlink, ENOTEMPTY of rmdir, EPERM of link. At
    ``at.collective("all_reduce")`` the rank does not enter the operation, and the error is the
    runtime's own. If the point has ``onwards=True``, all later calls fail as well.
    """
    return _fault("fails", rank, at, must_fire, error=error)


def returns(*, rank: Ranks, value: object = None, at: Point, must_fire: bool = True) -> Fault:
    """Make a call return `value`: ``at=at.call("module:function")``.

    The function does not run. With ``when="after"`` it runs, and `value` replaces its result or
    exception; a number then replaces the elements of an array or tensor, so ``value=float("nan")``
    makes a loss NaN. Values are None, numbers, strings, booleans, and lists of these.
    """
    return _fault("returns", rank, at, must_fire, value=value)


def short_data(*, rank: Ranks, at: Point, must_fire: bool = True) -> Fault:
    """End the rank's data at the point: ``at=at.batch("module:loader", nth=4)`` leaves 3 batches.

    The next pass through the data is complete again.
    """
    return _fault("short_data", rank, at, must_fire)


def empty_data(*, rank: Ranks, at: Point, must_fire: bool = True) -> Fault:
    """Give the rank no data from the point on: ``at=at.batch("module:loader")``."""
    onwards = replace(at, onwards=True) if isinstance(at, Point) else at
    return _fault("empty_data", rank, onwards, must_fire)


def shuffled_listing(
    *, rank: Ranks, path: str = "*", at: Point = START, must_fire: bool = True
) -> Fault:
    """List folders in another order from the point on: listdir, scandir, glob, walk.

    The order is reversed, so it certainly differs from that of other ranks, and is reproducible.
    `path` is a glob for folders, or for the files in them.
    """
    return _fault("shuffled_listing", rank, at, must_fire, path=path)


def stale_files(
    *,
    rank: Ranks,
    seconds: float,
    path: str = "*",
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Hide files that other ranks make after the point for `seconds`, as network file systems do.

    The rank cannot open such a file for reading, sees that it does not exist, and does not find it
    in its folder. The rank does see files that it has written itself, except from C++ code, and
    changes to files that existed before. The fault has happened when something was hidden.
    """
    return _fault("stale_files", rank, at, must_fire, seconds=seconds, path=path)


def clock_skew(*, rank: Ranks, seconds: float, at: Point = START, must_fire: bool = True) -> Fault:
    """Set the rank's wall clock `seconds` ahead from the point on; a negative value sets it back.

    It affects `datetime` and the functions of `time` in Python, but not `time.monotonic`, waits,
    the times of files, and C++.
    """
    return _fault("clock_skew", rank, at, must_fire, seconds=seconds)


def elapsed_time(
    *, rank: Ranks, seconds: float, read: int = 1, at: Point = START, must_fire: bool = True
) -> Fault:
    """Let more time elapse: the rank's clocks jump `seconds` ahead, as its own code reads them.

    They jump when code of the test or of the program under test reads a clock for the `read`th time
    after the point: `time.monotonic`, `time.perf_counter`, `time.time`, or their forms with `_ns`.
    So a limit of seconds that no rank has reached is over for this rank. Libraries, runtimes and
    waits have the real time.
    """
    return _fault("elapsed_time", rank, at, must_fire, seconds=seconds, read=read)


def memory_pressure(
    *,
    rank: Ranks,
    headroom_mb: float = 256,
    oom_kill: bool | None = None,
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Limit the rank to `headroom_mb` more memory than it has at the point.

    Allocations beyond that fail as usual in each library: MemoryError in Python, RuntimeError in
    torch, RESOURCE_EXHAUSTED in jax. Stacks of new threads also count.

    The headroom is in mebibytes of data. With `oom_kill` the kernel kills the rank instead, as on a
    host without memory. That needs a writable memory cgroup; without one the test is skipped.
    """
    params = {"headroom_mb": headroom_mb, "oom_kill": oom_kill or None}
    return _fault("memory_pressure", rank, at, must_fire, **params)


def fd_pressure(
    *, rank: Ranks, headroom: int = 8, at: Point = START, must_fire: bool = True
) -> Fault:
    """Limit the rank to `headroom` more file descriptors than it has at the point."""
    return _fault("fd_pressure", rank, at, must_fire, headroom=headroom)


def cpu_throttle(
    *,
    rank: Ranks,
    percent: float,
    seconds: float | None = None,
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Run the rank and its children only `percent` of the time, in turns of a tenth of a second.

    `percent` is more than 0 and less than 100. If `seconds` is None, the fault lasts until the
    test's body is over.
    """
    return _fault("cpu_throttle", rank, at, must_fire, percent=percent, seconds=seconds)


def hash_seed(*, rank: Ranks = "all", seed: int | None = None, must_fire: bool = True) -> Fault:
    """Give each rank its own seed for the hashes of strings, as on separate hosts.

    The order of sets differs between hosts, but ranks that are forked from one process share the
    hash seed. The ranks of such a test are fresh interpreters, which costs seconds. `seed` is the
    PYTHONHASHSEED of all these ranks; None selects one for each by the world's seed. The other
    ranks share one, selected in the same way, so every run has the same hashes.
    """
    return _fault("hash_seed", rank, START, must_fire, seed=seed)


def slow_io(
    *,
    rank: Ranks,
    seconds: float | None = None,
    bytes_per_s: float | None = None,
    error: str | None = None,
    short_reads: bool | None = None,
    path: str = "*",
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Make a rank's files slow or broken from the point on, for Python and for C++ that reads them.

    It needs a preloaded library, so the ranks are forked from a separate interpreter. If that is
    impossible, it affects only Python's own file access, and the verdict has a note about that.

    * ``seconds``: additional time of every open, read and write.
    * ``bytes_per_s``: the maximum rate at which data is read and written.
    * ``error``: the name of an error with which these calls fail, such as ``EIO`` or ``ENOSPC``. An
      error for lack of space affects only writes.
    * ``short_reads``: whether a read returns half of the requested bytes, as POSIX permits.
    * ``path``: the files, as in `at.io`. The pattern ``*`` skips Python's own files, installed
      packages, /dev, /proc and /sys. The fault has happened when a matching file was opened, read
      or written.
    """
    speed = {"seconds": seconds, "bytes_per_s": bytes_per_s}
    failure = {"error": error, "short_reads": short_reads or None}
    return _fault("slow_io", rank, at, must_fire, **speed, **failure, path=path)


def partition(
    *,
    groups: Sequence[Sequence[int]],
    one_way: bool | None = None,
    rank: Ranks | None = None,
    heals_after: float | None = None,
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Cut the network silently: no packet arrives any more between hosts of different groups.

    Needs ``hosts="netns"``, like all network faults. They last until all ranks have returned from
    the test's body, not only the rank that passed the point.

    * ``groups``: ranks that still reach each other; ranks in no group still reach all others.
    * ``one_way``: cut only the packets of the first of two groups to the second.
    * ``rank``: the rank whose passing of the point triggers the cut; by default the first rank of
      the first group.
    * ``heals_after``: seconds after which the cut ends.
    """
    sides: Any = groups
    with contextlib.suppress(TypeError):  # wrong types are reported when the test is planned
        sides = [list(each) for each in groups]
    first = sides[0][0] if isinstance(sides, list) and sides and sides[0] else 0
    params = {"groups": sides, "one_way": one_way or None, "heals_after": heals_after}
    return _fault("partition", first if rank is None else rank, at, must_fire, **params)


def net_delay(
    *,
    rank: Ranks,
    seconds: float,
    heals_after: float | None = None,
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Delay all packets that the rank's host sends to other hosts by `seconds`."""
    return _fault("net_delay", rank, at, must_fire, seconds=seconds, heals_after=heals_after)


def net_loss(
    *,
    rank: Ranks,
    percent: float,
    heals_after: float | None = None,
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Drop `percent` of the packets that the rank's host sends to other hosts."""
    return _fault("net_loss", rank, at, must_fire, percent=percent, heals_after=heals_after)


def net_rate(
    *,
    rank: Ranks,
    bytes_per_s: float,
    heals_after: float | None = None,
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Limit the rate at which the rank's host sends to other hosts to `bytes_per_s`."""
    params = {"bytes_per_s": bytes_per_s, "heals_after": heals_after}
    return _fault("net_rate", rank, at, must_fire, **params)


def reset(*, rank: Ranks, at: Point = START, must_fire: bool = True) -> Fault:
    """Reset all TCP connections between the rank's host and other hosts, once.

    The rank's side sees ECONNABORTED, the other side ECONNRESET. New connections can be made.
    """
    return _fault("reset", rank, at, must_fire)


def dns_failure(
    *,
    rank: Ranks,
    heals_after: float | None = None,
    at: Point = START,
    must_fire: bool = True,
) -> Fault:
    """Prevent the rank's host from resolving other hosts' names; its own name still resolves."""
    return _fault("dns_failure", rank, at, must_fire, heals_after=heals_after)


def other(
    kind: str,
    *,
    rank: Ranks,
    at: Point = START,
    must_fire: bool = True,
    **params: Any,  # noqa: ANN401 - whatever the kind takes
) -> Fault:
    """Return a fault of a kind that a plugin or conftest offers with `pytest_multihost_faults`."""
    return _fault(kind, rank, at, must_fire, **params)


def _fault(
    kind: str,
    rank: Ranks,
    at: Point,
    must_fire: bool,  # noqa: FBT001 - handed through
    **params: Any,  # noqa: ANN401 - whatever the kind takes
) -> Fault:
    given = {name: value for name, value in params.items() if value is not None}
    ranks: Any = rank  # wrong ranks are reported when the test is planned
    if isinstance(rank, list | tuple | range):
        ranks = tuple(rank)
    elif not isinstance(rank, str):
        ranks = (rank,)
    return Fault(kind, ranks, at, given, must_fire)
