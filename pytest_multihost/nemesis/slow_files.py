"""Slow, broken and short reads and writes: by the preloaded shim, else as far as Python does them.

Either way the rank's page of I/O rules says what has happened; whoever has the file can read it.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep  # by name: the test may replace it in its module
from typing import Any

from pytest_multihost.model.clock import now
from pytest_multihost.model.spec import RankSpec
from pytest_multihost.nemesis.files import FILES, Access, Watcher, matcher
from pytest_multihost.nemesis.io_shim import shim
from pytest_multihost.nemesis.kind import FaultKind, Strike, positive, seconds, text, truth

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors of those who write."""

_LONGEST_GLOB = 512

NOBODYS = (
    *("/dev/*", "/proc/*", "/sys/*", "/etc/*", "/usr/lib*", "/usr/share/*", "*/lib/python3*"),
    *("*/????-packages/*", "*.py", "*.pyc", "*/.pytest_multihost/*", "*/.pytest_cache/*"),
)
"""What ``*`` alone leaves out: what belongs to Python, to installed packages and to the kernel."""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What happens to a call on a file.

    Attributes:
        seconds: What it takes in addition.
        bytes_per_s: How fast data moves at most.
        error: The error that it ends in.
        short_reads: Whether a read gets half.
    """

    seconds: float = 0.0
    bytes_per_s: float | None = None
    error: int | None = None
    short_reads: bool = False

    def before(self, access: Access) -> int | None:
        """Wait, fail, or return how many bytes to move at most."""
        if self.seconds:
            sleep(self.seconds)
        if self.error is not None and (self.error not in _NO_ROOM or access.call == "write"):
            raise OSError(self.error, os.strerror(self.error), access.path)
        if self.short_reads and access.call == "read" and access.size > 1:
            return access.size // 2
        return None

    def after(self, access: Access) -> None:
        """Let what was moved take its time."""
        if self.bytes_per_s and access.size > 0:
            sleep(access.size / self.bytes_per_s)


def disturbance(params: Mapping[str, Any]) -> Disturbance:
    """Return what the parameters of a `slow_io` ask for."""
    return Disturbance(
        seconds=params.get("seconds", 0.0),
        bytes_per_s=params.get("bytes_per_s"),
        error=error_number(params["error"]) if "error" in params else None,
        short_reads=params.get("short_reads", False),
    )


def error_number(name: object) -> int | None:
    """Return the number of an error of the operating system, None where there is none."""
    found = getattr(errno, name, None) if isinstance(name, str) and name.startswith("E") else None
    return found if isinstance(found, int) else None


def _slow_down(strike: Strike) -> None:
    """Slow files down from now on: all that this process reads, or what Python does."""
    rules = io_rules(strike.fault.params, spared(strike.fault.params["path"], strike.place))
    if shim.is_loaded():
        page = shim.attach(page_path(strike.place.scratch, strike.rank))
        strike.healing.callback(shim.detach)
        _enter(page, rules, strike)
    else:
        _slow_down_python(strike, rules)


def _enter(page: shim.IoPage, rules: Sequence[shim.IoRule], strike: Strike, note: str = "") -> int:
    """Put rules into force and tell which they are; return the number of the first."""
    numbers = [page.add(rule) for rule in rules]
    for number in numbers:
        strike.healing.callback(page.remove, number)
    strike.armed(rules=numbers, **({"note": note} if note else {}))
    return numbers[0]


def _slow_down_python(strike: Strike, rules: Sequence[shim.IoRule]) -> None:
    """Do it without the shim. The page then only counts, for children that are forked as well."""
    chosen = disturbance(strike.fault.params)
    path = page_path(strike.place.scratch, strike.rank)
    page = shim.IoPage.open(path) if path.exists() else shim.IoPage.create(path)
    number = _enter(page, rules, strike, python_only())

    def before(access: Access) -> int | None:
        strike.begun()
        page.note(number, round(now() * 1e9))
        return chosen.before(access)

    watcher = Watcher(matcher(strike.fault.params["path"]), before, chosen.after)
    FILES.watch(watcher)
    strike.healing.callback(FILES.unwatch, watcher)


def python_only() -> str:
    """Say that, and why, only Python's own files can be slowed down in this process."""
    why = shim.why_missing() or "its process was started without the I/O shim"
    return f"slow_io works at Python level only: {why}"


def page_path(scratch: str | Path, rank: int) -> Path:
    """Return the page of I/O rules of a rank."""
    return Path(scratch, f"rank-{rank}.io")


def io_rules(params: Mapping[str, Any], spare: Sequence[str]) -> tuple[shim.IoRule, ...]:
    """Return what the parameters of a `slow_io` ask for, as rules of the shim.

    A delay is one sleep: seen from outside, a rank that sleeps for longer than the test may take
    hangs, and one that wakes up again and again does not.
    """
    chosen = disturbance(params)
    is_of_room = chosen.error in _NO_ROOM
    rule = shim.IoRule(
        path=params["path"],
        seconds=chosen.seconds,
        bytes_per_s=max(1.0, chosen.bytes_per_s) if chosen.bytes_per_s else None,
        error=0 if is_of_room else chosen.error or 0,
        short="half" if chosen.short_reads else None,
        spare=spare,
        is_whole=True,
    )
    if not is_of_room or chosen.error is None:
        return (rule,)
    full = shim.IoRule(
        path=params["path"], operations=("write", "sync"), error=chosen.error, spare=spare
    )
    only_room = not (chosen.seconds or chosen.bytes_per_s or chosen.short_reads)
    return (full,) if only_room else (rule, full)


def spared(path: str, place: RankSpec) -> tuple[str, ...]:
    """Return globs of what is never slowed down for a pattern: our own files, and `NOBODYS`."""
    scratch, directory = (glob.escape(each) for each in (place.scratch, place.directory))
    ours = (f"{directory}/*", f"{scratch}/rank-{place.rank}.*", f"{scratch}/????-store")
    fitting = tuple(each for each in ours if len(each.encode()) < _LONGEST_GLOB)
    return (*fitting, *NOBODYS) if path == "*" else fitting


def _error(value: object) -> str | None:
    return None if error_number(value) is not None else "the name of an error, as 'EIO'"


SLOW_IO = FaultKind(
    name="slow_io",
    perform=_slow_down,
    params={
        "seconds": seconds,
        "bytes_per_s": positive,
        "error": _error,
        "short_reads": truth,
        "path": text,
    },
    required=frozenset({"path"}),
    lasts=True,
    tells_itself=True,
)
