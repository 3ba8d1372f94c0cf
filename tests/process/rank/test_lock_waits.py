"""Which thread holds the lock that another one waits for, read from real threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from runs import await_that

from pytest_multihost.core.rank.lock_waits import lock_waits
from pytest_multihost.testing import LockHolder, LockWait


class Store:
    """Has a lock as an attribute, in a slot, and as the value of a property."""

    __slots__ = ("asked", "guard")

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.asked = 0

    @property
    def computed(self) -> threading.Lock:
        self.asked += 1
        return self.guard


class Threads:
    """Runs functions in threads, each of which comes to stand."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.started: list[threading.Thread] = []

    def run(self, function: Callable[[], object], name: str) -> None:
        thread = threading.Thread(target=function, name=name, daemon=True)
        self.started.append(thread)
        thread.start()

    def hold(self) -> None:
        """Stand at this line; the caller holds its locks meanwhile."""
        self.holding += 1
        self.stop.wait()

    holding = 0


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Threads that are all ended afterwards."""
    found = Threads()
    yield found
    found.stop.set()
    for each in found.started:
        each.join(10)
        assert not each.is_alive()


def wait_of(name: str) -> LockWait:
    """Return the wait of a thread, once it stands."""
    found: list[LockWait] = []

    def stands() -> bool:
        found[:] = [each for each in lock_waits(None) if each.thread == name]
        return bool(found)

    await_that(stands)
    return found[0]


def holder_of(wait: LockWait) -> str:
    """Return the name of the thread that holds the lock; empty if that is unknown."""
    return wait.holder.thread if wait.holder is not None else ""


def by_with(lock: threading.Lock, hold: Callable[[], None]) -> None:
    """Hold the lock by a `with`."""
    with lock:
        hold()


def by_finally(lock: threading.Lock, hold: Callable[[], None]) -> None:
    """Hold the lock by a `try`."""
    lock.acquire()
    try:
        hold()
    finally:
        lock.release()


def by_second_item(lock: threading.Lock, hold: Callable[[], None]) -> None:
    """Hold the lock by a `with` of two items."""
    with ExitStack(), lock:
        hold()


@pytest.mark.parametrize("take", [by_with, by_finally, by_second_item])
def test_a_thread_inside_a_with_or_a_try_that_releases_is_the_holder(
    threads: Threads, take: Callable[..., None]
) -> None:
    """With the lines where it took the lock, and where it is now."""
    lock = threading.Lock()
    threads.run(lambda: take(lock, threads.hold), "saver")
    await_that(lambda: threads.holding)
    threads.run(lambda: by_with(lock, threads.hold), "waiter")
    wait = wait_of("waiter")
    assert (wait.lock, wait.at.function, wait.is_main) == ("lock", "by_with", False)
    assert isinstance(wait.holder, LockHolder)
    assert wait.holder.thread == "saver"
    assert wait.holder.taken_at is not None
    assert wait.holder.taken_at.function == take.__name__
    assert wait.holder.at.function == "wait"  # of the event


def test_a_lock_is_the_same_under_another_name(threads: Threads) -> None:
    """An attribute in one thread, an item of a list in the other."""
    store = Store()
    shelves = [threading.Lock(), store.guard]

    def save() -> None:
        with store.guard:
            threads.hold()

    def load(number: int) -> None:
        shelves[number - 1].acquire()
        shelves[number - 1].release()

    threads.run(save, "saver")
    await_that(lambda: threads.holding)
    threads.run(lambda: load(2), "loader")
    wait = wait_of("loader")
    assert (wait.lock, holder_of(wait)) == ("shelves[number - 1]", "saver")


def test_a_lock_of_the_same_name_may_be_another_one(threads: Threads) -> None:
    """Two objects of one class: the thread in the first one's `with` is innocent."""
    one, two = Store(), Store()

    def use(store: Store) -> None:
        with store.guard:
            threads.hold()

    two.guard.acquire()  # by a thread that shows nothing of it
    threads.run(lambda: use(one), "innocent")
    await_that(lambda: threads.holding)
    threads.run(lambda: use(two), "waiter")
    wait = wait_of("waiter")
    two.guard.release()
    assert (wait.lock, wait.holder) == ("store.guard", None)


