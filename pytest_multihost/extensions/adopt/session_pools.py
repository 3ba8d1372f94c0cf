"""Runs the tasks of a pool that a suite keeps for all its tests on ranks.

Such a pool is made in a hook of the suite's conftest, before the first test, and its first tasks
prepare its processes, say for a process group. It starts no process as long as it need not: these
tasks are kept, and each rank begins with its own of them. A call with one task for each process
then runs on ranks, and returns their results, or raises the exception of a task.
"""

from __future__ import annotations

import multiprocessing.pool
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, Self

from pytest_multihost.core.pytest_plugin.calls import (
    Answers,
    call_problems,
    hung_error,
    note_call,
    run_call,
)
from pytest_multihost.core.pytest_plugin.tally import RUNNING
from pytest_multihost.extensions.adopt.refusals import Refusals

Tasks = Sequence[Sequence[Any]]
"""The arguments of each task."""


@contextmanager
def replacing(refusals: Refusals) -> Iterator[list[SessionPool]]:
    """Replace the pools that are made while no test runs; yield the list of them."""
    made: list[SessionPool] = []
    module: Any = multiprocessing.pool
    real = module.Pool

    def make(cls: type, processes: int | None = None, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        if cls is not stand_in or RUNNING or processes is None:
            return object.__new__(cls)  # also of a library's own class of pools
        initializer, initargs = (*args, None, None)[:2]
        first = options.get("initializer", initializer)
        given = tuple(options.get("initargs", initargs) or ())
        pool = SessionPool(partial(real, processes, *args, **options), processes, refusals)
        if first is not None:
            pool.first = lambda: first(*given)
        made.append(pool)
        return pool

    stand_in = type(real.__name__, (real,), {"__new__": make})
    module.Pool = stand_in
    try:
        yield made
    finally:
        module.Pool = real


@dataclass(frozen=True, slots=True)
class _Raised:
    """The exception of a task."""

    error: BaseException


@dataclass(slots=True)
class SessionPool:
    """A pool of processes of the suite's.

    Attributes:
        make: Makes the real pool.
        size: Number of processes.
        refusals: Says why a call runs in the real pool.
        first: Called first in each process.
        adopted: Number of calls that ran on ranks.
        prepared: The work of its processes before the first test.
    """

    make: Callable[[], Any]
    size: int
    refusals: Refusals
    first: Callable[[], object] = bool
    adopted: int = 0
    prepared: list[tuple[Callable[..., Any], Tasks]] = field(default_factory=list)
    _real: Any = None

    def starmap(
        self,
        func: Callable[..., Any],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> Sequence[Any]:
        """Run a task for each tuple of arguments; return the results.

        Raises:
            BaseException: The exception of a task.
            CallHungError: The tasks hang.
        """
        __tracebackhide__ = True
        tasks = [tuple(each) for each in iterable]
        if not RUNNING and self._real is None:
            self.prepared.append((func, tasks))
            return _Results(self, len(self.prepared) - 1)
        if why := self._why_not(tasks):
            self.refusals.add("a pool of the session", why)
            return list(self.started().starmap(func, tasks, chunksize))
        return self._run(func, tasks)

    def map(
        self, func: Callable[..., Any], iterable: Iterable[Any], chunksize: int | None = None
    ) -> Sequence[Any]:
        """Run a task for each argument; return the results."""
        __tracebackhide__ = True
        return self.starmap(func, [(each,) for each in iterable], chunksize)

    def close(self) -> None:
        """Take no more tasks."""
        if self._real is not None:
            self._real.close()

    def join(self) -> None:
        """Wait for the processes, if any has been started."""
        if self._real is not None:
            self._real.join()

    def terminate(self) -> None:
        """End the processes, if any has been started."""
        if self._real is not None:
            self._real.terminate()

    def __enter__(self) -> Self:
        """Return the pool."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes."""
        self.terminate()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return anything else of the real pool."""
        return getattr(self.started(), name)

    def started(self) -> Any:  # noqa: ANN401
        """Return the real pool, which has done all that prepares it."""
        if self._real is None:
            self._real = self.make()
            for function, tasks in self.prepared:
                self._real.starmap(function, tasks)
        return self._real

    def _why_not(self, tasks: Tasks) -> str:
        if self._real is not None:
            return "its processes have been started for another call"
        if len(tasks) != self.size:
            return f"{len(tasks)} tasks for {self.size} processes, so any may get several"
        if any(len(each) != self.size for _, each in self.prepared):
            return "what prepared its processes was not one task for each"
        return next(iter(call_problems()), "")

    def _run(self, function: Callable[..., Any], tasks: Tasks) -> list[Any]:
        __tracebackhide__ = True
        with TemporaryDirectory(prefix="multihost-") as folder:
            answers = Answers(folder)

            def run(rank: int) -> None:
                try:
                    self.first()
                    for prepare, own in self.prepared:
                        prepare(*own[rank])
                    answers.give(rank, function(*tasks[rank]))
                except BaseException as error:
                    _give(answers, rank, error)
                    raise

            attempt = run_call(run, self.size)
            found = [answers.of(rank) for rank in range(self.size)]
        self.adopted += 1
        finding = attempt.judged.finding
        if finding.status in ("passed", "xpassed"):
            return found
        if finding.outcome == "hung":
            raise hung_error(attempt)
        note_call(attempt)
        raised = {rank: each for rank, each in enumerate(found) if isinstance(each, _Raised)}
        ended = raised.get(finding.headline or 0, next(iter(raised.values()), None))
        raise hung_error(attempt) if ended is None else ended.error


def _give(answers: Answers, rank: int, error: BaseException) -> None:
    """Pass on the exception of a task; only its text if it cannot be pickled."""
    try:
        answers.give(rank, _Raised(error))
    except Exception:  # noqa: BLE001 - __reduce__ may raise anything
        answers.give(rank, _Raised(RuntimeError(f"{type(error).__name__}: {error}")))


@dataclass(frozen=True, slots=True)
class _Results(Sequence[Any]):
    """The results of tasks that only prepare processes, until the suite asks for them."""

    pool: SessionPool
    number: int

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.pool.prepared[self.number][1])

    def __getitem__(self, index: Any) -> Any:  # noqa: ANN401
        """Return the result of a task."""
        function, tasks = self.pool.prepared[self.number]
        return list(self.pool.started().starmap(function, tasks))[index]
