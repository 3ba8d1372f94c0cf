"""Record what a rank does with files in native code, and the locks of files that it tries for."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, update_wrapper
from types import ModuleType
from typing import Any

from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.fault import IoCall
from pytest_multihost.core.model.operation import Scope
from pytest_multihost.core.nemesis.interpose import is_observing, reported
from pytest_multihost.core.rank.recorder.calls import replace_code
from pytest_multihost.core.rank.recorder.recorder import Recorder, after_import
from pytest_multihost.core.rank.recorder.torch_groups import Function
from pytest_multihost.core.torch_private import archive_writer_class

# Record that a rank tries again and again for the lock of a file that another process holds.
#
# Between two tries such a rank sleeps and has often closed the file, so the kernel does not show
# that it waits. All tries for one lock are one record: it begins with the first that failed and
# ends with the last; its sequence is their number, 0 once one has succeeded. So it is never open,
# and no proof relies on it.


_HELD = frozenset({errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK})
"""Errors of a try for a lock that somebody else holds."""


def record_file_locks(recorder: Recorder) -> None:
    """Record the failing tries of `fcntl.flock` and `fcntl.lockf` on the main thread."""
    tries = _Tries(recorder)
    fcntl.flock = tries.recorded(fcntl.flock)
    fcntl.lockf = tries.recorded(fcntl.lockf)


@dataclass(slots=True)
class _Tries:
    """The tries for the lock that this rank was refused last.

    Attributes:
        recorder: Writes the record.
        lock: Which lock it is; None if the last try for it succeeded.
        record: Its record in the slot page.
        began_ns: When that began: a record that began at another time is no longer this one.
        number: How many tries for it have failed.
    """

    recorder: Recorder
    lock: Scope | None = None
    record: int = 0
    began_ns: int = 0
    number: int = 0

    def recorded(self, original: Function) -> Function:
        """Wrap one of the functions."""

        def recorded(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401 - as the original
            __tracebackhide__ = True
            try:
                result = original(*args, **kwargs)
            except OSError as error:
                if error.errno in _HELD and threading.current_thread() is threading.main_thread():
                    with contextlib.suppress(
                        Exception
                    ):  # an error in recording is none of the test
                        self.refused(original.__name__, *args)
                raise
            if self.lock is not None and threading.current_thread() is threading.main_thread():
                with contextlib.suppress(Exception):
                    self.granted(original.__name__, *args)
            return result

        return update_wrapper(recorded, original)

    def refused(self, name: str, file: Any, _command: int, *span: int) -> None:  # noqa: ANN401
        """Record a try that failed; locks of a part of a file cannot be told apart later."""
        lock, page = _lock_of(name, file), self.recorder.page
        if any(span):
            return
        self.number = self.number + 1 if lock == self.lock else 1
        if self.number > 1 and page.count(self.record, self.began_ns, now_ns(), self.number):
            return
        path = os.readlink(f"/proc/self/fd/{_number(file)}")
        call = page.call(name, "wait", page.group(self.recorder.all_ranks, scope=lock))
        self.record = self.recorder.begin_call(call, self.number, page.detail(path))
        self.recorder.end(self.record)
        self.lock, self.began_ns = lock, page.began_ns(self.record)

    def granted(self, name: str, file: Any, _command: int, *_span: int) -> None:  # noqa: ANN401
        """Take note of a call that succeeded: the lock is this rank's, or given back."""
        if _lock_of(name, file) == self.lock:
            self.recorder.page.count(self.record, self.began_ns, now_ns(), 0)
            self.lock = None


def _lock_of(name: str, file: Any) -> Scope:  # noqa: ANN401 - a number, or what has one
    """Return the scope that says which lock it is, as /proc/locks does: device and inode."""
    found = os.fstat(_number(file))
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return Scope(name, f"{device}:{found.st_ino}")


def _number(file: Any) -> int:  # noqa: ANN401 - as above
    return file if isinstance(file, int) else int(file.fileno())


# Report the files of safetensors and tensorstore, which native code opens: they are points, too.
#
# They are reported where Python calls these libraries: before a file is opened or a store is read
# or written, and by the path that the caller has given. What they do within one call is not seen.


_FILE_URL = "file://"
_SAFETENSORS = ("torch", "numpy", "flax", "mlx", "tensorflow", "paddle")

Store = Any
"""An object of tensorstore's, or what is given to it: JSON or a spec."""

PathOf = Callable[..., str | None]
"""Returns the path that a call is about, from its arguments; None if it is no file."""


def report_native_files() -> None:
    """Report what this process does with these libraries from now on, if they are imported."""
    for name in _SAFETENSORS:
        after_import(f"safetensors.{name}", _wrap_safetensors)
    after_import("tensorstore", _wrap_tensorstore)


def _reporting(calls: tuple[IoCall, ...], path_of: PathOf, original: Function) -> Function:
    def wrapped(*args: object, **kwargs: object) -> object:
        __tracebackhide__ = True
        if is_observing():
            path = None
            with contextlib.suppress(Exception):  # what the library will refuse
                path = path_of(*args, **kwargs)
            for call in calls if path else ():
                reported(call, path or "")
        return original(*args, **kwargs)

    return wrapped


def _wrap_safetensors(module: ModuleType) -> None:
    replace_code(module.save_file, partial(_reporting, ("open", "write"), partial(_filename, 1)))
    replace_code(module.load_file, partial(_reporting, ("open", "read"), partial(_filename, 0)))


def _filename(place: int, *args: object, **kwargs: object) -> str:
    path: Any = kwargs["filename"] if "filename" in kwargs else args[place]
    return os.fsdecode(path)


def _wrap_tensorstore(module: ModuleType) -> None:
    opens = _reporting(("open",), _opened_path, module.open)
    module.open = opens  # type: ignore[attr-defined]
    for name, call in (("read", "read"), ("write", "write")):
        original = getattr(module.TensorStore, name)
        wrapped = _reporting((call,), _path_of_store, original)  # type: ignore[arg-type]
        setattr(module.TensorStore, name, wrapped)


def _opened_path(spec: Store, *_: object, **__: object) -> str | None:
    return next(_paths_in(spec if isinstance(spec, dict | str) else spec.to_json()), None)


def _path_of_store(store: Store, *_: object, **__: object) -> str | None:
    return next(_paths_in(store.kvstore.spec().to_json()), None)


def _paths_in(spec: object) -> Iterator[str]:
    """Yield the paths of files in the JSON of a spec: those of the store that all others lie in."""
    if isinstance(spec, str) and spec.startswith(_FILE_URL):
        yield spec.removeprefix(_FILE_URL).partition("|")[0]
    elif isinstance(spec, dict) and spec.get("driver") == "file":
        yield str(spec["path"])
    elif isinstance(spec, dict):
        for key in ("kvstore", "base"):
            yield from _paths_in(spec.get(key))


# Report the files that `torch.save` writes in C++, so that they are points like all others.


def report_files(serialization: ModuleType) -> None:
    """Report that such a file is about to be opened, and about to be written to its end.

    Args:
        serialization: The module `torch.serialization`.
    """
    writer = archive_writer_class(serialization)
    opening, closing = writer.__init__, writer.__exit__

    def __init__(self: object, name: str, *args: object) -> None:  # noqa: N807 - as the original
        reported("open", name)
        opening(self, name, *args)

    def __exit__(self: Any, *error: object) -> None:  # noqa: ANN401, N807 - as the original
        if not any(error):
            reported("write", self.name)
        closing(self, *error)

    writer.__init__ = update_wrapper(__init__, opening)
    writer.__exit__ = update_wrapper(__exit__, closing)
