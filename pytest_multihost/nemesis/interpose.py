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
import io
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal

from pytest_multihost.model.errors import SettingError

Open = Callable[..., Any]
"""`open` or one like it."""

Namespace = Any
"""A module, a class, or an object that replaces a module in sys.modules."""

Buffer = Any
"""Bytes, or an object with the buffer protocol."""

File = Any
"""A path, a descriptor, or an object that has one."""


Call = Literal["open", "read", "write"]

SYSTEM_FILES = (
    *("/dev/*", "/proc/*", "/sys/*", "/etc/*", "/usr/lib*", "/usr/share/*", "*/lib/python3*"),
    *("*/????-packages/*", "*.py", "*.pyc", "*/.pytest_multihost/*", "*/.pytest_cache/*"),
)
"""Globs of what ``*`` alone leaves out: files of the kernel, Python and installed packages."""

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
    rooted = pattern if pattern.startswith(("/", "*")) else f"*/{pattern}"
    fits = re.compile(fnmatch.translate(rooted)).match
    if pattern != "*":
        return lambda path: fits(path) is not None
    return lambda path: not _SYSTEM_FILE.match(path)


_observers: list[FileObserver] = []
_originals = contextlib.ExitStack()
"""Puts back what was replaced. One for the process, which has one `open`."""


@contextlib.contextmanager
def observing_files(observer: FileObserver) -> Iterator[None]:
    """Report to `observer` what is opened, read and written within the block."""
    if not _observers:
        _replace_functions()
    _observers.append(observer)
    try:
        yield
    finally:
        _observers.remove(observer)
        if not _observers:
            _originals.close()


def _replace_functions() -> None:
    opened = _make_open(io.open)
    replaced: dict[tuple[Namespace, str], object] = {
        (builtins, "open"): opened,
        (io, "open"): opened,
        (os, "open"): _os_open(os.open),
        **{(os, name): _os_read(getattr(os, name)) for name in ("read", "pread")},
        **{(os, name): _os_write(getattr(os, name)) for name in ("write", "pwrite")},
        (os, "fsync"): _os_sync(os.fsync),
    }
    for (module, name), function in replaced.items():
        _originals.callback(setattr, module, name, getattr(module, name))
        setattr(module, name, function)


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
        if size is None or size < 0:
            return self.readall()
        size = _before("read", self._path, size)
        data = super().read(size)
        _after("read", self._path, len(data or b""))
        return data

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
    """Return the absolute path behind a path or a descriptor; None if it is no file."""
    try:
        if isinstance(file, int):
            path = os.readlink(f"/proc/self/fd/{file}")
            return path if path.startswith("/") else None
        return os.path.abspath(os.fsdecode(file))  # type: ignore[arg-type]  # noqa: PTH100
    except (OSError, TypeError, ValueError):
        return None


def _make_open(original: Open) -> Open:
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


def _os_open(original: Callable[..., int]) -> Callable[..., int]:
    @wraps(original)
    def opened(path: File, *args: object, **kwargs: object) -> int:
        name = _path_of(path) if kwargs.get("dir_fd") is None else None
        if name is not None and _is_observed(name):
            _before("open", name)
        return original(path, *args, **kwargs)

    return opened


def _os_read(original: Callable[..., bytes]) -> Callable[..., bytes]:
    @wraps(original)
    def read(descriptor: int, size: int, *args: int) -> bytes:
        path = _path_of(descriptor)
        if path is None or not _is_observed(path):
            return original(descriptor, size, *args)
        data = original(descriptor, _before("read", path, size), *args)
        _after("read", path, len(data))
        return data

    return read


def _os_write(original: Callable[..., int]) -> Callable[..., int]:
    @wraps(original)
    def write(descriptor: int, data: Buffer, *args: int) -> int:
        path = _path_of(descriptor)
        if path is None or not _is_observed(path):
            return original(descriptor, data, *args)
        view = memoryview(data).cast("B")
        count = original(descriptor, view[: _before("write", path, len(view))], *args)
        _after("write", path, count)
        return count

    return write


def _os_sync(original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def sync(file: File) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        path = _path_of(descriptor)
        if path is not None and _is_observed(path):
            _before("write", path)
        original(file)

    return sync


# Functions that points name

Function = Any
"""A function, or a descriptor that makes one."""


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
            return _no_module(name, part, search)
        search = spec.submodule_search_locations if spec else None
    return None


def _no_module(name: str, part: str, search: Sequence[str] | None) -> str:
    parent = name.rpartition(".")[0]
    siblings = [each.name for each in pkgutil.iter_modules(search)]
    if not parent:
        siblings += [each for each in sys.modules if "." not in each]
    prefix = f"{parent}." if parent else ""
    return f"there is no module {name!r}{_nearest(part, siblings, prefix)}"


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
    owner: Namespace = module
    parts = path.split(".")
    for index, part in enumerate(parts):
        where = ".".join(parts[:index])
        if not hasattr(owner, part):
            name = getattr(module, "__name__", module)
            namespace = f"{name}{f':{where}' if where else ''}"
            prefix = f"{where}." if where else ""
            nearest = _nearest(part, dir(owner), prefix)
            raise SettingError(f"there is no {part!r} in {namespace}{nearest}")
        if index < len(parts) - 1:
            owner = getattr(owner, part)
    found = getattr(owner, parts[-1])
    if isinstance(found, type):
        happened = f"{path!r} is a class: name a method of it, as {path + '.__init__'!r}"
        raise SettingError(happened)
    if not callable(found):
        raise SettingError(f"{path!r} cannot be called: it is {type(found).__name__}")
    return CallTarget(owner, parts[-1], _raw_attribute(owner, parts[-1]))


def _raw_attribute(owner: Namespace, name: str) -> Function:
    """Return what a namespace holds under `name`, without binding it as getattr() does."""
    for each in getattr(owner, "__mro__", (owner,)):
        if name in vars(each):
            return vars(each)[name]
    return getattr(owner, name)  # of a module with __getattr__


def _nearest(name: str, names: Iterable[str], prefix: str) -> str:
    near = difflib.get_close_matches(name, list(names), n=3)
    return f"; the nearest: {', '.join(prefix + each for each in near)}" if near else ""
