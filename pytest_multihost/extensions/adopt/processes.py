"""Stand-ins, inside a rank, for the processes that a harness would start.

In a world, each rank runs the harness's own code for the parent process. Where the parent would
start the processes 0 to n-1, rank k takes the place of process k: it runs that one's function, with
the arguments of the primary.
"""

from __future__ import annotations

import os
import pickle
import unittest
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from pytest_multihost.core.model.errors import SettingError, WorldBrokenError
from pytest_multihost.core.rank import World


def own_arguments(world: World, given: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the arguments of this rank's process, as the primary hands them out.

    Objects that cannot be pickled remain this rank's own: pipes and queues, whose other ends are
    here.

    Args:
        given: The arguments of each process.
    """
    portable = [[_portable(each) for each in arguments] for arguments in given]
    parts = world.inherit(portable, "what processes inherit")[world.rank]
    return [
        own if not part else part[0] for own, part in zip(given[world.rank], parts, strict=True)
    ]


Call = Callable[[Callable[..., Any], Sequence[Any]], Any]
"""Calls the function of a process with its arguments."""


def call_plainly(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:  # noqa: ANN401
    """Call a function."""
    return function(*arguments)


def _portable(value: object) -> tuple[object, ...]:
    """Return a value that can be pickled, alone in a tuple; an empty one for any other.

    A pickled connection would name a descriptor of this process in another one, and close it.
    """
    if isinstance(value, Connection):
        return ()
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - __reduce__ may raise anything
        return ()
    return (value,)


@dataclass(slots=True)
class ProcessGroup:
    """The processes that one test starts, of which this rank runs one.

    Its function runs when the harness first asks how a process has ended.
    """

    world: World
    call: Call = call_plainly
    started: list[RankProcess] = field(default_factory=list)
    _codes: list[int] | None = None

    def process(self, *_: object, **options: Any) -> RankProcess:  # noqa: ANN401
        """Return a stand-in; takes the keywords of `multiprocessing.Process`."""
        return RankProcess(
            self,
            target=options["target"],
            args=tuple(options.get("args", ())),
            kwargs=dict(options.get("kwargs") or {}),
            name=options.get("name") or "",
        )

    def codes(self) -> list[int]:
        """Run this rank's process if it has not run yet; return all exit codes.

        Raises:
            SettingError: The test has not started one process for each rank.
            unittest.SkipTest: The first process has skipped the test.
            Exception: The one of this rank's process.
        """
        if self._codes is None:
            world = self.world
            if len(self.started) != world.size:
                started = len(self.started)
                raise SettingError(f"the test starts {started} processes in {world.size} ranks")
            self._codes = [0] * world.size  # in case the function asks
            own = self.started[world.rank]
            ended = own.run(own_arguments(world, [each.args for each in self.started]))
            ends = [ended] * world.size
            with suppress(WorldBrokenError):  # the failure of another rank is reported anyway
                ends = world.gather(ended, "end of the processes")
            self._codes = [code for code, _ in ends]
            if skipped := ends[0][1]:
                raise unittest.SkipTest(skipped)
        return self._codes


@dataclass(slots=True, eq=False)
class RankProcess:
    """A stand-in for `multiprocessing.Process`."""

    group: ProcessGroup
    target: Callable[..., object]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    name: str
    daemon: bool = True
    index: int = -1

    def start(self) -> None:
        """Take the next number."""
        self.index = len(self.group.started)
        self.group.started.append(self)

    def run(self, arguments: Sequence[Any]) -> tuple[int, str]:
        """Run the function; return its exit code, and the reason if it has skipped the test.

        Raises:
            Exception: The function's, also if the harness has turned it into an exit.
        """
        try:
            self.group.call(partial(self.target, **self.kwargs), arguments)
        except SystemExit as ended:
            cause, code = ended.__context__, _exit_code(ended)
            if isinstance(cause, unittest.SkipTest):
                return code, str(cause)
            if code and isinstance(cause, Exception):
                raise cause.with_traceback(cause.__traceback__) from None
            return code, ""
        return 0, ""

    @property
    def pid(self) -> int:
        """A number that no other process has."""
        return os.getpid() if self.index == self.group.world.rank else -1 - self.index

    @property
    def exitcode(self) -> int:
        """The exit code; waits for the end."""
        return self.group.codes()[self.index]

    def is_alive(self) -> bool:
        """Return False, after the end."""
        self.group.codes()
        return False

    def join(self, timeout: float | None = None) -> None:  # noqa: ARG002 - the world has its own
        """Wait for the end."""
        self.group.codes()

    def terminate(self) -> None:
        """Do nothing: the world ends its ranks."""

    kill = close = terminate


def _exit_code(ended: SystemExit) -> int:
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    return 1


@dataclass(slots=True)
class RankPool:
    """A stand-in for a pool of one process for each rank: a task of all is run by all."""

    world: World
    call: Call = call_plainly

    def starmap(self, function: Callable[..., Any], tasks: Iterable[Iterable[Any]]) -> list[Any]:
        """Run this rank's task; return the results of all."""
        world, given = self.world, [tuple(each) for each in tasks]
        if len(given) != world.size:
            raise SettingError(f"the test gives {len(given)} tasks to a pool of {world.size} ranks")
        own = self.call(function, own_arguments(world, given))
        found: list[Any] = [own] * world.size
        with suppress(WorldBrokenError):  # the failure of another rank is reported anyway
            found = world.gather(own, "results of the pool")
        return found

    def map(self, function: Callable[..., Any], tasks: Iterable[Any]) -> list[Any]:
        """Run this rank's task; return the results of all."""
        return self.starmap(function, [(each,) for each in tasks])

    def starmap_async(
        self, function: Callable[..., Any], tasks: Iterable[Iterable[Any]]
    ) -> PoolResult:
        """Return an object that runs this rank's task when it is asked for the results."""
        return PoolResult(lambda: self.starmap(function, tasks))

    def map_async(self, function: Callable[..., Any], tasks: Iterable[Any]) -> PoolResult:
        """Return an object that runs this rank's task when it is asked for the results."""
        return PoolResult(lambda: self.map(function, tasks))

    def close(self) -> None:
        """Do nothing: the ranks end with their world."""

    terminate = join = close


@dataclass(slots=True)
class PoolResult:
    """A stand-in for `multiprocessing.pool.AsyncResult`."""

    _run: Callable[[], list[Any]]

    def get(self, timeout: float | None = None) -> list[Any]:  # noqa: ARG002 - the world has its own
        """Run this rank's task; return the results of all."""
        return self._run()
