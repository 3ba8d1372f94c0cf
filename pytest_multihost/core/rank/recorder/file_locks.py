"""Record that a rank keeps trying to lock a file whose lock another process holds.

Between two tries such a rank sleeps, and it has often closed the file, so the kernel does not show
the wait. All tries for one lock are one record, which begins with the first failed try and ends
with the last. Its sequence is the number of failed tries, or 0 once a try has succeeded. So the
record is never open, and no proof relies on it.
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
"""Errors of a try for a lock that another process holds."""


def record_file_locks(recorder: Recorder) -> None:
    """Record the failing tries of `fcntl.flock` and `fcntl.lockf` on the main thread."""
    tries = _Tries(recorder)
    fcntl.flock = tries.recorded(fcntl.flock)
    fcntl.lockf = tries.recorded(fcntl.lockf)


@dataclass(slots=True)
class _Tries:
    """The tries for the lock that was last refused to this rank.

    Attributes:
        lock: None if the last try for it succeeded.
        record: Its record in the slot page.
        began_ns: When the record began. If the record now has another start, it was reused.
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
                    ):  # an error in recording must not fail the test
                        self.refused(original.__name__, *args)
                raise
            if self.lock is not None and threading.current_thread() is threading.main_thread():
                with contextlib.suppress(Exception):
                    self.granted(original.__name__, *args)
            return result

        return update_wrapper(recorded, original)

    def refused(self, name: str, file: Any, _command: int, *span: int) -> None:  # noqa: ANN401
        """Record a failed try; skip locks of a part of a file, which look alike later."""
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
        """Record a call that succeeded: this rank has taken or released the lock."""
        if _lock_of(name, file) == self.lock:
            self.recorder.page.count(self.record, self.began_ns, now_ns(), 0)
            self.lock = None


def _lock_of(name: str, file: Any) -> Scope:  # noqa: ANN401 - a descriptor, or an object with one
    """Return the scope of a lock, which names device and inode as /proc/locks does."""
    found = os.fstat(_number(file))
    device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
    return Scope(name, f"{device}:{found.st_ino}")


def _number(file: Any) -> int:  # noqa: ANN401 - as above
    return file if isinstance(file, int) else int(file.fileno())
