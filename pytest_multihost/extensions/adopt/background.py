"""Runs ranks while the test's own function goes on: `start_processes(join=False)`.

A thread of pytest's process follows their world. The test may still cause the events that the ranks
wait for, so nothing is judged, and no time counts, except while the test waits for the ranks
without a timeout. The test gets torch's own `ProcessContext`, over stand-ins for its processes.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import connection
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Any

from pytest_multihost.core import files
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import Event
from pytest_multihost.core.outcome import RankFacts
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.calls import (
    Answers,
    PreparedCall,
    exit_code,
    hung_error,
    note_call,
    prepare_call,
    raise_findings,
)
from pytest_multihost.core.pytest_plugin.item import add_results
from pytest_multihost.core.services import Action, Opening, Service, ServiceKind, Turn
from pytest_multihost.extensions.adopt.groups import exit_code_of

_TASKS = Path("/proc/self/task")
_TURN_S = 0.25
_PROOF_S = 3.0
"""How long a test that has failed waits for the proof that its ranks hang."""

_KILLED = -int(signal.SIGKILL)


@dataclass(slots=True)
class WaitingTest:
    """The test's function, as a service of the world of its ranks.

    Attributes:
        timeout_s: The time that the ranks have while the test waits for them.
        changed: Called after each change of the facts.
        is_over: The test needs its ranks no more.
        facts: The last facts about each rank.
        threads: The threads of pytest's process that do nothing for the ranks.
    """

    timeout_s: float
    changed: Callable[[], None]
    is_over: bool = False
    facts: tuple[RankFacts, ...] = ()
    threads: frozenset[str] | None = None
    _waits: str = "all"  # until they run
    _begun: int = 0
    _noted: int = 0
    _turn_s: float | None = None
    _waited: list[tuple[float, float]] = field(default_factory=list)
    _limited_s: float = 0.0

    @contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Wait for ranks in the body.

        Args:
            what: "all": the first rank that fails ends the wait; "one": for one rank; "limited":
                for some time only.
        """
        before, began_s = self._waits, monotonic()
        self._begun += not before
        self._waits = before or what
        try:
            yield
        finally:
            self._waits = before
            if what == "limited" and not before:
                self._limited_s += monotonic() - began_s

    def goes_on(self) -> None:
        """Note that the ranks run, and the test does not wait for them."""
        self.threads = frozenset(os.listdir(_TASKS))
        self._waits = ""

    @property
    def _is_waiting(self) -> bool:
        """Whether nothing but the ranks can end the test's wait.

        A test that waits for one rank may have ended another on purpose.
        """
        has_died = any(each.has_died for each in self.facts)
        return self._waits == "all" or (self._waits == "one" and not has_died)

    @property
    def _may_judge(self) -> bool:
        """Whether the test waits, and all snapshots are younger than its wait."""
        return self._is_waiting and self._noted == self._begun

    def service(self) -> Service:
        """Return the world's service."""
        return Service(
            name="test",
            interval_s=lambda: _TURN_S,
            after=self._after,
            due=self._due,
            is_acting=lambda _: not self._may_judge,
            only_observes=True,
            permits_proof=lambda _: self._may_judge and self._is_alone(),
            check=self._check,
            held_s=self._held_s,
        )

    def _check(self) -> None:
        if self.is_over:
            raise LaunchError("the test's function is over, and its ranks still run")

    def _is_alone(self) -> bool:
        """Whether the test has no further thread, which might do something for the ranks."""
        return self.threads is None or self.threads.issuperset(os.listdir(_TASKS))

    def _after(self, _event: Event, facts: Sequence[RankFacts]) -> Sequence[Action]:
        self.facts = tuple(facts)
        self.changed()
        return ()

    def _due(self, turn: Turn) -> Sequence[Action]:
        last_s = turn.now if self._turn_s is None else self._turn_s
        if self._is_waiting:
            is_same = bool(self._waited) and self._waited[-1][1] == last_s
            first_s = self._waited.pop()[0] if is_same else last_s
            self._waited.append((first_s, turn.now))
        self._turn_s = turn.now
        self.facts = tuple(turn.facts)
        self.changed()
        before, self._noted = self._noted, self._begun
        return [Action(moves_at_s=turn.now)] if before != self._noted else ()

    def _held_s(self, since_s: float, until_s: float) -> float:
        """Return for how long the test did not wait; 0 once all its limits make its timeout."""
        if self._limited_s > self.timeout_s:
            return 0.0
        turn_s = until_s if self._turn_s is None else self._turn_s
        waited = [*self._waited, (turn_s, until_s)] if self._is_waiting else self._waited
        overlaps = (min(last, until_s) - max(first, since_s) for first, last in waited)
        return max(0.0, until_s - since_s - sum(each for each in overlaps if each > 0))


