"""The fault `slow_io`: slow, failing and short reads and writes of files.

The preloaded shim performs it for every caller of the C library. In a process without the shim only
Python's own file objects are slowed down. Either way the counters in the rank's page of I/O rules,
a file in shared memory, show the calls, even if the rank can no longer report it.
"""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Sequence
from pathlib import Path
from time import sleep  # by name: the test may replace it in its module

from pytest_multihost.core.model.event import now
from pytest_multihost.core.model.fault import FaultParams
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.extensions.faults.io_shim import (
    IoPage,
    IoRule,
    attach,
    detach,
    is_loaded,
    why_missing,
)
from pytest_multihost.faults.kind import (
    FaultKind,
    Strike,
    error_name,
    error_number,
    positive,
    seconds,
    text,
    truth,
)
from pytest_multihost.intercept.files import (
    SYSTEM_FILES,
    FileAccess,
    FileObserver,
    matcher,
    observing_files,
)

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS})
"""Errors that only a write can end in."""

_MAX_GLOB_BYTES = 512


def _slow_down(strike: Strike) -> None:
    """Slow files down from now on, through the shim where it is loaded.

    Without it only Python's own files are slowed down. The page then only counts calls, including
    those of children.
    """
    rules = io_rules(strike.fault.params, spared(strike.fault.params["path"], strike.place))
    path, note = page_path(strike.place.scratch, strike.rank), ""
    if is_loaded():
        page = attach(path)
        strike.healing.callback(detach)
    else:
        page = IoPage.open(path) if path.exists() else IoPage.create(path)
        why = why_missing() or "its process was started without the I/O shim"
        note = f"slow_io works at Python level only: {why}"
    numbers = [page.add(rule) for rule in rules]
    for number in numbers:
        strike.healing.callback(page.remove, number)
    strike.armed(rules=numbers, **({"note": note} if note else {}))

    def before(access: FileAccess) -> int | None:
        """Wait, raise, or return how many bytes to move at most, as the shim would."""
        strike.begun()
        page.note(numbers[0], round(now() * 1e9))
        call = "sync" if access.call == "fsync" else access.call
        for rule in rules:
            if call in rule.operations and rule.seconds:
                sleep(rule.seconds)
            if call in rule.operations and rule.error:
                raise OSError(rule.error, os.strerror(rule.error), access.path)
        is_short = rules[0].short_reads and access.call == "read" and access.size > 1
        return access.size // 2 if is_short else None

    def after(access: FileAccess) -> None:
        if rules[0].bytes_per_s:
            sleep(access.size / rules[0].bytes_per_s)

    if note:
        observer = FileObserver(matcher(strike.fault.params["path"]), before, after)
        strike.healing.enter_context(observing_files(observer, strike.more_modules))


def page_path(scratch: str | Path, rank: int) -> Path:
    """Return the path of a rank's page of I/O rules."""
    return Path(scratch, f"rank-{rank}.io")


def io_rules(params: FaultParams, spare: Sequence[str]) -> tuple[IoRule, ...]:
    """Return the shim's rules for the parameters of a `slow_io`.

    A delay is one uninterrupted sleep (`is_whole`): the watchdog then sees one wait that lasts
    longer than the test may take. A thread that woke up again and again would look alive.
    """
    error = error_number(params.get("error"))
    rule = IoRule(
        path=params["path"],
        seconds=params.get("seconds", 0.0),
        bytes_per_s=max(1.0, params["bytes_per_s"]) if "bytes_per_s" in params else None,
        error=0 if error in _NO_ROOM else error,
        short_reads=params.get("short_reads", False),
        spare=spare,
        is_whole=True,
    )
    if error not in _NO_ROOM:
        return (rule,)
    failing = IoRule(path=params["path"], operations=("write", "sync"), error=error, spare=spare)
    has_error_only = not (rule.seconds or rule.bytes_per_s or rule.short_reads)
    return (failing,) if has_error_only else (rule, failing)


def spared(path: str, spec: RankSpec) -> tuple[str, ...]:
    """Return globs of files that are never slowed down: the harness's; with ``*``, system files."""
    scratch, directory = (glob.escape(each) for each in (spec.scratch, spec.directory))
    names = (f"rank-{spec.rank}.*", "????-store", "service-*")
    own = (f"{directory}/*", *(f"{scratch}/{each}" for each in names))
    fitting = tuple(each for each in own if len(each.encode()) < _MAX_GLOB_BYTES)
    return (*fitting, *SYSTEM_FILES) if path == "*" else fitting


SLOW_IO = FaultKind(
    name="slow_io",
    perform=_slow_down,
    params={
        "seconds": seconds,
        "bytes_per_s": positive,
        "error": error_name,
        "short_reads": truth,
        "path": text,
    },
    required=frozenset({"path"}),
    lasts=True,
    tells_itself=True,
    one_per="path",
    needs_shim=True,
)
