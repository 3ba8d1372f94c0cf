"""Intercept calls of Python code: opens, reads and writes of files, and functions of points.

Nothing is replaced before there is an observer, and everything is put back after the last. For an
observed path, `open` returns a file object that reports its calls, and the functions of `os` that
take a descriptor look up its path (/proc/self/fd). Files that C and C++ code opens, maps or reads
are not seen: that takes the preloaded shim.
"""

from __future__ import annotations

import builtins
import contextlib
import difflib
import fnmatch
import importlib
import importlib.machinery
import inspect
import io
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

from pytest_multihost.model.errors import SettingError

Namespace = Any  # a module, a class, or an object that replaces a module in sys.modules
Function = Any  # a function, or a descriptor that makes one
File = Any  # a path, a descriptor, or an object that has one
Buffer = Any  # bytes, or an object with the buffer protocol

Call = Literal["open", "read", "write"]

SYSTEM_FILES = (
    *("/dev/*", "/proc/*", "/sys/*", "/etc/*", "/usr/lib*", "/usr/share/*", "*/lib/python3*"),
    *("*/????-packages/*", "*.py", "*.pyc", "*/.pytest_multihost/*", "*/.pytest_cache/*"),
)
"""Globs of what ``*`` alone leaves out: files of the kernel, Python and installed packages."""

_OS_CALLS: Mapping[str, Call] = {
    "open": "open",
    "read": "read",
    "pread": "read",
    "write": "write",
    "pwrite": "write",
    "fsync": "write",
}
"""Functions of `os` that are intercepted, and as what calls they are reported."""

_SYSTEM_FILE = re.compile("|".join(map(fnmatch.translate, SYSTEM_FILES)))