def test_a_thread_that_waits_for_a_condition_does_not_hold_its_lock(threads: Threads) -> None:
    """`Condition.wait` has released it."""
    condition = threading.Condition()

    def idle() -> None:
        with condition:
            threads.holding += 1
            condition.wait(60)

    def use() -> None:
        with condition:
            threads.hold()

    threads.run(idle, "innocent")
    await_that(lambda: threads.holding)
    threads.run(use, "holder")
    await_that(lambda: threads.holding == 2)
    threads.run(use, "waiter")
    assert holder_of(wait_of("waiter")) == "holder"
    threads.stop.set()
    await_that(lambda: not threads.started[1].is_alive() and not threads.started[2].is_alive())
    with condition:
        condition.notify_all()


def assert_not_named(threads: Threads, lock: threading.Lock, function: Callable[[], None]) -> None:
    """Check that a thread which stands in `function` is not the holder of a lock that is taken."""
    threads.run(function, "innocent")
    await_that(lambda: threads.holding)
    lock.acquire(blocking=False)
    threads.run(lambda: by_with(lock, threads.hold), "waiter")
    wait = wait_of("waiter")
    lock.release()
    assert wait.holder is None


def test_a_thread_that_releases_the_lock_inside_the_with_is_not_named(threads: Threads) -> None:
    """It may have released it already."""
    lock = threading.Lock()

    def lend() -> None:
        with lock:
            lock.release()
            threads.hold()
            lock.acquire()

    assert_not_named(threads, lock, lend)


def test_a_thread_that_may_not_have_the_lock_is_not_named(threads: Threads) -> None:
    """It tried for a moment, and goes on without it."""
    lock = threading.Lock()
    lock.acquire()

    def without() -> None:
        is_mine = lock.acquire(timeout=0.01)
        try:
            threads.hold()
        finally:
            if is_mine:
                lock.release()

    assert_not_named(threads, lock, without)


def test_a_reentrant_lock_knows_its_owner(threads: Threads) -> None:
    """However it was taken."""
    lock = threading.RLock()

    def take() -> None:
        lock.acquire()
        threads.hold()
        lock.release()

    threads.run(take, "owner")
    await_that(lambda: threads.holding)
    threads.run(lambda: by_with(lock, threads.hold), "waiter")
    wait = wait_of("waiter")
    assert holder_of(wait) == "owner"
    assert wait.holder is not None
    assert wait.holder.taken_at is None


def test_a_lock_that_a_thread_holds_itself_is_found(threads: Threads) -> None:
    """A plain lock taken twice."""
    lock = threading.Lock()

    def twice() -> None:
        with lock:
            lock.acquire()

    threads.run(twice, "alone")
    wait = wait_of("alone")
    assert wait.holder is not None
    assert wait.holder.ident == wait.ident
    lock.release()


def test_a_join_is_a_wait_for_the_thread(threads: Threads) -> None:
    """At the line that joins, not in the standard library."""
    threads.run(threads.hold, "worker")
    worker = threads.started[0]
    threads.run(lambda: worker.join(60), "parent")
    wait = wait_of("parent")
    assert (wait.lock, holder_of(wait)) == ("", "worker")
    assert wait.at.file == __file__


def test_nothing_of_the_program_is_called(threads: Threads) -> None:
    """A property or a function may wait for the same lock, or change something."""
    store = Store()

    def find() -> threading.Lock:
        store.asked += 1
        return store.guard

    def by_property() -> None:
        with store.computed:
            threads.hold()

    def by_call() -> None:
        with find():
            threads.hold()

    store.guard.acquire()
    threads.run(by_property, "by property")
    threads.run(by_call, "by call")
    await_that(lambda: store.asked == 2)
    assert lock_waits(None) == ()
    assert store.asked == 2
    store.guard.release()
    threads.stop.set()


def test_a_semaphore_has_no_holder(threads: Threads) -> None:
    """Several threads may be inside, and any may release it."""
    places = threading.Semaphore(1)

    def use() -> None:
        with places:
            threads.hold()

    threads.run(use, "one")
    await_that(lambda: threads.holding)
    threads.run(use, "two")
    assert [each for each in lock_waits(None) if each.lock == "places"] == []
    threads.stop.set()
