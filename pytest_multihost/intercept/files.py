"""Intercept the calls of Python code on files and folders.

Nothing is replaced before there is an observer, and everything is put back after the last. For an
observed path, `open` returns a file object that reports its calls, and the functions of `os` that
take a descriptor look up its path (/proc/self/fd). Files that C and C++ code opens, maps or reads
are not seen, except those passed to `reported`; seeing them takes the preloaded shim.
"""

from __future__ import annotations

import builtins
import contextlib
import fnmatch
import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from pathlib import PurePath
from typing import Any, Self

from pytest_multihost.core.cpython_private import path_globber
from pytest_multihost.core.model.fault import DATA_CALLS, IO_CALLS, IoCall
from pytest_multihost.intercept.targets import replace_names

Namespace = Any  # a module, a class, or an object that replaces a module in sys.modules
File = Any  # a path, a descriptor, or an object that has one
Buffer = Any  # bytes, or an object with the buffer protocol
Result = Any  # the result of an intercepted function
Function = Callable[..., Result]

_CALLS_FOR_OTHERS = True  # see `extensions.faults.points`: these calls on files are the test's

SYSTEM_FILES = (
    *("/dev/*", "/proc/*", "/sys/*", "/etc/*", "/usr/lib*", "/usr/share/*", "*/lib/python3*"),
    *("*/????-packages/*", "*.py", "*.pyc", "*/.pytest_multihost/*", "*/.pytest_cache/*"),
)
"""Globs of files that ``*`` alone skips: those of the kernel, Python and installed packages."""

_OS_CALLS: Mapping[str, IoCall] = {
    "open": "open",
    "read": "read",
    "pread": "read",
    "write": "write",
    "pwrite": "write",
    "fsync": "fsync",
    "fdatasync": "fsync",
    "stat": "stat",
    "lstat": "stat",
    "access": "stat",
    "rename": "rename",
    "replace": "rename",
    "link": "link",
    "symlink": "link",
    "unlink": "unlink",
    "remove": "unlink",
    "mkdir": "mkdir",
    "rmdir": "rmdir",
    "listdir": "listdir",
    "scandir": "listdir",
}
"""The intercepted functions of `os`, and the calls as which they are reported."""

_MAKING = frozenset({"link", "mkdir", "rename"})

_SYSTEM_FILE = re.compile("|".join(map(fnmatch.translate, SYSTEM_FILES)))


@dataclass(frozen=True, slots=True)
class FileAccess:
    """One call on an observed file, before or after it is made.

    Attributes:
        path: Absolute path of the file; for a rename or link, the new path, if that is observed.
        size: Bytes asked for; afterwards, bytes moved; 0 for calls that move none.
        makes: Whether the call may make the file.
        other: The other path of a rename or link.
    """

    call: IoCall
    path: str
    size: int = 0
    makes: bool = False
    other: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class FileObserver:
    """Callbacks for calls on files.

    Attributes:
        matches: Whether a path is observed; asked once for each path.
        before: Called before each call; may wait, raise, or return how many bytes to move at most.
        after: Called after each read and write.
        listed: Gets a folder and the names in it; returns the names for its caller, in order.
    """

    matches: Callable[[str], bool]
    before: Callable[[FileAccess], int | None]
    after: Callable[[FileAccess], None] | None = None
    calls: frozenset[str] = DATA_CALLS
    listed: Callable[[str, Sequence[str]], Sequence[str]] | None = None


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that decides whether a path matches a glob; ``*`` also matches slashes.

    A pattern that begins with neither ``/`` nor ``*`` matches in any directory. ``*`` alone skips
    `SYSTEM_FILES`, the folders of this Python, and those above them.
    """
    if pattern == "*":
        return _is_of_the_program
    rooted = pattern if pattern.startswith(("/", "*")) else f"*/{pattern}"
    fits = re.compile(fnmatch.translate(rooted)).match
    return lambda path: fits(path) is not None


@lru_cache(maxsize=4096)
def _is_of_the_program(path: str) -> bool:
    """Return whether `*` alone matches a path; each access of a file asks several times."""
    return not (_is_of_interpreter(path) or _SYSTEM_FILE.match(path))


def _is_of_interpreter(path: str) -> bool:
    """Return whether a path is in a folder of this Python, or is one of the folders above.

    An import of a package looks for its files there: thousands of calls for torch.
    """
    inside, above = _interpreter_folders()
    return path in above or path.startswith(inside)


@cache
def _interpreter_folders() -> tuple[tuple[str, ...], frozenset[str]]:
    """Return Python's folders, each with a slash behind, and all folders above them."""
    found = {sys.base_prefix, sys.prefix} - {"/usr", "/"}
    above = frozenset(str(each) for path in found for each in PurePath(path).parents)
    return tuple(f"{each}/" for each in found), above | found


