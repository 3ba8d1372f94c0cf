"""Ask where a process is, in its Python code, without stopping it.

py-spy reads another process's memory while it goes on. That takes a few tenths of a second of
processor time, so it is asked seldom, beside whatever else is done, and only for what is shown.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Any

from pytest_multihost.model.stack import Frame
from pytest_multihost.model.user_code import innermost_user_frame
from pytest_multihost.watch.probes.pyspy import py_spy

ASK_S = 5.0
"""How far two questions are apart."""


@dataclass(slots=True)
class Places:
    """Finds the user's line in which a process's main thread is. Close it in the end.

    Attributes:
        clock: The time in seconds.
    """

    clock: Callable[[], float] = time.monotonic
    _spy: str | None = field(default_factory=py_spy)
    _asked_s: float = float("-inf")
    _asked: int | None = None
    _process: subprocess.Popen[bytes] | None = None
    _answer: IO[bytes] | None = None
    _found: tuple[int, Frame | None] | None = None

    def place(self, pid: int) -> Frame | None:
        """Return the last answer for `pid`, if there is one, and ask again if it is old."""
        self._take_answer()
        if self._process is None and self.clock() >= self._asked_s + ASK_S:
            self._ask(pid)
        return self._found[1] if self._found is not None and self._found[0] == pid else None

    def _ask(self, pid: int) -> None:
        self._asked, self._asked_s = pid, self.clock()
        if self._spy is None:
            return
        command = [self._spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
        with contextlib.suppress(OSError):
            # a file: nobody reads while it writes, and a pipe could be too small
            self._answer = tempfile.TemporaryFile()  # noqa: SIM115 - closed by whoever takes it
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._answer,
                stderr=subprocess.DEVNULL,
            )

    def _take_answer(self) -> None:
        process, pid, answer = self._process, self._asked, self._answer
        if process is None or pid is None or answer is None or process.poll() is None:
            return
        answer.seek(0)
        self._found = pid, _place(answer.read(), pid)
        self._forget()

    def close(self) -> None:
        """Ask no more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def _forget(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._process = self._answer = None


def _place(answer: bytes, pid: int) -> Frame | None:
    """Return the user's innermost frame in the main thread, from what py-spy has printed."""
    with contextlib.suppress(ValueError, LookupError, TypeError):
        threads: Sequence[Mapping[str, Any]] = json.loads(answer)
        main = next(each for each in threads if each["os_thread_id"] == pid)
        frames = [Frame(each["filename"], each["line"], each["name"]) for each in main["frames"]]
        return innermost_user_frame(frames)
    return None