@dataclass(frozen=True, slots=True)
class FileAccess:
    """One call on an observed file, before or after it is made.

    Attributes:
        call: Which call.
        path: Absolute path of the file.
        size: Bytes asked for; afterwards, bytes moved; 0 for an open.
    """

    call: Call
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class FileObserver:
    """Callbacks for calls on files.

    Attributes:
        matches: Whether a path is observed.
        before: Called before each call; may wait, raise, or return how many bytes to move at most.
        after: Called after it.
    """

    matches: Callable[[str], bool]
    before: Callable[[FileAccess], int | None]
    after: Callable[[FileAccess], None]


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that says whether a path matches a glob; ``*`` matches slashes, too.

    A pattern that begins with neither ``/`` nor ``*`` matches in any directory. ``*`` alone leaves
    out `SYSTEM_FILES`.
    """
    if pattern == "*":
        return lambda path: not _SYSTEM_FILE.match(path)
    rooted = pattern if pattern.startswith(("/", "*")) else f"*/{pattern}"
    fits = re.compile(fnmatch.translate(rooted)).match
    return lambda path: fits(path) is not None


_observers: list[FileObserver] = []
_originals = contextlib.ExitStack()
"""Puts back what was replaced. One for the process, which has one `open`."""


@contextlib.contextmanager
def observing_files(observer: FileObserver) -> Iterator[None]:
    """Report to `observer` what is opened, read and written within the block."""
    if not _observers:
        opened = _make_open(io.open)
        replaced: list[tuple[Namespace, str, object]] = [
            (builtins, "open", opened),
            (io, "open", opened),
            *((os, name, _observed(getattr(os, name), call)) for name, call in _OS_CALLS.items()),
        ]
        for module, name, function in replaced:
            _originals.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, function)
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
        if not _observers:
            _originals.close()


def _is_observed(path: str) -> bool:
    return any(each.matches(path) for each in _observers)


def _before(call: Call, path: str, size: int = 0) -> int:
    """Call the observers of `path` before a call; return how many bytes to move at most."""
    access = FileAccess(call, path, size)
    for each in tuple(_observers):
        if each.matches(path) and (limit := each.before(access)) is not None:
            size = min(size, limit) if size >= 0 else limit
    return size


def _after(call: Call, path: str, size: int) -> None:
    """Report to the observers of `path` how many bytes were moved."""
    access = FileAccess(call, path, size)
    for each in tuple(_observers):
        if each.matches(path):
            each.after(access)


class _ObservedFile(io.FileIO):
    """A raw file that reports its reads and writes.

    A subclass, because `io`'s buffered classes accept only real raw files.
    """

    _path = ""

    def readinto(self, buffer: Buffer, /) -> int:
        view = memoryview(buffer).cast("B")
        size = _before("read", self._path, len(view))
        count = super().readinto(view[:size])
        _after("read", self._path, count or 0)
        return count

    def read(self, size: int | None = -1, /) -> Any:  # noqa: ANN401 - None where it would wait
        # By readinto() or readall(), unlike FileIO's own.
        return io.RawIOBase.read(self, -1 if size is None else size)

    def readall(self) -> Any:  # noqa: ANN401 - None where it would wait
        _before("read", self._path, -1)
        data = super().readall()
        _after("read", self._path, len(data or b""))
        return data

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        size = _before("write", self._path, len(view))
        count = super().write(view[:size])
        _after("write", self._path, count or 0)
        return count


def _path_of(file: object) -> str | None:
    """Return the absolute path behind a path, a descriptor or an open file; None if it is none."""
    try:
        file = getattr(file, "fileno", lambda: file)()
        if isinstance(file, int):
            path = os.readlink(f"/proc/self/fd/{file}")
            return path if path.startswith("/") else None
        return os.path.abspath(os.fsdecode(file))  # type: ignore[arg-type]  # noqa: PTH100
    except (OSError, TypeError, ValueError):
        return None


def _make_open(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `open` whose files report their calls where they are observed."""

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
    ) -> Any:  # noqa: ANN401 - as the original
        path = _path_of(file)
        for_text = (encoding, errors, newline)
        is_binary = "b" in mode
        is_refused = any(each is not None for each in for_text) if is_binary else buffering == 0
        if path is None or is_refused or not _is_observed(path):
            return original(file, mode, buffering, *for_text, closefd, opener)
        _before("open", path)
        raw = _ObservedFile(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw._path = path  # noqa: SLF001 - a class of this module
        return _buffered(raw, mode, buffering, for_text)

    return open


def _buffered(
    raw: _ObservedFile,
    mode: str,
    buffering: int,
    for_text: tuple[str | None, str | None, str | None],
) -> Any:  # noqa: ANN401 - what open returns
    """Return what `open` returns for `mode`, over `raw`."""
    if buffering == 0:
        return raw
    kinds = {"+": io.BufferedRandom, "r": io.BufferedReader}
    kind = next((kinds[sign] for sign in "+r" if sign in mode), io.BufferedWriter)
    file = kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return file
    text = io.TextIOWrapper(file, *for_text, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc] # open sets it as well
    return text


def _observed(original: Callable[..., Any], call: Call) -> Callable[..., Any]:
    """Return a function of `os` that reports its calls on files that are observed."""

    @wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the original
        file = args[0] if args else kwargs.get("path", kwargs.get("fd"))
        path = _path_of(file) if kwargs.get("dir_fd") is None else None
        if path is None or not _is_observed(path):
            return original(*args, **kwargs)
        if original.__name__ in ("open", "fsync"):
            _before(call, path)
            return original(*args, **kwargs)
        descriptor, what, *rest = args
        if call == "read":
            data = original(descriptor, _before(call, path, what), *rest)
            _after(call, path, len(data))
            return data
        view = memoryview(what).cast("B")
        count = original(descriptor, view[: _before(call, path, len(view))], *rest)
        _after(call, path, count)
        return count

    return observed


# Functions that points name


@dataclass(frozen=True, slots=True)
class CallTarget:
    """A function, and the namespace that holds it.

    Attributes:
        owner: The module or class.
        name: Its name there.
        function: What the namespace holds; of a method it is the descriptor, not what reading the
            attribute makes of it, so that it can be put back unchanged.
    """

    owner: Namespace
    name: str
    function: Function


def target_problem(target: str) -> str | None:
    """Return why `target` cannot be found, as far as is known without importing anything.

    Args:
        target: ``module:function`` or ``module:Class.method``.
    """
    module, _, path = target.partition(":")
    if module in sys.modules:
        try:
            _find(sys.modules[module], path)
        except SettingError as error:
            return str(error)
        return None
    search: Sequence[str] | None = None
    parts = module.split(".")
    for index, part in enumerate(parts):
        name = ".".join(parts[: index + 1])
        spec = importlib.machinery.PathFinder.find_spec(name, search)
        if spec is None and name not in sys.modules and name not in sys.builtin_module_names:
            siblings = [each.name for each in pkgutil.iter_modules(search)]
            parent = f"{'.'.join(parts[:index])}." if index else ""
            siblings += [] if parent else [each for each in sys.modules if "." not in each]
            return f"there is no module {name!r}{_nearest(part, siblings, parent)}"
        search = spec.submodule_search_locations if spec else None
    return None


def load_target(target: str) -> CallTarget:
    """Import the module of `target` and return its function.

    Raises:
        SettingError: There is none; names the nearest.
    """
    module, _, path = target.partition(":")
    if problem := target_problem(target):
        raise SettingError(problem)
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise SettingError(f"the module {module!r} cannot be imported", seen=repr(error)) from error
    return _find(found, path)


def _find(module: Namespace, path: str) -> CallTarget:
    """Return the function at `path` in `module`.

    Raises:
        SettingError: There is none; names the nearest.
    """
    owner = found = module
    parts = path.split(".")
    for index, part in enumerate(parts):
        owner, where = found, ".".join(parts[:index])
        if not hasattr(owner, part):
            name = getattr(module, "__name__", module)
            namespace = f"{name}{f':{where}' if where else ''}"
            prefix = f"{where}." if where else ""
            nearest = _nearest(part, dir(owner), prefix)
            raise SettingError(f"there is no {part!r} in {namespace}{nearest}")
        found = getattr(owner, part)
    if isinstance(found, type):
        raise SettingError(f"{path!r} is a class: name a method of it, as {path + '.__init__'!r}")
    if not callable(found):
        raise SettingError(f"{path!r} cannot be called: it is {type(found).__name__}")
    if isinstance(owner, type):
        found = inspect.getattr_static(owner, parts[-1], found)
    return CallTarget(owner, parts[-1], found)


def _nearest(name: str, names: Iterable[str], prefix: str) -> str:
    near = difflib.get_close_matches(name, list(names), n=3)
    return f"; the nearest: {', '.join(prefix + each for each in near)}" if near else ""
