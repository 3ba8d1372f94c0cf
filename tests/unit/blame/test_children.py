"""Which child process of a rank a verdict names, and what is said of children that were killed."""

from __future__ import annotations

from dataclasses import replace

from builders import operation, stands

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.children import as_family, with_child
from pytest_multihost.testing import Child

CORE, OTHER = Child(300, "EngineCore_1"), Child(301, "Monitor")
DEAD = Child(302, "Worker", ended="was killed by SIGKILL")
FIRST = operation(sequence=1, ended_s=1.0, child=CORE)
AWAITED = operation(sequence=2, waited_s=1.0)
LATE = Cause(kind="straggler", confidence="certain", culprits=(1,), operation=AWAITED)


def test_the_child_that_has_taken_part_in_the_group_is_named() -> None:
    """Another child of the rank is in another group."""
    elsewhere = operation(group=(1, 7), child=OTHER)
    states = {1: stands(1, FIRST, elsewhere)}
    assert with_child(LATE, states).child == CORE


def test_a_rank_that_takes_part_itself_is_not_its_child() -> None:
    """Its child is in another group."""
    states = {1: stands(1, replace(FIRST, child=None), operation(group=(1, 7), child=OTHER))}
    assert with_child(LATE, states).child is None


def test_the_child_that_a_rank_waits_for_is_named() -> None:
    """It has recorded nothing: a program of another language."""
    waits = stands(1, label="CHILD", is_for_child=True, child=Child(400, program="server"))
    found = with_child(LATE, {1: waits}).child
    assert found is not None
    assert found.title == "server 400"


def test_of_two_children_in_one_group_none_is_named() -> None:
    """Either may be the one that is missing."""
    states = {1: stands(1, FIRST, replace(FIRST, child=OTHER))}
    assert with_child(LATE, states).child is None


def test_children_that_were_killed_explain_a_pipe_that_never_ends() -> None:
    """A rank that waits for something else may not need them."""
    stuck = Cause(kind="stuck", confidence="likely", culprits=(1,))
    endless = stands(1, label="IO", is_endless=True, lost=(DEAD,))
    assert with_child(stuck, {1: endless}).lost == (DEAD,)
    assert with_child(stuck, {1: stands(1, label="IO", lost=(DEAD,))}).lost == ()


def test_a_killed_child_explains_a_group_whose_members_do_not_come() -> None:
    """Other children of the rank wait for it; without it nobody is named."""
    coming = operation(group=(1,), group_size=2, has_members=False, child=CORE, waited_s=1.0)
    unknown = Cause(kind="unknown", confidence="unknown", waiting=(0, 1), operation=coming)
    found = as_family(unknown, {0: stands(0), 1: stands(1, coming, lost=(DEAD,))})
    assert (found.kind, found.culprits, found.waiting) == ("straggler", (1,), (0,))
    assert found.lost == (DEAD,)
    assert as_family(unknown, {0: stands(0), 1: stands(1, coming)}) is unknown


def test_processes_of_a_rank_that_lock_each_other_out_are_a_circle() -> None:
    """One child holds a file lock and waits for members; another waits for that lock.

    A lock that another rank holds says nothing about the members.
    """
    coming = operation(group=(), child=CORE)
    unknown = Cause(kind="unknown", confidence="unknown", waiting=(0, 1), operation=coming)
    found = as_family(unknown, {0: stands(0), 1: stands(1, coming, lock_holders=(1,))})
    assert (found.kind, found.cycle, found.waiting) == ("deadlock", (1,), (0, 1))
    assert as_family(unknown, {0: stands(0), 1: stands(1, coming, lock_holders=(0,))}) is unknown