_observers: list[FileObserver] = []
_originals = contextlib.ExitStack()
"""Puts back the replaced functions. One for the process, which has one `open`."""


@contextlib.contextmanager
def observing_files(observer: FileObserver, more_modules: Iterable[object] = ()) -> Iterator[None]:
    """Report to `observer` the calls on files within the block.

    Args:
        more_modules: Modules of the test that are not in `sys.modules`. Names that the user's own
            modules have imported are replaced there as well.
    """
    if not _observers:
        opened = _make_open(io.open)
        observed = {name: _observed(getattr(os, name), call) for name, call in _OS_CALLS.items()}
        globber = path_globber()
        held = {name for name in observed if getattr(globber, name, None) is getattr(os, name)}
        replaced: list[tuple[Namespace, str, object]] = [
            (builtins, "open", opened),
            (io, "open", opened),
            *((os, name, function) for name, function in observed.items()),
            *((globber, name, staticmethod(observed[name])) for name in held),
        ]
        pairs = [(getattr(os, name), function) for name, function in observed.items()]
        back = [(new, old) for old, new in pairs]
        replace_names(pairs, more_modules, spares=_is_installed)
        _originals.callback(replace_names, back, more_modules, spares=_is_installed)
        for module, name, function in replaced:
            _originals.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, function)
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
        _listening.cache_clear()  # which keeps observers
        if not _observers:
            _originals.close()


def _is_installed(file: str) -> bool:
    """Whether a module is built in, Python's or of an installed package: there are thousands."""
    return file == "None" or "-packages/" in file or "/lib/python3" in file


def is_observing() -> bool:
    """Return whether there is an observer of calls on files."""
    return bool(_observers)


def reported(call: IoCall, path: str) -> None:
    """Report a call on a file that this rank is about to make where calls are not intercepted."""
    __tracebackhide__ = True
    if _observers and (found := _path_of(path)):
        _before(call, found, makes=True)


Listening = tuple[tuple[FileObserver, str, str], ...]
"""Each observer of a call, with the path that it observes and the other path of the call."""


@lru_cache(maxsize=4096)
def _listening(
    observers: tuple[FileObserver, ...], calls: frozenset[str], paths: tuple[str, ...]
) -> Listening:
    """Return the observers of a call on `paths`, each with the first path that it observes.

    Remembered, because a program that saves makes the same few calls again and again, and to match
    their paths takes longer than all else.

    Args:
        calls: The kinds of calls, of which an observer observes at least one.
    """
    found = []
    for each in observers:
        path = next(filter(each.matches, paths), None) if calls & each.calls else None
        if path is not None:
            found.append((each, path, next((one for one in paths if one != path), "")))
    return tuple(found)


_ONE_CALL = {each: frozenset({each}) for each in IO_CALLS}


def _is_observed(path: str) -> bool:
    """Whether anything that a file object does is observed."""
    return bool(_listening(tuple(_observers), DATA_CALLS, (path,)))


def _before(call: IoCall, *paths: str, size: int = 0, makes: bool = False) -> int:
    """Call the observers of `paths` before a call; return how many bytes to move at most."""
    __tracebackhide__ = True
    access: FileAccess | None = None
    for each, path, other in _listening(tuple(_observers), _ONE_CALL[call], paths):
        if access is None or access.path != path or access.size != size:
            access = FileAccess(call, path, size, makes, other)
        limit = each.before(access)
        if limit is not None:
            size = min(size, limit) if size >= 0 else limit
    return size


def _after(call: IoCall, path: str, size: int) -> None:
    """Report to the observers of `path` how many bytes were moved."""
    for each, *_ in _listening(tuple(_observers), _ONE_CALL[call], (path,)):
        if each.after is not None:
            each.after(FileAccess(call, path, size))


class _ObservedFile(io.FileIO):
    """A raw file that reports its reads and writes.

    A subclass, because `io`'s buffered classes accept only real raw files.
    """

    observed_path = ""

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        size = _before("read", self.observed_path, size=len(view))
        count = super().readinto(view[:size])
        _after("read", self.observed_path, count or 0)
        return count

    def read(self, size: int | None = -1, /) -> Result:
        # By readinto() or readall(), unlike FileIO's own.
        return io.RawIOBase.read(self, -1 if size is None else size)

    def readall(self) -> Result:
        _before("read", self.observed_path, size=-1)
        data = super().readall()
        _after("read", self.observed_path, len(data or b""))
        return data

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        size = _before("write", self.observed_path, size=len(view))
        count = super().write(view[:size])
        _after("write", self.observed_path, count or 0)
        return count


