"""Which ranks of a world run, which wait in the exchange, and whether the world hangs; no I/O.

At most a few ranks run at a time; the others that may go on are ready. That is only a matter of
speed: a rank that is blocked elsewhere, or runs for long, lends its place to another.

A world hangs if every rank waits here with all of its threads, or has returned from the test, and
none is ready. Nothing can then launch an operation, so none can end. This is exact: no timer is
involved. A rank that waits elsewhere, or whose other threads still work, counts as running.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import Counter, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from pytest_multihost.extensions.simulated.launches import Completion, SimulatedLaunch
from pytest_multihost.extensions.simulated.link import Threads

Thread = int
"""Identifies a thread of a rank."""


@dataclass(slots=True)
class ThreadWait:
    """One thread's wait.

    Attributes:
        numbers: The rank's launches that have not ended.
        request: The request to a store that waits for a key; None: it waits for launches.
        may_return: Whether it need not wait if no other rank can go on.
        error: Why it has ended unfulfilled; empty: it has not.
    """

    rank: int
    thread: Thread
    numbers: set[int] = field(default_factory=set)
    request: tuple[str, Sequence[object]] | None = None
    may_return: bool = False
    expires_s: float = math.inf
    error: str = ""
    is_over: bool = False


@dataclass(slots=True)
class _EndedLaunches:
    """The launches of one rank that have ended.

    A rank may know of an end before the thread that waits for it asks.

    Attributes:
        below: All with a smaller number have ended.
        untold: The ends that the rank does not know yet.
    """

    below: int = 1
    others: set[int] = field(default_factory=set)
    untold: list[Completion] = field(default_factory=list)

    def add(self, completion: Completion) -> None:
        """Add an end."""
        self.untold.append(completion)
        self.others.add(completion.number)
        while self.below in self.others:
            self.others.discard(self.below)
            self.below += 1

    def has(self, number: int) -> bool:
        """Return whether a launch has ended."""
        return number < self.below or number in self.others


@dataclass(frozen=True, slots=True)
class Hang:
    """A world in which nothing can move.

    Attributes:
        waiting: The ranks that wait here, with the number of their threads that do.
        finished: The ranks that have returned from the test.
        own_threads: The harness's threads in each of these ranks.
    """

    waiting: dict[int, int]
    finished: Collection[int]
    own_threads: dict[int, int]


@dataclass(slots=True)
class Waits:
    """The state of all ranks.

    Attributes:
        places: How many ranks may run at a time.
        ready: Threads that may go on, in the order in which they became ready.
    """

    size: int
    places: int
    ready: deque[ThreadWait] = field(default_factory=deque)
    _threads: dict[int, Threads] = field(default_factory=dict)
    _parked: dict[Thread, ThreadWait] = field(default_factory=dict)
    _asking: dict[Thread, ThreadWait] = field(default_factory=dict)
    _yielding: dict[Thread, ThreadWait] = field(default_factory=dict)
    _expiries: list[tuple[float, int, ThreadWait]] = field(default_factory=list)
    _limits: list[tuple[float, int, SimulatedLaunch]] = field(default_factory=list)
    _counter: itertools.count[int] = field(default_factory=itertools.count)
    _parked_of: Counter[int] = field(default_factory=Counter)
    _of_launch: dict[tuple[int, int], ThreadWait] = field(default_factory=dict)
    _ended: dict[int, _EndedLaunches] = field(default_factory=dict)
    _running: set[int] = field(default_factory=set)
    _lending: set[int] = field(default_factory=set)
    _finished: set[int] = field(default_factory=set)
    _lost: set[int] = field(default_factory=set)

    @property
    def running(self) -> Collection[int]:
        """The ranks that run, except lenders of their place."""
        return self._running - self._lending - self._finished

    def moves(self, rank: int, threads: Threads | None = None) -> None:
        """Note that a rank has sent a message, and so is not blocked elsewhere.

        Args:
            threads: Its threads, if it has said how many it has.
        """
        self._lending.discard(rank)
        self._finished.discard(rank)
        if threads is not None:
            self._threads[rank] = threads

    def lend(self, rank: int) -> None:
        """Let another rank run in the place of a rank blocked elsewhere."""
        self._lending.add(rank)

    def finish(self, rank: int, threads: Threads) -> None:
        """Note that a rank has returned from the test; another of its threads may still work."""
        self.moves(rank, threads)
        if threads.alive <= 1 + self._parked_of[rank]:
            self._finished.add(rank)

    def lose(self, rank: int, thread: Thread) -> None:
        """Note that a thread of a rank is gone."""
        ready = [each for each in self.ready if each.thread == thread]
        for wait in ready:
            self.ready.remove(wait)
        if (parked := self._parked.get(thread)) is not None:
            self._forget(parked)
        self._parked_of[rank] -= len(ready) + (parked is not None)

    def find_rank(self, rank: int) -> None:
        """Note that the process of a rank is there; after an exec, once more."""
        self._lost.discard(rank)

    def lose_rank(self, rank: int) -> None:
        """Note that the process of a rank has ended."""
        self._lost.add(rank)
        self._running.discard(rank)

    def end(self, completions: Sequence[Completion]) -> None:
        """Take the ends of operations; threads that have waited for them become ready."""
        for each in completions:
            self._ended.setdefault(each.rank, _EndedLaunches()).add(each)
            wait = self._of_launch.pop((each.rank, each.number), None)
            if wait is not None:
                wait.numbers.discard(each.number)
                if not wait.numbers:
                    self._wake(wait)

    def park(self, wait: ThreadWait) -> None:
        """Let a thread wait; it is ready at once if all that it waits for has ended."""
        rank = wait.rank
        self._parked[wait.thread] = wait
        if wait.request is not None:
            self._asking[wait.thread] = wait
        if wait.may_return:
            self._yielding[wait.thread] = wait
        if wait.expires_s < math.inf:
            heapq.heappush(self._expiries, (wait.expires_s, next(self._counter), wait))
        self._parked_of[rank] += 1
        if self._parked_of[rank] >= self._threads[rank].alive:
            self._running.discard(rank)
        if (ended := self._ended.get(rank)) is not None:
            wait.numbers = {each for each in wait.numbers if not ended.has(each)}
        if wait.request is None and not wait.numbers:
            self._wake(wait)
        for each in wait.numbers:
            self._of_launch[rank, each] = wait

    def wake(self, wait: ThreadWait, error: str = "") -> None:
        """Make a thread ready whose wait is over for another reason."""
        wait.error = error
        self._wake(wait)

    def expire(self, wait: ThreadWait) -> None:
        """Make a thread ready whose timeout has struck."""
        self.wake(wait, "" if wait.may_return else "timeout")

    def wait_of(self, thread: Thread) -> ThreadWait | None:
        """Return the wait of a thread; None if it does not wait."""
        return self._parked.get(thread)

    def _wake(self, wait: ThreadWait) -> None:
        self._forget(wait)
        self.ready.append(wait)

    def _forget(self, wait: ThreadWait) -> None:
        wait.is_over = True
        for kind in (self._parked, self._asking, self._yielding):
            kind.pop(wait.thread, None)
        for each in wait.numbers:
            self._of_launch.pop((wait.rank, each), None)

    def next_ready(self, *, beyond: int = 0) -> ThreadWait | None:
        """Return a thread that goes on now; None if none is ready or no place is free.

        Args:
            beyond: How many more ranks may run than there are places.
        """
        if not self.ready:
            return None
        if self.ready[0].rank not in self._running and len(self.running) >= self.places + beyond:
            return None
        wait = self.ready.popleft()
        self._parked_of[wait.rank] -= 1
        self._running.add(wait.rank)
        return wait

    def take_ended(self, rank: int) -> list[Completion]:
        """Return the ends of operations that a rank does not know yet."""
        if (ended := self._ended.get(rank)) is None:
            return []
        found, ended.untold = ended.untold, []
        return found

    def parked(self) -> list[ThreadWait]:
        """Return all waits that are not over."""
        return list(self._parked.values())

    def asking(self) -> list[ThreadWait]:
        """Return the waits for keys of stores."""
        return list(self._asking.values())

    def yielding(self) -> list[ThreadWait]:
        """Return the waits that need not go on if no other rank can."""
        return list(self._yielding.values())

    def expired(self, now_s: float) -> list[ThreadWait]:
        """Return the waits whose timeout has struck."""
        found = []
        while self._expiries and (self._expiries[0][2].is_over or self._expiries[0][0] <= now_s):
            wait = heapq.heappop(self._expiries)[2]
            if not wait.is_over:
                found.append(wait)
        return found

    def limit(self, launch: SimulatedLaunch, expires_s: float) -> None:
        """Record when the timeout of an operation strikes, whether a thread waits for it or not."""
        heapq.heappush(self._limits, (expires_s, next(self._counter), launch))

    def struck(self, now_s: float) -> list[SimulatedLaunch]:
        """Return the operations that have not ended, and whose own timeout has struck."""
        found = []
        while self._limits and (self._has_ended(self._limits[0][2]) or self._limits[0][0] <= now_s):
            launch = heapq.heappop(self._limits)[2]
            if not self._has_ended(launch):
                found.append(launch)
        return found

    def _has_ended(self, launch: SimulatedLaunch) -> bool:
        ended = self._ended.get(launch.rank)
        return ended is not None and ended.has(launch.number)

    @property
    def next_expiry_s(self) -> float:
        """When the next timeout strikes; infinite if none does."""
        while self._expiries and self._expiries[0][2].is_over:
            heapq.heappop(self._expiries)
        while self._limits and self._has_ended(self._limits[0][2]):
            heapq.heappop(self._limits)
        return min(
            (each[0][0] for each in (self._expiries, self._limits) if each), default=math.inf
        )

    @property
    def are_all_still(self) -> bool:
        """Whether no rank runs or is ready: each waits here, has returned or has ended."""
        return (
            not self.ready and self._running <= self._finished and len(self._threads) == self.size
        )

    def hang(self) -> Hang | None:
        """Return how the world hangs; None if something may still move, or a rank has ended."""
        if not self.are_all_still or self._lost or self._yielding:
            return None
        waiting = {rank: count for rank, count in self._parked_of.items() if count}
        if not waiting.keys() - self._finished:
            return None
        for rank in range(self.size):
            threads = self._threads[rank]
            expected = self._parked_of[rank] + (rank in self._finished)
            if threads.has_timer or threads.alive != expected:
                return None
        return Hang(
            waiting,
            frozenset(self._finished),
            {rank: each.own for rank, each in self._threads.items()},
        )
