"""Every open, read and write of Python's passes here while somebody watches files.

`open` returns a file of ours over the same descriptor for a path that is watched, and the calls of
`os` that take a descriptor look up what it is. What C and C++ code opens, maps or reads is not
seen: that takes the preloaded library. Nothing is replaced while nobody watches.
"""

from __future__ import annotations

import builtins
import contextlib
import fnmatch
import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Literal

Call = Literal["open", "read", "write"]


@dataclass(frozen=True, slots=True)
class Access:
    """One call on a watched file, about to happen or over.

    Attributes:
        call: What is done.
        path: Absolute path of the file.
        size: Bytes asked for, or moved once it is over; 0 of an open.
    """

    call: Call
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Watcher:
    """Somebody who watches files.

    Attributes:
        matches: Whether a path is watched.
        before: Called before each call; may wait, raise, or return how many bytes to move at most.
        after: Called when it is over.
    """

    matches: Callable[[str], bool]
    before: Callable[[Access], int | None]
    after: Callable[[Access], None]


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return whether a path matches a glob, where ``*`` also stands for slashes.

    A pattern that begins with neither ``/`` nor ``*`` matches in any directory. ``*`` alone leaves
    out what belongs to Python, to installed packages and to the kernel.
    """
    rooted = pattern if pattern.startswith(("/", "*")) else f"*/{pattern}"
    fits = re.compile(fnmatch.translate(rooted)).match
    if pattern != "*":
        return lambda path: fits(path) is not None
    return lambda path: not _NOBODYS.search(path)


_NOBODYS = re.compile(
    r"^/(proc|sys|dev|usr/lib|usr/share|etc)/|/(site|dist)-packages/|/lib/python3|\.pyc?$"
    r"|/\.pytest_(multihost|cache)/"
)


@dataclass(slots=True)
class Files:
    """Who watches, and what was replaced for it."""

    watchers: list[Watcher] = field(default_factory=list)
    _originals: list[tuple[Any, str, Any]] = field(default_factory=list)

    def watch(self, watcher: Watcher) -> None:
        """Have `watcher` see what is opened, read and written from now on."""
        if not self.watchers:
            self._replace()
        self.watchers.append(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        """End what `watch` began; the last to leave puts everything back."""
        self.watchers.remove(watcher)
        if not self.watchers:
            self._put_back()

    def is_watched(self, path: str) -> bool:
        """Whether anybody watches `path`."""
        return any(each.matches(path) for each in self.watchers)

    def before(self, call: Call, path: str, size: int = 0) -> int:
        """Let who watches `path` act; return how many bytes to move at most."""
        access = Access(call, path, size)
        for each in tuple(self.watchers):
            if each.matches(path) and (limit := each.before(access)) is not None:
                size = min(size, limit) if size >= 0 else limit
        return size

    def after(self, call: Call, path: str, size: int = 0) -> None:
        """Let who watches `path` see what has been moved."""
        access = Access(call, path, size)
        for each in tuple(self.watchers):
            if each.matches(path):
                each.after(access)

    def _replace(self) -> None:
        opened = _opening(self, io.open)
        self._put(builtins, "open", opened)
        self._put(io, "open", opened)
        self._put(os, "open", _os_open(self, os.open))
        for name in ("read", "pread"):
            self._put(os, name, _os_read(self, getattr(os, name)))
        for name in ("write", "pwrite"):
            self._put(os, name, _os_write(self, getattr(os, name)))
        self._put(os, "fsync", _os_sync(self, os.fsync))

    def _put(self, module: Any, name: str, value: object) -> None:  # noqa: ANN401 - a module
        self._originals.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    def _put_back(self) -> None:
        while self._originals:
            module, name, original = self._originals.pop()
            setattr(module, name, original)


FILES = Files()
"""A process has one `open`."""


@contextlib.contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Have `watcher` see what is opened, read and written within the block."""
    FILES.watch(watcher)
    try:
        yield
    finally:
        FILES.unwatch(watcher)


