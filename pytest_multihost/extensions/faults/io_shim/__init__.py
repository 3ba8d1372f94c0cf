"""Slow and broken files for every caller of the C library, C++ readers included.

`shim.c` is a library that is preloaded into ranks (LD_PRELOAD, ld.so(8)): its `open`, `read`,
`write`, ... stand in front of those of the C library. The page of I/O rules is the
shared memory that says which files are slow or broken for a process.

The shim reads the rules in every call on a file, also in a signal handler, between fork and exec,
and while another process writes them; so there is no lock. A bit for each rule in the word `active`
says whether it is in force, and is set when all else of the rule is written. A rule's `serial` is
incremented before the rule is rewritten: a reader that finds another serial after it has matched a
path may have read a mixture of two rules, and does not apply it.

Any process that can open the file may write rules and read the counters. So the controller can heal
a stopped rank, and see the end of a dead one. The layout is that of
`struct page` in shim.c.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_multihost.core.preload import PreloadedLibrary

__all__ = ["IoPage", "IoRule", "attach", "detach", "find_library", "is_loaded", "why_missing"]


LIBRARY = PreloadedLibrary(Path(__file__).with_name("shim.c"))

PAGE_VARIABLE = "PYTEST_MULTIHOST_IO_SHIM"
"""Names the page that a process follows from its exec on; without it, none until `attach`."""

find_library = LIBRARY.find
"""Returns the shim's library, compiled now if necessary; None if that is impossible."""

why_missing = LIBRARY.why_missing
"""Returns why there is no library; empty if there is one."""


def is_loaded() -> bool:
    """Return whether this process, or its parent at the fork, was exec'd with the shim."""
    return _attach_function() is not None


def attach(path: Path) -> IoPage:
    """Follow the rules in the page at `path` from now on, and no others.

    The page is created if it is absent. Processes that this one execs later follow it as well.

    Raises:
        RuntimeError: The shim is not loaded: this process was exec'd without it.
        OSError, ValueError: The page cannot be created, or the file is not a page.
    """
    set_page = _attach_function()
    if set_page is None:
        reason = why_missing() or "preload_variables() returns the variables for that"
        raise RuntimeError(
            "This process has no I/O shim: it must be preloaded when the process is exec'd"
            f" ({reason})."
        )
    page = IoPage.open(path) if path.exists() else IoPage.create(path)
    if error := set_page(os.fsencode(path)):
        raise OSError(error, os.strerror(error), os.fspath(path))
    os.environ[PAGE_VARIABLE] = os.fspath(path)
    return page


def detach() -> None:
    """Follow no rules any more."""
    os.environ.pop(PAGE_VARIABLE, None)
    if (set_page := _attach_function()) is not None:
        set_page(b"")


@functools.cache
def _attach_function() -> ctypes._NamedFuncPointer | None:
    """Return the shim's entry point; None in a process without the shim.

    CDLL(None) is dlopen(NULL): it finds symbols of the program itself and of preloaded libraries.
    """
    try:
        function = ctypes.CDLL(None).multihost_shim_attach
    except (AttributeError, OSError, TypeError):  # absent; Windows has no program to look in
        return None
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    return function


Operation = Literal["open", "read", "write", "sync", "map"]

RULES = 16
"""How many rules a page holds."""

_OPERATIONS: dict[str, int] = {"open": 1, "read": 2, "write": 4, "sync": 8, "map": 16}
_WHOLE, _SHORT = 1 << 16, 1 << 17  # bits beside those of the operations
_GLOB_BYTES = 512
_MAX_SPARED = 16
_MAX_INTEGER = (1 << 63) - 1


_LONGS = (
    "delay_ns",
    "bytes_per_s",
    "serial",
    "struck",
    "bytes",
    "slept_ns",
    "first_ns",
    "busy_until_ns",
)


class _Rule(ctypes.Structure):
    """`struct rule` in shim.c."""

    _fields_ = (
        ("operations", ctypes.c_uint32),
        ("error", ctypes.c_int32),
        ("spared", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in _LONGS),
        ("globs", ctypes.c_char * _GLOB_BYTES * (1 + _MAX_SPARED)),
    )


class _Page(ctypes.Structure):
    """`struct page` in shim.c."""

    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("active", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 13),
        ("rules", _Rule * RULES),
    )


_MAGIC = b"OISHIM2\0"
_SIZE = ctypes.sizeof(_Page)


