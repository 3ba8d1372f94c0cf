"""Operations that can never match: told at once, unless a timeout ends them."""

from __future__ import annotations

import math

import builders
import pytest
from builders import kernel_snapshot, operation

from pytest_multihost.core.blame import has_timeout_before, mismatched_ranks
from pytest_multihost.core.proof import Snapshot
from pytest_multihost.testing import Operations, Process, Thread

DEADLINE_S = 60.0
TORCH = ("/x/site-packages/torch/lib/libtorch_cpu.so",)


def page(rank: int, name: str, timeout_s: float | None = None) -> Operations:
    """Return what a rank notes that is in the first collective of both."""
    return builders.page(rank, operation(name, group=(0, 1), timeout_s=timeout_s))


def thread(ends_s: float, *, code: tuple[str, ...] = TORCH, call: str = "futex") -> Thread:
    """Return a thread in a wait."""
    return Thread(tid=7, name="gloo", call=call, args=(0,) * 6, ends_s=ends_s, runs=1, code=code)


def snapshot(*pages: Operations, beside: Thread | None = None) -> Snapshot:
    """Return a deep snapshot of two ranks; the first has a thread beside its main one."""
    threads = (beside,) if beside is not None else ()
    ranks = Process(pid=10, rank=0, threads=threads), Process(pid=11, rank=1, threads=())
    return Snapshot(kernel_snapshot(*ranks, at_s=2.0), pages)


MISMATCH = page(0, "all_reduce"), page(1, "barrier")


def test_ranks_in_operations_that_cannot_match_are_found() -> None:
    """Both of them; nobody where they match."""
    assert mismatched_ranks(MISMATCH) == {0, 1}
    assert mismatched_ranks([page(0, "all_reduce"), page(1, "all_reduce")]) == frozenset()


@pytest.mark.parametrize(("timeout_s", "gives_up"), [(3.0, True), (100.0, False), (None, False)])
def test_a_recorded_timeout_ends_a_mismatch(timeout_s: float | None, *, gives_up: bool) -> None:
    """If it strikes before the deadline does."""
    pages = page(0, "all_reduce", timeout_s), page(1, "barrier")
    assert has_timeout_before({0, 1}, snapshot(*pages), deadline_s=DEADLINE_S) is gives_up


@pytest.mark.parametrize(
    ("beside", "gives_up"),
    [
        (thread(4.0), True),
        (thread(100.0), False),
        (thread(math.inf), False),
        (thread(4.0, code=("/x/libother.so",)), False),
        (thread(4.0, call="epoll_wait"), False),
    ],
    ids=["early", "late", "never", "somebody else's", "between events"],
)
def test_a_timeout_of_gloos_own_thread_ends_a_mismatch(beside: Thread, *, gives_up: bool) -> None:
    """No other wait with a timeout does: those are a runtime's habits."""
    assert (
        has_timeout_before({0, 1}, snapshot(*MISMATCH, beside=beside), deadline_s=DEADLINE_S)
        is gives_up
    )


def collective(rank: int, detail: str, *, name: str = "all_reduce", **given: float) -> Operations:
    """Return the page of a rank that is, or was, in the first collective with one tensor."""
    entered = operation(name, group=(0, 1), waited_s=1.0, detail=detail, **given)
    return builders.page(rank, entered)


@pytest.mark.parametrize(
    ("pages", "should_end"),
    [
        ((collective(0, "f32[3]"), collective(1, "f32[3]")), True),
        ((collective(0, "f32[3]"), collective(1, "f32[2]")), False),
        ((collective(0, "f32[3]"), collective(1, "f32[2]", ended_s=1.5)), False),
        ((collective(0, "f32[3]"), collective(1, "f32[3]", ended_s=1.5)), True),
        ((collective(0, "f32[3]"), collective(1, "")), True),
        ((collective(0, "f32[3]", name="scatter"), collective(1, "f32[2]", name="scatter")), True),
    ],
    ids=["equal", "sizes differ", "the smaller has left", "one has left", "unknown", "may differ"],
)
def test_a_collective_that_all_have_entered_should_end_unless_sizes_differ(
    pages: tuple[Operations, Operations], *, should_end: bool
) -> None:
    """What should end may be under way, unseen: a proof of a hang needs longer then."""
    assert bool([*snapshot(*pages).complete_operations()]) is should_end
