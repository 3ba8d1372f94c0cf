"""Who else has an eventfd that a thread waits for."""

from __future__ import annotations

import os
from dataclasses import replace

from builders import GLOO, descriptor, process, thread

from pytest_multihost.core.watch.kernel import HarnessProcesses
from pytest_multihost.core.watch.kernel.descriptors import Tables
from pytest_multihost.core.watch.kernel.foreign_processes import (
    ForeignProcesses,
    eventfd_id,
    with_eventfd_holders,
)
from pytest_multihost.testing import Descriptor, Thread


def told_of_eventfd(
    theirs: dict[int | None, list[int]], *threads: Thread, controllers: tuple[int, ...] = ()
) -> Descriptor:
    """Return what is told of an eventfd below an epoll, if others have these."""
    eventfd = os.eventfd(0)
    epoll = descriptor("epoll", fd=eventfd + 1, watched=(eventfd, eventfd + 1))
    found = {eventfd: descriptor("eventfd", fd=eventfd), epoll.fd: epoll}
    waiting = (replace(each, fds=(epoll.fd,)) for each in threads)
    harness = HarnessProcesses(controllers=frozenset(controllers))
    tables = Tables({}, {9: "sh"}, {}, harness)
    tables.foreign = ForeignProcesses(())
    number = eventfd_id(os.getpid(), eventfd)
    tables.foreign.eventfds = {each and number: pid for each, pid in theirs.items()}
    told = with_eventfd_holders(
        process(*waiting, pid=os.getpid(), descriptors=found),
        tables.foreign,
        tables.names,
        harness,
    )
    os.close(eventfd)
    return told.descriptors[eventfd]


def test_who_has_an_eventfd_is_asked_for_those_that_are_waited_for() -> None:
    """Not for those of a runtime's own threads: all processes may have to be read for it."""
    tests, own = thread("epoll_wait"), thread("epoll_wait", tid=101, code=GLOO)
    held = told_of_eventfd({1: [9]}, tests)
    assert (held.where, held.peer) == ("outside", "sh 9")
    assert told_of_eventfd({1: [9]}, own).where == "inside"
    assert told_of_eventfd({}, tests).where == "inside"


def test_an_eventfd_that_the_harness_has_inherited_leads_to_nobody_outside() -> None:
    """Unless another process has it, too."""
    waits = thread("epoll_wait")
    assert told_of_eventfd({1: [8]}, waits, controllers=(8,)).where == "harness"
    assert told_of_eventfd({1: [8, 9]}, waits, controllers=(8,)).where == "outside"


def test_an_eventfd_of_others_is_another_one() -> None:
    """The kernel gives each a number; where it does not, theirs may be the same."""
    mine, other = os.eventfd(0), os.eventfd(0)
    tables = Tables({}, {}, {}, HarnessProcesses())
    tables.foreign = ForeignProcesses((os.getpid(),))
    waits = process(thread("read", fds=(mine,)), descriptors={mine: descriptor("eventfd", fd=mine)})
    assert eventfd_id(os.getpid(), mine) in tables.foreign.eventfds
    tables.foreign.eventfds = {eventfd_id(os.getpid(), other): [9]}
    told = (tables.foreign, tables.names, tables.harness)
    inside = with_eventfd_holders(replace(waits, pid=os.getpid()), *told)
    assert inside.descriptors[mine].where == "inside"
    untold = with_eventfd_holders(replace(waits, pid=0), *told)
    assert untold.descriptors[mine].where == "unknown"
    os.close(mine)
    os.close(other)