@dataclass(slots=True, eq=False)
class RankHandle:
    """A stand-in for the `multiprocessing.Process` that a rank is.

    Attributes:
        sentinel: A file descriptor that can be read once the process has ended.
    """

    name: str
    daemon: bool
    sentinel: int
    _world: Background
    _rank: int

    @property
    def pid(self) -> int | None:
        """The process's id."""
        return self._facts.pid

    ident = pid

    @property
    def exitcode(self) -> int | None:
        """Its exit code, negative for a signal; None: it runs."""
        facts = self._facts
        if not facts.is_gone and not self._world.is_over:
            return None
        code = exit_code(facts)
        return code or self._world.answers.of(self._rank, _KILLED if code is None else 0)

    @property
    def _facts(self) -> RankFacts:
        return self._world.test.facts[self._rank]

    def is_alive(self) -> bool:
        """Return whether it runs."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended, at most for a time in seconds."""
        with self._world.test.waiting("one" if timeout is None else "limited"):
            connection.wait([self.sentinel], timeout)

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.is_alive() and self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


@dataclass(slots=True)
class Background:
    """The ranks that a test has started, and that run while it goes on.

    Attributes:
        call: Starts them.
        answers: The exit codes of their functions.
        folder: Has the answers, and the tracebacks.
        is_over: Whether their world has ended.
        attempt: Their world, once it has been reported.
    """

    call: PreparedCall
    answers: Answers
    size: int
    folder: TemporaryDirectory[str]
    is_over: bool = False
    attempt: CompletedAttempt | None = None
    test: WaitingTest = field(init=False)
    _ended: CompletedAttempt | None = None
    _error: BaseException | None = None
    _pipes: list[tuple[int, int]] = field(default_factory=list)
    _signalled: set[int] = field(default_factory=set)
    _begun: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        """Make its service, pipes and thread."""
        self.test = WaitingTest(self.call.plan.world.timeout_s, self._changed)
        self.test.facts = tuple(RankFacts(rank) for rank in range(self.size))
        self._pipes = [os.pipe() for _ in range(self.size)]
        self._thread = threading.Thread(target=self._follow, name="multihost ranks", daemon=True)

    def start(self) -> None:
        """Start the ranks, and return when they run.

        Raises:
            BaseException: Their world could not begin.
        """
        self._thread.start()
        while not self._begun.wait(0.02) and self._thread.is_alive():
            pass
        if self._error is not None:
            raise self._error
        self.test.goes_on()

    def handles(self, *, daemon: bool) -> list[RankHandle]:
        """Return a stand-in for each process."""
        return [
            RankHandle(f"rank {rank}", daemon, self._pipes[rank][0], self, rank)
            for rank in range(self.size)
        ]

    def kind(self) -> ServiceKind:
        """Return the kind of the service that the test is for its world."""

        def open_service(_: Opening) -> Service:
            return self.test.service()

        return ServiceKind(name="test", open=open_service, is_implied=True)

    def _follow(self) -> None:
        """Run the world, in a thread."""
        try:
            self._ended = self.call.run_world()
        except BaseException as error:  # noqa: BLE001 - it belongs to the test's thread
            self._error = error
        else:
            self.test.facts = tuple(each.facts for each in self._ended.judged.finding.ranks)
        self.is_over = True
        self._changed()

    def _changed(self) -> None:
        """Make the sentinels of ended ranks readable, which wakes up the test."""
        facts = self.test.facts
        if all(each.has_begun for each in facts):
            self._begun.set()
        for each in facts:
            if (each.is_gone or self.is_over) and each.rank not in self._signalled:
                self._signalled.add(each.rank)
                os.write(self._pipes[each.rank][1], b"x")

    def join(self, real: Callable[..., bool], *args: Any, **options: Any) -> bool:  # noqa: ANN401
        """Take the place of the method of torch's `ProcessContext`.

        Raises:
            CallHungError: The ranks hang.
        """
        __tracebackhide__ = True
        timeout_s = options.get("timeout", args[0] if args else None)
        try:
            with self.test.waiting("all" if timeout_s is None else "limited"):
                are_over = real(*args, **options)
        except Exception as error:
            attempt = self.report()
            rank = getattr(error, "error_index", None)
            ended = [each for each in self.test.facts if each.was_ended]
            if attempt.judged.finding.outcome == "hung" and any(e.rank == rank for e in ended):
                raise hung_error(attempt) from None
            if attempt.judged.result.ending in ("lost", "startup-overrun"):
                note_call(attempt)
            raise
        if are_over and self.attempt is None:
            raise_findings(self.report())
        return are_over

    def report(self) -> CompletedAttempt:
        """Wait for the end of the world, and add its results to the test's report, once.

        Raises:
            BaseException: The world could not be run.
        """
        self._thread.join()
        if self._ended is None:
            raise self._error or LaunchError("the ranks are gone")
        if self.attempt is None:
            self.attempt = self._ended
            add_results(self.call.item, self.attempt)
        return self.attempt

    def end(self, *, is_failed: bool) -> None:
        """End the ranks, because the test's function is over.

        Args:
            is_failed: Whether it has failed, so that a proof of a hang belongs in its report.
        """
        if is_failed and self._thread.is_alive():
            with self.test.waiting("all"):
                self._thread.join(_PROOF_S)
        is_late = self._thread.is_alive()
        self.test.is_over = True
        self._thread.join()
        is_reported = self.attempt is not None or self._ended is None
        if not is_reported and (attempt := self.report()) and is_failed and not is_late:
            note_call(attempt)

    def close(self) -> None:
        """Close the sentinels, once the test's fixtures are gone."""
        for ends in self._pipes:
            for each in ends:
                os.close(each)
        self.folder.cleanup()


