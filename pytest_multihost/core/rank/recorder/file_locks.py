"""Record that a rank tries again and again for the lock of a file that another process holds.

Between two tries such a rank sleeps and has often closed the file, so the kernel does not show
that it waits. All tries for one lock are one record: it begins with the first that failed and
ends with the last; its sequence is their number, 0 once one has succeeded. So it is never open,
and no proof relies on it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import threading
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any

from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.operation import Scope
from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_groups import Function

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
