"""Runs groups of `multiprocessing.Process` that a test starts and joins on ranks.

A process that a test starts waits here, if the test's next step is to join it. With the first join,
all that wait become the ranks of one world, in the order of their start. The visible state of a
process is then as the ranks have ended: its exit code, and that it has ended. A hanging one is
alive until the test terminates it, if the test has a timeout of its own for that; else the test
fails with the verdict.
"""

from __future__ import annotations

import multiprocessing.process
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory
from typing import Any

from pytest_multihost.core.cpython_private import get_frame, run_as_child
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.pytest_plugin.calls import (
    Answers,
    call_problems,
    exit_code,
    hung_error,
    note_call,
    run_call,
)
from pytest_multihost.extensions.adopt.joined import why_not_joined
from pytest_multihost.extensions.adopt.refusals import Refusals

_Process = multiprocessing.process.BaseProcess
_SEEN = ("exitcode", "pid", "ident", "sentinel")
_REPLACED = ("start", "join", "is_alive", "terminate", "kill", *_SEEN)
_POOLS = ("multiprocessing.pool", "concurrent.futures.process")
_KEEPS = "its processes keep what earlier tasks leave; make it in pytest_sessionstart"
_WAITING = "waits for the first join"


@dataclass(slots=True)
class _Ended:
    """How a process of a group has ended, as the test sees it.

    Attributes:
        code: Its exit code; None: it hangs.
        pid: The process that its rank was.
    """

    code: int | None
    pid: int


@dataclass(slots=True)
class StartedProcesses:
    """The processes that the test that runs has started.

    Attributes:
        refusals: Says why processes start as before.
        adopted: Number of groups that ran on ranks.
    """

    refusals: Refusals
    adopted: int = 0
    _waiting: list[Any] = field(default_factory=list)
    _states: dict[int, str | _Ended] = field(default_factory=dict)
    _kept: list[Any] = field(default_factory=list)
    _real: Mapping[str, Any] = field(default_factory=dict)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Replace the state and methods of processes, while a test runs."""
        real = self._real = {name: getattr(_Process, name) for name in _REPLACED}
        seen = {name: property(self._seen(name)) for name in _SEEN}
        calls = {name: self._ending(name) for name in ("terminate", "kill")}
        own = {"start": self._start(), "join": self._join(), "is_alive": self._is_alive()}
        try:
            for name, each in (own | seen | calls).items():
                setattr(_Process, name, each)
            yield
            self._begin_really()
        finally:
            for name, before in real.items():
                setattr(_Process, name, before)
            self._waiting.clear()
            self._kept.clear()
            self._states.clear()

    def _start(self) -> Callable[[Any], None]:
        def start(process: Any) -> None:  # noqa: ANN401 - of any context
            caller = get_frame(1)
            file = caller.f_code.co_filename
            if is_library(file) or (why := self._why_not(file, caller.f_lineno)):
                if caller.f_globals.get("__name__") in _POOLS:
                    self.refusals.add("a pool", _KEEPS)
                elif not is_library(file):
                    self.refusals.add("multiprocessing.Process", why)
                self._begin_really()
                self._real["start"](process)
                return
            self._waiting.append(process)
            self._states[id(process)] = _WAITING
            self._kept.append(process)  # its id stays its own

        return start

    def _why_not(self, file: str, line: int) -> str:
        problems = call_problems()
        return problems[0] if problems else why_not_joined(file, line)

    def _begin_really(self) -> None:
        """Start the processes that wait, because the test looks at one before it joins them."""
        for each in self._waiting:
            del self._states[id(each)]
            self._real["start"](each)
        if self._waiting:
            self.refusals.add("multiprocessing.Process", "the test looks at one before it joins it")
        self._waiting.clear()

    def _join(self) -> Callable[..., None]:
        def join(process: Any, timeout: float | None = None) -> None:  # noqa: ANN401
            __tracebackhide__ = True
            state = self._states.get(id(process))
            if state is None:
                self._real["join"](process, timeout)
            elif state == _WAITING:
                self._run(timeout)

        return join

    def _run(self, timeout_s: float | None) -> None:
        """Run all that wait.

        Raises:
            CallHungError: One hangs, and the test would wait for ever.
        """
        __tracebackhide__ = True
        group = [*self._waiting]
        self._waiting.clear()
        self.adopted += 1
        with TemporaryDirectory(prefix="multihost-") as folder:
            answers = Answers(folder)

            def run(rank: int) -> None:
                answers.give(rank, exit_code_of(group[rank]))

            attempt = run_call(run, len(group), timeout_s=timeout_s, leaves=True)
            codes = [answers.of(rank) for rank in range(len(group))]
        for each, code, found in zip(group, codes, attempt.judged.finding.ranks, strict=True):
            ended = exit_code(found.facts) or code  # of a rank that has left, the function's
            self._states[id(each)] = _Ended(ended, found.facts.pid or 0)
            if timeout_s is None and ended is None:
                raise hung_error(attempt)
        note_call(attempt)

    def _is_alive(self) -> Callable[[Any], bool]:
        def is_alive(process: Any) -> bool:  # noqa: ANN401
            state = self._seen_state(process)
            return self._real["is_alive"](process) if state is None else state.code is None

        return is_alive

    def _seen(self, name: str) -> Callable[[Any], Any]:
        def read(process: Any) -> Any:  # noqa: ANN401
            state = self._seen_state(process)
            if state is None or name == "sentinel":
                return self._real[name].fget(process)
            return state.code if name == "exitcode" else state.pid

        return read

    def _seen_state(self, process: Any) -> _Ended | None:  # noqa: ANN401
        """Return how a process has ended; a waiting one begins now."""
        if self._states.get(id(process)) == _WAITING:
            self._begin_really()
        state = self._states.get(id(process))
        return state if isinstance(state, _Ended) else None

    def _ending(self, name: str) -> Callable[[Any], None]:
        number = signal.SIGKILL if name == "kill" else signal.SIGTERM

        def end(process: Any) -> None:  # noqa: ANN401
            state = self._seen_state(process)
            if state is None:
                self._real[name](process)
            elif state.code is None:
                state.code = -number

        return end


def exit_code_of(process: Any) -> int:  # noqa: ANN401 - of any context
    """Run a process's function in this rank; return the exit code, as `multiprocessing` has it."""
    try:
        run_as_child(process)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        sys.stderr.write(f"{ended.code}\n")
        return 1
    except BaseException:  # noqa: BLE001 - as there
        traceback.print_exc()
        return 1
    return 0
