"""What is left of a rank whose script is over does not end a wait of another one."""

from __future__ import annotations

import builders
import pytest
from builders import GLOO, PYTHON, kernel_snapshot

from pytest_multihost.core.proof import Snapshot, blockers, running_on, without_left
from pytest_multihost.testing import Descriptor, Process, Thread

DEADLINE_S = 160.0


def thread(tid: int, call: str = "futex", **changes: object) -> Thread:
    """Return a thread that waits for another one of its process, without a limit."""
    return builders.thread(call, tid=tid, name="pool", **changes)


def looks_often(tid: int = 101, **changes: object) -> Thread:
    """Return a thread that sleeps for half a second, again and again."""
    given: dict[str, object] = {"ends_s": 101.2, "code": PYTHON, "runs": 5}
    return thread(tid, "clock_nanosleep", **{**given, **changes})


def found_in(
    *beside: Thread,
    left: tuple[int, ...] = (0,),
    active: tuple[int, ...] = (),
    resting: tuple[int, ...] = (),
    beyond: tuple[Process, ...] = (),
    without_children: bool = False,
    **changes: object,
) -> tuple[str, ...]:
    """Return what may end a wait of two ranks, of which the first has these threads beside."""
    processes = (
        Process(pid=100, rank=0, threads=(thread(100), *beside), **changes),  # type: ignore[arg-type]
        Process(pid=200, rank=1, threads=(thread(200),)),
        *beyond,
    )
    before, shots = None, []
    for at_s in (100.0, 101.0):
        kernel = without_left(
            kernel_snapshot(*processes, at_s=at_s),
            before,
            left,
            active=active,
            resting=resting,
            without_children=without_children,
        )
        before = kernel
        shots.append(Snapshot(kernel))
    return blockers(*shots, deadline_s=DEADLINE_S)


def test_a_thread_that_only_looks_now_and_then_does_not_count() -> None:
    """Its process would have ended without the harness."""
    assert found_in(looks_often(), left=())
    assert found_in(looks_often()) == ()


def test_a_thread_that_has_entered_operations_counts() -> None:
    """Other ranks may wait for its next one."""
    assert found_in(looks_often(), active=(101,))


def test_a_thread_that_has_not_had_a_turn_counts() -> None:
    """Its one long sleep may be the time before it answers."""
    assert found_in(looks_often(), resting=(101,))


@pytest.mark.parametrize("may_act", [False, True])
def test_a_child_counts_if_it_may_end_a_wait(*, may_act: bool) -> None:
    """It may set a key, but takes no part in a collective."""
    child = Process(pid=300, rank=0, is_rank=False, threads=(looks_often(300),))
    assert bool(found_in(beyond=(child,), without_children=not may_act)) == may_act


@pytest.mark.parametrize(
    ("beside", "children", "is_found"),
    [
        ((looks_often(),), (), True),
        ((), (looks_often(300),), True),
        ((), (thread(300, state="Z"),), False),
        ((thread(101, code=GLOO),), (), False),
        ((thread(101, code=()),), (), False),
        ((looks_often(is_exempt=True),), (), False),
    ],
    ids=["a thread", "a child", "a child that has ended", "the runtime's", "native", "ours"],
)
def test_a_rank_whose_script_is_over_may_still_do_more(
    beside: tuple[Thread, ...], children: tuple[Thread, ...], *, is_found: bool
) -> None:
    """In a thread of the program or in a child, so it is only likely to be the culprit."""
    processes = (
        Process(pid=100, rank=0, threads=(thread(100), *beside)),
        *(Process(pid=each.tid, rank=0, is_rank=False, threads=(each,)) for each in children),
    )
    assert running_on(kernel_snapshot(*processes), (0, 1)) == ({0} if is_found else set())


def test_a_thread_of_another_rank_counts() -> None:
    """Its script is not over."""
    assert found_in(looks_often(), left=(1,))


@pytest.mark.parametrize("code", [GLOO, PYTHON], ids=["of the runtime", "of the program"])
def test_a_thread_of_the_runtime_counts(code: tuple[str, ...]) -> None:
    """It may serve other ranks, as torch's store does."""
    sleeps = thread(101, "clock_nanosleep", ends_s=120.0, code=code)
    assert bool(found_in(sleeps)) == (code is GLOO)


def test_a_connection_that_leads_elsewhere_does_not_count() -> None:
    """No rank is at its other end."""
    outside = Descriptor(fd=9, target="socket:[9]", kind="tcp", where="outside", peer="a server")
    inside = Descriptor(fd=9, target="socket:[9]", kind="tcp", is_resent=True, queues=(0, 9))
    assert found_in(descriptors={9: outside}, left=())
    assert found_in(descriptors={9: outside}) == ()
    assert found_in(descriptors={9: inside})


def test_its_timers_and_signals_do_not_count() -> None:
    """They end with its process."""
    assert found_in(timers=2, left=())
    assert found_in(timers=2, caught=1 << 13) == ()