@dataclass(frozen=True, slots=True, kw_only=True)
class IoRule:
    """The effect on calls on files that match.

    Rules add up; of several errors the first counts.

    Attributes:
        path: A glob for the real path, as in `fnmatch`: ``*`` also matches slashes. A glob that
            begins with neither ``/`` nor ``*`` matches in any directory.
        operations: Which calls: ``open``, ``read``, ``write``, ``sync``, and ``map``, which is the
            call of mmap(2), not the reads of mapped pages.
        seconds: Delay of each call; threads wait in parallel.
        bytes_per_s: Data rate that all threads and children share; None: unlimited.
        error: The errno with which a call fails instead of being made; 0: none.
        short_reads: Whether a read returns half of the requested bytes, rounded up. C's buffered
            files still read everything, because the C library reads on.
        spare: Globs of files that the rule leaves alone, at most 16.
        is_whole: Whether a delay is one uninterrupted sleep. It lasts even if the rule is removed,
            but from outside it is one wait, not a thread that wakes up again and again.
    """

    path: str
    operations: Sequence[Operation] = ("open", "read", "write", "sync")
    seconds: float = 0.0
    bytes_per_s: float | None = None
    error: int = 0
    short_reads: bool = False
    spare: Sequence[str] = ()
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class IoCount:
    """The record of a rule.

    Attributes:
        struck: Calls of its operations on files that match.
        bytes: How many bytes these have moved.
        slept_s: How long threads have slept for the rule, in sum.
        first_ns: When it was first applied, on CLOCK_MONOTONIC; 0: not yet.
    """

    struck: int = 0
    bytes: int = 0
    slept_s: float = 0.0
    first_ns: int = 0


@dataclass(slots=True)
class IoPage:
    """The rules of one process, see `create` and `open`. Rules are numbered from 0.

    One process at a time should add rules; `clear` may come from another at any moment.
    """

    _map: mmap.mmap
    _page: _Page

    @classmethod
    def create(cls, path: Path) -> IoPage:
        """Create a page without rules at `path`, which must not exist. A sparse file of 140 kB."""
        with path.open("x+b") as file:
            file.truncate(_SIZE)
            file.write(_MAGIC)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> IoPage:
        """Map the page at `path`.

        Raises:
            OSError: There is none.
            ValueError: The file is not a page of rules.
        """
        with path.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != _SIZE or file.read(8) != _MAGIC:
                raise ValueError(f"{path} is not a page of I/O rules")
            shared = mmap.mmap(file.fileno(), _SIZE)
        return cls(shared, _Page.from_buffer(shared))

    def add(self, rule: IoRule) -> int:
        """Put a rule into force beside the others, and return its number.

        Raises:
            ValueError: A glob is too long, or there are 16 rules already.
        """
        globs = [
            (each if each.startswith(("/", "*")) else f"*/{each}").encode(errors="surrogateescape")
            for each in (rule.path, *rule.spare)
        ]
        if any(len(each) >= _GLOB_BYTES for each in globs):
            raise ValueError(f"{rule!r}: a glob must be shorter than {_GLOB_BYTES} bytes")
        if len(rule.spare) > _MAX_SPARED:
            raise ValueError(f"{rule!r}: at most {_MAX_SPARED} globs can be spared")
        active = self._page.active
        free = [number for number in range(RULES) if not active >> number & 1]
        if not free:
            raise ValueError(f"there are {RULES} I/O rules already, which is as many as fit")
        written = self._page.rules[free[0]]
        written.serial += 1
        modes = (_WHOLE if rule.is_whole else 0) | (_SHORT if rule.short_reads else 0)
        written.operations = modes | sum(_OPERATIONS[each] for each in set(rule.operations))
        written.error = rule.error
        written.spared = len(rule.spare)
        written.delay_ns = min(round(rule.seconds * 1e9), _MAX_INTEGER)
        written.bytes_per_s = min(round(rule.bytes_per_s or 0), _MAX_INTEGER)
        written.struck = written.bytes = written.slept_ns = 0
        written.first_ns = written.busy_until_ns = 0
        for index, glob in enumerate(globs):
            written.globs[index].value = glob
        self._page.active = active | 1 << free[0]
        return free[0]

    def remove(self, number: int) -> None:
        """Remove a rule. Threads that sleep for it wake within 50 ms; its counters stay."""
        self._page.active &= ~(1 << number)

    def clear(self) -> None:
        """Remove all rules. Threads that sleep for one wake within 50 ms; the counters stay."""
        self._page.active = 0

    def fired(self) -> tuple[IoCount, ...]:
        """Return the counters of all 16 rules, each since it was put into force."""
        return tuple(
            IoCount(each.struck, each.bytes, each.slept_ns / 1e9, each.first_ns)
            for each in self._page.rules
        )

    def note(self, number: int, now_ns: int) -> None:
        """Count a call that a rule was applied to without the shim."""
        rule = self._page.rules[number]
        rule.struck += 1
        rule.first_ns = rule.first_ns or now_ns

    def close(self) -> None:
        """Unmap it here. Its rules stay in force in the processes that have it mapped."""
        del self._page  # it refers to the map
        self._map.close()
