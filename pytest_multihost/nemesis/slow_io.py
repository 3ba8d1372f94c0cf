"""The fault `slow_io`: slow, failing and short reads and writes of files.

The preloaded shim performs it for every caller of the C library. In a process without the shim only
Python's own file objects are slowed down. Either way the counters in the rank's page of I/O rules,
a file in shared memory, show what has happened, also when the rank cannot say so any more.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep  # by name: the test may replace it in its module

from pytest_multihost.model.event import now
from pytest_multihost.model.fault import FaultParams
from pytest_multihost.model.spec import RankSpec
from pytest_multihost.nemesis.interpose import (
    SYSTEM_FILES,
    FileAccess,
    FileObserver,
    matcher,
    observing_files,
)
from pytest_multihost.nemesis.io_shim import IoPage, IoRule, attach, detach, is_loaded, why_missing
from pytest_multihost.nemesis.kind import FaultKind, Strike, positive, seconds, text, truth

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only a write can end in."""

_MAX_GLOB_BYTES = 512


@dataclass(frozen=True, slots=True)
class _SlowCall:
    """What happens to a call on a file.

    Attributes:
        seconds: Additional delay.
        bytes_per_s: Upper bound of the data rate.
        error: The error that it ends in.
        short_reads: Whether a read gets half of what it asked for.
    """

    seconds: float = 0.0
    bytes_per_s: float | None = None
    error: int | None = None
    short_reads: bool = False

    def before(self, access: FileAccess) -> int | None:
        """Wait, raise, or return how many bytes to move at most."""
        if self.seconds:
            sleep(self.seconds)
        if self.error is not None and (self.error not in _NO_ROOM or access.call == "write"):
            raise OSError(self.error, os.strerror(self.error), access.path)
        if self.short_reads and access.call == "read" and access.size > 1:
            return access.size // 2
        return None

    def after(self, access: FileAccess) -> None:
        """Wait until the data rate is met."""
        if self.bytes_per_s and access.size > 0:
            sleep(access.size / self.bytes_per_s)


def _slow_call(params: FaultParams) -> _SlowCall:
    """Return what the parameters of a `slow_io` ask for."""
    return _SlowCall(
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
    """Slow files down from now on, through the shim where it is loaded."""
    rules = io_rules(strike.fault.params, spared(strike.fault.params["path"], strike.place))
    if is_loaded():
        page = attach(page_path(strike.place.scratch, strike.rank))
        strike.healing.callback(detach)
        _apply(page, rules, strike)
    else:
        _slow_down_python(strike, rules)


def _apply(page: IoPage, rules: Sequence[IoRule], strike: Strike, note: str = "") -> int:
    """Put rules into force, report their numbers, and return the first."""
    numbers = [page.add(rule) for rule in rules]
    for number in numbers:
        strike.healing.callback(page.remove, number)
    strike.armed(rules=numbers, **({"note": note} if note else {}))
    return numbers[0]


def _slow_down_python(strike: Strike, rules: Sequence[IoRule]) -> None:
    """Slow down Python's files alone. The page only counts calls then, also those of children."""
    chosen = _slow_call(strike.fault.params)
    path = page_path(strike.place.scratch, strike.rank)
    page = IoPage.open(path) if path.exists() else IoPage.create(path)
    number = _apply(page, rules, strike, _python_only())

    def before(access: FileAccess) -> int | None:
        strike.begun()
        page.note(number, round(now() * 1e9))
        return chosen.before(access)

    observer = FileObserver(matcher(strike.fault.params["path"]), before, chosen.after)
    strike.healing.enter_context(observing_files(observer))


def _python_only() -> str:
    """Return why only Python's own files can be slowed down in this process."""
    why = why_missing() or "its process was started without the I/O shim"
    return f"slow_io works at Python level only: {why}"


def page_path(scratch: str | Path, rank: int) -> Path:
    """Return where the page of I/O rules of a rank is."""
    return Path(scratch, f"rank-{rank}.io")


def io_rules(params: FaultParams, spare: Sequence[str]) -> tuple[IoRule, ...]:
    """Return what the parameters of a `slow_io` ask for, as rules of the shim.

    A delay is one uninterrupted sleep (`is_whole`): the watchdog then sees one wait that lasts
    longer than the test may take. A thread that woke up again and again would look alive.
    """
    chosen = _slow_call(params)
    is_write_error = chosen.error in _NO_ROOM
    rule = IoRule(
        path=params["path"],
        seconds=chosen.seconds,
        bytes_per_s=max(1.0, chosen.bytes_per_s) if chosen.bytes_per_s else None,
        error=0 if is_write_error else chosen.error or 0,
        short="half" if chosen.short_reads else None,
        spare=spare,
        is_whole=True,
    )
    if not is_write_error or chosen.error is None:
        return (rule,)
    failing = IoRule(
        path=params["path"], operations=("write", "sync"), error=chosen.error, spare=spare
    )
    has_error_only = not (chosen.seconds or chosen.bytes_per_s or chosen.short_reads)
    return (failing,) if has_error_only else (rule, failing)


def spared(path: str, spec: RankSpec) -> tuple[str, ...]:
    """Return globs of what is never slowed down: the harness's files; with ``*``, system files."""
    scratch, directory = (glob.escape(each) for each in (spec.scratch, spec.directory))
    own = (f"{directory}/*", f"{scratch}/rank-{spec.rank}.*", f"{scratch}/????-store")
    fitting = tuple(each for each in own if len(each.encode()) < _MAX_GLOB_BYTES)
    return (*fitting, *SYSTEM_FILES) if path == "*" else fitting


def _error_name(value: object) -> str | None:
    return None if error_number(value) is not None else "the name of an error, as 'EIO'"


SLOW_IO = FaultKind(
    name="slow_io",
    perform=_slow_down,
    params={
        "seconds": seconds,
        "bytes_per_s": positive,
        "error": _error_name,
        "short_reads": truth,
        "path": text,
    },
    required=frozenset({"path"}),
    lasts=True,
    tells_itself=True,
)