def _path_of(file: object, folder: int | None = None) -> str | None:
    """Return the absolute path behind a path, a descriptor or an open file; None if it is none.

    Args:
        folder: The descriptor to which a relative path is relative.
    """
    try:
        if isinstance(file, PurePath):
            file = str(file)
        if isinstance(file, str) and file.startswith("/"):
            return _normal(file)
        file = getattr(file, "fileno", lambda: file)()
        if isinstance(file, int):
            path = os.readlink(f"/proc/self/fd/{file}")
            return path if path.startswith("/") else None
        base = os.readlink(f"/proc/self/fd/{folder}") if isinstance(folder, int) else ""
        return os.path.abspath(os.path.join(base, os.fsdecode(file)))  # type: ignore[arg-type]  # noqa: PTH100, PTH118
    except (OSError, TypeError, ValueError):
        return None


@lru_cache(maxsize=4096)
def _normal(path: str) -> str:
    """Return an absolute path without `.`, `..` and double slashes."""
    return os.path.normpath(path)


def _make_open(original: Function) -> Function:
    """Return an `open` whose files report their calls if they are observed."""

    @wraps(original)
    def open(  # noqa: A001 - it is open
        file: File,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,  # noqa: FBT001, FBT002 - as the original
        opener: Callable[[str, int], int] | None = None,
    ) -> Result:
        __tracebackhide__ = True
        path = _path_of(file)
        for_text = (encoding, errors, newline)
        is_refused = for_text != _NOT_FOR_TEXT if "b" in mode else buffering == 0
        if path is None or is_refused or not _is_observed(path):
            return original(file, mode, buffering, *for_text, closefd, opener)
        _before("open", path, makes="r" not in mode)
        raw = _ObservedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw.observed_path = path
        return _buffered(raw, mode, buffering, for_text)

    return open


_NOT_FOR_TEXT = (None, None, None)
"""Encoding, errors and newline of a binary file."""


def _buffered(
    raw: _ObservedFile,
    mode: str,
    buffering: int,
    for_text: tuple[str | None, str | None, str | None],
) -> Result:
    """Return the file object of `open` for `mode`, over `raw`."""
    if buffering == 0:
        return raw
    kind: Function = io.BufferedReader if "r" in mode else io.BufferedWriter
    if "+" in mode:
        kind = io.BufferedRandom
    file = kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return file
    text = io.TextIOWrapper(file, *for_text, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc] # open sets it as well
    return text


def _observed(original: Function, call: IoCall) -> Function:
    """Return a function of `os` that reports its calls on files that are observed."""

    @wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Result:  # noqa: ANN401 - as the original
        __tracebackhide__ = True
        if not any(call in each.calls for each in _observers):
            return original(*args, **kwargs)
        paths = _paths_of(call, args, kwargs)
        if call not in ("read", "write"):
            makes = call in _MAKING or (call == "open" and bool(args[1:] and args[1] & os.O_CREAT))
            _before(call, *paths, makes=makes)
        elif paths and _is_observed(paths[0]):
            return _transferred(original, call, paths[0], *args)
        found = original(*args, **kwargs)
        return _listing(paths[0], found) if call == "listdir" and paths else found

    return observed


def _listing(path: str, found: Result) -> Result:
    """Return the result of `listdir` or `scandir` as the observers of the folder show it."""
    changes = [each.listed for each in _observers if each.listed and each.matches(path)]
    if not changes:
        return found
    is_list = isinstance(found, list)
    by_name = {os.fsdecode(each if is_list else each.name): each for each in found}
    names: Sequence[str] = tuple(by_name)
    for change in changes:
        names = change(path, names)
    entries = [by_name[name] for name in names]
    return entries if is_list else _Entries(iter(entries))


@dataclass(frozen=True, slots=True)
class _Entries:
    """The result of `os.scandir`."""

    entries: Iterator[Result]

    def __iter__(self) -> Iterator[Result]:
        return self.entries

    def __next__(self) -> Result:
        return next(self.entries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: all entries have been read."""


def _paths_of(call: IoCall, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the absolute paths that a call of an `os` function uses, a new name first."""
    if call in ("rename", "link"):
        names = {**dict(zip(("src", "dst"), args, strict=False)), **kwargs}
        folder = names.get("dst_dir_fd", names.get("dir_fd"))
        given = [(names.get("dst"), folder), (names.get("src"), names.get("src_dir_fd"))]
    else:
        file = args[0] if args else kwargs.get("path", kwargs.get("fd", "."))
        given = [(file, kwargs.get("dir_fd"))]
    return [path for each in given if (path := _path_of(*each)) is not None]


def _transferred(
    original: Function,
    call: IoCall,
    path: str,
    descriptor: int,
    what: Buffer,  # for a read, how many bytes
    *rest: int,
) -> Result:
    """Read or write at most as many bytes as the observers allow."""
    if call == "read":
        data = original(descriptor, _before(call, path, size=what), *rest)
        _after(call, path, len(data))
        return data
    view = memoryview(what).cast("B")
    count = original(descriptor, view[: _before(call, path, size=len(view))], *rest)
    _after(call, path, count)
    return count
