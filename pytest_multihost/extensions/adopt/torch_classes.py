"""Adopts torch's test classes that start a process for each rank, recognised by their methods.

They are `MultiProcessTestCase` with its subclasses (`DistributedTestBase`, `DTensorTestBase`,
`FSDPTest`, the suites of rpc), and `MultiProcContinuousTest`, whose processes serve a whole class.
"""

from __future__ import annotations

import inspect
import os
import queue
import tempfile
import unittest
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_multihost.core.model.errors import SettingError, WorldBrokenError
from pytest_multihost.core.rank import World, current_world
from pytest_multihost.extensions.adopt.adopted import Adopted, Refused
from pytest_multihost.extensions.adopt.processes import ProcessGroup
from pytest_multihost.hookspecs import hookimpl

_CASE = ("_start_processes", "_join_processes", "_run", "MAIN_PROCESS_RANK")
_CONTINUOUS = ("_spawn_processes", "_worker_loop", "_worker_run_main_wait", "MAIN_PROCESS_RANK")
_LISTENER, _LOOP = "_event_listener", "_worker_loop"
_OF_RANKS = ("RANK", "LOCAL_RANK")
"""Variables that torchrun sets, and the processes of these classes do not have."""

_THREADS = ("_spawn_threads", "_join_threads")
_ONE_PROCESS = "_get_local_tensor_mode"


@hookimpl
def pytest_multihost_adopt(item: pytest.Item) -> Adopted | Refused | None:
    """Adopt the tests of such classes."""
    cls = getattr(item, "cls", None)
    if not isinstance(cls, type) or not issubclass(cls, unittest.TestCase):
        return None
    if _has(cls, _THREADS):
        return Refused("its ranks are threads of one process")
    enter = _enter_case if _has(cls, _CASE) else _enter_continuous
    if not _has(cls, _CASE) and not _has(cls, _CONTINUOUS):
        return None
    if hasattr(cls, _ONE_PROCESS):
        return Refused("one process plays all its ranks")
    try:
        size = int(_world_size(cls, item.name))
    except Exception as error:  # noqa: BLE001 - a property of the suite's
        return Refused(f"its world_size cannot be read ({type(error).__name__})")
    if size < 1:
        return Refused("its world_size is the number of devices, and here is none")
    return Adopted(ranks=size, enter=enter)


def _has(cls: type, names: tuple[str, ...]) -> bool:
    return all(hasattr(cls, name) for name in names)


def _world_size(cls: Any, name: str) -> Any:  # noqa: ANN401 - an int, or the text of a variable
    """Return the world's size, as the class computes it in the parent process."""
    if isinstance(inspect.getattr_static(cls, "world_size"), property):
        return cls(name).world_size
    return cls.world_size


def _enter_case(item: pytest.Item) -> None:
    """Make a class start stand-ins for its processes."""
    cls: Any = item.cls  # type: ignore[attr-defined]
    group = ProcessGroup(current_world())
    for name in _OF_RANKS:
        os.environ.pop(name, None)
    start = cls._start_processes

    def start_processes(self: object, _: object) -> None:
        start(self, group.process)

    cls._start_processes = start_processes
    for each in cls.__mro__:
        # The listener waits for requests of the parent, which is this process, in a thread.
        if _LISTENER in vars(each):
            setattr(each, _LISTENER, staticmethod(lambda *_: None))


def _enter_continuous(item: pytest.Item) -> None:
    """Make a class run its worker's loop here, for one test."""
    cls: Any = item.cls  # type: ignore[attr-defined]
    world = current_world()

    def spawn(own: Any, world_size: int) -> None:  # noqa: ANN401 - a class of the suite's
        if world_size != world.size:
            raise SettingError(f"the class starts {world_size} processes in {world.size} ranks")
        tasks: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        own.task_queues, own.completion_queues = [tasks], [_Worker(world, own, tasks)]
        own.processes = [SimpleNamespace(join=lambda: None)]
        own.rdvz_file = world.inherit(tempfile.mkstemp()[1])

    cls._spawn_processes = classmethod(spawn)


@dataclass(frozen=True, slots=True)
class _Worker:
    """The queue of results of one worker, which runs when the class asks it for a result.

    Attributes:
        tasks: Has the test's id.
    """

    world: World
    cls: Any
    tasks: queue.SimpleQueue[str | None]

    def get(self, timeout: float | None = None) -> object:  # noqa: ARG002 - the world has its own
        """Run the worker's loop for the test; return the result in its queue.

        Raises:
            Exception: The one of this rank's test.
        """
        results: queue.SimpleQueue[object] = queue.SimpleQueue()
        self.tasks.put(None)
        world, run = self.world, getattr(self.cls, _LOOP)
        run(world.rank, world.size, self.cls.rdvz_file, self.tasks, results)
        ended = results.get_nowait()
        if isinstance(ended, BaseException) and not isinstance(ended, unittest.SkipTest):
            cause = ended.__cause__
            raise ended if cause is None or isinstance(cause, unittest.SkipTest) else cause
        ends = [ended]
        with suppress(WorldBrokenError):  # the failure of another rank is reported anyway
            ends = world.gather(ended, "end of the test")
        return next((each for each in ends if isinstance(each, unittest.SkipTest)), ended)