@dataclass(slots=True)
class Backgrounds:
    """The worlds that the test that runs has started, and has not joined at once."""

    worlds: list[Background] = field(default_factory=list)
    _begins: list[ServiceKind] = field(default_factory=list)

    def problem(self) -> str:
        """Return why the test cannot start one now; empty if it can."""
        is_running = any(not each.is_over for each in self.worlds)
        return "ranks of an earlier call with join=False still run" if is_running else ""

    def kinds(self) -> Sequence[ServiceKind]:
        """Return the services of a world that begins now."""
        return self._begins

    def start(
        self, fn: Callable[..., object], args: Sequence[Any], nprocs: int, *, daemon: bool
    ) -> Any:  # noqa: ANN401 - torch's
        """Start ranks; return torch's `ProcessContext`."""
        folder = TemporaryDirectory(prefix="multihost-")
        errors = [str(Path(folder.name, f"error-{rank}.pickle")) for rank in range(nprocs)]
        answers = Answers(folder.name)

        def run(rank: int) -> None:
            work = (fn, rank, args, errors[rank])
            process = multiprocessing.get_context("fork").Process(target=_run, args=work)
            answers.give(rank, exit_code_of(process))

        call = prepare_call(run, nprocs, leaves=True)
        world = Background(call, answers, nprocs, folder)
        self._begins = [world.kind()]
        try:
            world.start()
        finally:
            self._begins = []
            self.worlds.append(world)
        context = sys.modules["torch.multiprocessing.spawn"].ProcessContext(
            world.handles(daemon=daemon), errors
        )
        real = context.join
        context.join = lambda *args, **options: world.join(real, *args, **options)
        return context

    def end(self, *, is_failed: bool) -> None:
        """End the ranks that still run, because the test's function is over."""
        for each in self.worlds:
            each.end(is_failed=is_failed)

    def close(self) -> None:
        """Forget them: the test is over."""
        for each in self.worlds:
            each.close()
        self.worlds.clear()


def _run(fn: Callable[..., object], rank: int, args: Sequence[Any], error_file: str) -> None:
    """Run the function of a rank as torch does: the parent reads its traceback from a file."""
    try:
        fn(rank, *args)
    except KeyboardInterrupt:
        pass  # sent by the parent
    except Exception:  # noqa: BLE001 - of the test
        files.write(Path(error_file), pickle.dumps(traceback.format_exc()))
        traceback.print_exc()
        sys.exit(1)