class _Raw(io.FileIO):
    """A file whose reads and writes are seen. It inherits as `io`'s buffers take nothing else."""

    _path = ""

    def readinto(self, buffer: Any, /) -> int:  # noqa: ANN401 - any buffer
        view = memoryview(buffer).cast("B")
        size = FILES.before("read", self._path, len(view))
        count = super().readinto(view[:size])
        FILES.after("read", self._path, count or 0)
        return count

    def read(self, size: int | None = -1, /) -> Any:  # noqa: ANN401 - None where it would wait
        if size is None or size < 0:
            return self.readall()
        size = FILES.before("read", self._path, size)
        data = super().read(size)
        FILES.after("read", self._path, len(data or b""))
        return data

    def readall(self) -> Any:  # noqa: ANN401 - None where it would wait
        FILES.before("read", self._path, -1)
        data = super().readall()
        FILES.after("read", self._path, len(data or b""))
        return data

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        view = memoryview(data).cast("B")
        size = FILES.before("write", self._path, len(view))
        count = super().write(view[:size])
        FILES.after("write", self._path, count or 0)
        return count


def _path_of(file: object) -> str | None:
    """Return the absolute path of what is named by a path or a descriptor, if it is a file."""
    try:
        if isinstance(file, int):
            path = os.readlink(f"/proc/self/fd/{file}")
            return path if path.startswith("/") else None
        return os.path.abspath(os.fsdecode(file))  # type: ignore[arg-type]  # noqa: PTH100
    except (OSError, TypeError, ValueError):
        return None


def _opening(files: Files, original: Callable[..., Any]) -> Callable[..., Any]:
    """Return an `open` whose files are seen where they are watched."""

    @wraps(original)
    def open(  # noqa: A001 - it is open
        file: Any,  # noqa: ANN401 - path or descriptor
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
        if path is None or is_refused or not files.is_watched(path):
            return original(file, mode, buffering, *for_text, closefd, opener)
        files.before("open", path)
        raw = _Raw(file, mode.replace("b", "").replace("t", ""), closefd, opener)
        raw._path = path  # noqa: SLF001 - ours
        return _buffered(raw, mode, buffering, for_text)

    return open


def _buffered(
    raw: _Raw, mode: str, buffering: int, for_text: tuple[str | None, str | None, str | None]
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


def _os_open(files: Files, original: Callable[..., int]) -> Callable[..., int]:
    @wraps(original)
    def opened(path: Any, *args: Any, **kwargs: Any) -> int:  # noqa: ANN401 - as the original
        name = _path_of(path) if kwargs.get("dir_fd") is None else None
        if name is not None and files.is_watched(name):
            files.before("open", name)
        return original(path, *args, **kwargs)

    return opened


def _os_read(files: Files, original: Callable[..., bytes]) -> Callable[..., bytes]:
    @wraps(original)
    def read(descriptor: int, size: int, *args: int) -> bytes:
        path = _path_of(descriptor)
        if path is None or not files.is_watched(path):
            return original(descriptor, size, *args)
        data = original(descriptor, files.before("read", path, size), *args)
        files.after("read", path, len(data))
        return data

    return read


def _os_write(files: Files, original: Callable[..., int]) -> Callable[..., int]:
    @wraps(original)
    def write(descriptor: int, data: Any, *args: int) -> int:  # noqa: ANN401 - any buffer
        path = _path_of(descriptor)
        if path is None or not files.is_watched(path):
            return original(descriptor, data, *args)
        view = memoryview(data).cast("B")
        count = original(descriptor, view[: files.before("write", path, len(view))], *args)
        files.after("write", path, count)
        return count

    return write


def _os_sync(files: Files, original: Callable[..., None]) -> Callable[..., None]:
    @wraps(original)
    def sync(file: Any) -> None:  # noqa: ANN401 - a descriptor, or what has one
        descriptor = file if isinstance(file, int) else file.fileno()
        path = _path_of(descriptor)
        if path is not None and files.is_watched(path):
            files.before("write", path)
        original(file)

    return sync
