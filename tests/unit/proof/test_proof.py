"""When a world is proven to hang, and when not, on hand-made facts."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import builders
import pytest
from builders import GLOO, LIBC, MAIN, PYTHON, descriptor, kernel_snapshot, process, thread

from pytest_multihost.core.proof import ProofState, Snapshot, is_still, pollers
from pytest_multihost.core.proof.blockers import blockers, rank_blockers
from pytest_multihost.core.proof.proof_state import INTERVAL_S, SHORT_S, SLACK_S, AskTurns
from pytest_multihost.core.proof.runtime_threads import (
    is_idle,
    is_python,
    is_runtime_thread,
    read_stack,
)
from pytest_multihost.testing import (
    PROGRAM_START,
    Descriptor,
    Endpoint,
    Frame,
    Operation,
    Operations,
    Process,
    Scope,
    Thread,
    program_scope,
)

DEADLINE_S = 160.0
JAX = ("/site-packages/jaxlib/libjax_common.so", LIBC)
TENSORSTORE = ("/site-packages/tensorstore/_tensorstore.cpython-311-x86_64-linux-gnu.so", LIBC)


def beside(call: str = "futex", **changes: object) -> Thread:
    """Return a thread beside the main one."""
    return thread(call, **{"tid": 101, "code": PYTHON, **changes})


def moment(
    *processes: Process, at_s: float = 100.0, operations: tuple[Operation, ...] = ()
) -> Snapshot:
    """Return a look at these processes, with open operations of rank 0."""
    told = (Operations(0, operations),) if operations else ()
    return Snapshot(kernel_snapshot(*processes, at_s=at_s), told)


def later(before: Snapshot, *processes: Process, **changes: object) -> Snapshot:
    """Return a moment one second later, with other processes or operations if given."""
    look = replace(
        before.kernel, at_s=before.kernel.at_s + 1, processes=processes or before.kernel.processes
    )
    return replace(before, kernel=look, **changes)


def found_in(*processes: Process, then: Process | None = None, **changes: object) -> str:
    """Return what is said of a world that does not move, unless `then` is what it becomes."""
    first = moment(*processes, **changes)
    second = later(first, *((then,) if then else ()))
    return "\n".join(blockers(first, second, deadline_s=DEADLINE_S))


def reading(found: Descriptor, call: str = "read", **changes: object) -> Process:
    """Return a rank whose main thread reads a descriptor."""
    main = thread(call, fds=(3,), target=found.target, **changes)
    return process(main, descriptors={3: found})


operation = partial(builders.operation, group=(0, 1), thread=MAIN)
"""A collective for which the main thread waits."""


@pytest.mark.parametrize(
    ("changes", "entered", "is_blocker"),
    [
        ({"fails_test": True}, 0, False),
        ({"fails_test": True}, 1, True),  # rank 1 has come: the collective may complete
        ({"fails_test": False}, 0, True),  # the test may handle the error
        ({"fails_test": True, "timeout_s": 20.0, "since_s": 100.0}, 0, True),  # the test's own
        ({"fails_test": True, "kind": "wait"}, 0, True),  # any process may do its part
    ],
)
def test_a_timeout_that_only_fails_the_test_ends_no_wait(
    changes: dict[str, Any], entered: int, is_blocker: bool
) -> None:
    """Neither does anything else: then the hang is told before the timeout strikes."""
    waits = operation(**changes)
    first = moment(process(thread(ends_s=120.0)))
    pages = (
        Operations(0, (waits,), {waits.group_key: 1}),
        Operations(1, (), {waits.group_key: entered}),
    )
    first = replace(first, operations=pages)
    found = blockers(first, later(first), deadline_s=DEADLINE_S)
    assert (found != ()) == is_blocker
    assert bool([*first.give_ups()]) != is_blocker or "timeout_s" in changes


def test_ranks_that_would_give_up_alike_share_one_note() -> None:
    """The note has the time left, and the ranks."""
    waits = operation(fails_test=True, group=(0, 1, 2))
    first = moment(
        process(thread(ends_s=127.2)),
        process(thread(tid=200, ends_s=126.8), pid=200, rank=2),
    )
    pages = (
        Operations(0, (waits,), {waits.group_key: 1}),
        Operations(1, (), {waits.group_key: 0}),
        Operations(2, (replace(waits, thread=200),), {waits.group_key: 1}),
    )
    (note,) = replace(first, operations=pages).give_ups()
    assert note.startswith("all_reduce on ranks 0,2 would have timed out after 27 s more")


@pytest.mark.parametrize(
    ("changes", "entered", "is_blocker"),
    [
        ({"timeout_s": 500.0}, 0, False),
        ({"timeout_s": 500.0}, 1, True),  # the host has come: the next try may succeed
        ({"timeout_s": 30.0}, 0, True),  # it gives up then
        ({}, 0, True),  # it may give up any time
        ({"timeout_s": 500.0, "kind": "wait"}, 0, True),  # any process may be the host
    ],
)
def test_who_sleeps_before_it_tries_again_waits_for_a_host_that_has_not_come(
    changes: dict[str, Any], entered: int, is_blocker: bool
) -> None:
    """The store waits longer and longer before it tries to connect to rank 0 again."""
    waits = operation(**changes)
    first = moment(replace(process(thread("clock_nanosleep", ends_s=120.0)), rank=1))
    pages = (
        Operations(0, (), {waits.group_key: entered}),
        Operations(1, (waits,), {waits.group_key: 1}),
    )
    first = replace(first, operations=pages)
    found = blockers(first, later(first), deadline_s=DEADLINE_S)
    assert (found != ()) == is_blocker


@pytest.mark.parametrize(
    ("started", "changes", "is_blocker"),
    [
        (False, {}, False),
        (True, {}, True),  # rank 1 has started it, too: its collective may complete
        (False, {"fails_test": False}, True),  # the test may handle the error
        (False, {"thread": 101}, True),  # another thread starts it
    ],
)
def test_a_program_that_only_fails_the_test_ends_no_wait(
    started: bool, changes: dict[str, Any], is_blocker: bool
) -> None:
    """Where a rank on whose devices it runs has never started one from that line."""
    key = (0, 1), 0, program_scope("test_it.py", 7)
    start = operation(
        name=PROGRAM_START,
        kind="wait",
        group=(0,),
        waited_s=None,
        **{"fails_test": True, "frame": Frame("test_it.py", 7, "test_it"), **changes},
    )
    first = moment(process(thread(ends_s=120.0)))
    pages = Operations(0, (start,), {key: 1}), Operations(1, (), {key: 1} if started else {})
    first = replace(first, operations=pages)
    assert (blockers(first, later(first), deadline_s=DEADLINE_S) != ()) == is_blocker
    assert is_still(first, deadline_s=DEADLINE_S) != is_blocker


def test_waits_that_cannot_end_are_a_proof_after_two_windows() -> None:
    """Neither one look nor one window is."""
    first = moment(process())
    one = ProofState().after(first, deadline_s=DEADLINE_S)
    two = one.after(later(first), deadline_s=DEADLINE_S)
    three = two.after(later(later(first)), deadline_s=DEADLINE_S)
    assert [one.is_proof, two.is_proof, three.is_proof] == [False, False, True]


def test_a_window_in_which_something_moves_begins_the_search_again() -> None:
    """Two quiet windows must follow each other."""
    first = moment(process())
    moved = later(later(first), process(thread(runs=6)))
    search = ProofState()
    for each in (first, later(first), moved, later(moved)):
        search = search.after(each, deadline_s=DEADLINE_S)
    assert (search.quiet, search.is_proof) == (1, False)
    assert search.after(later(later(moved)), deadline_s=DEADLINE_S).is_proof


def test_looks_that_follow_too_closely_prove_nothing() -> None:
    """Nothing has had the time to move."""
    first = moment(process())
    search = ProofState().after(first, deadline_s=DEADLINE_S)
    for i in range(5):
        look = replace(first.kernel, at_s=first.kernel.at_s + 0.1 * i)
        search = search.after(replace(first, kernel=look), deadline_s=DEADLINE_S)
    assert search.quiet == 0


def soon(before: Snapshot, *processes: Process, **changes: object) -> Snapshot:
    """Return a moment a short interval later, with other processes if given."""
    kernel = before.kernel
    look = replace(kernel, at_s=kernel.at_s + SHORT_S, processes=processes or kernel.processes)
    return replace(before, kernel=look, **changes)


def turns_of(*processes: Process) -> AskTurns:
    """Return how a quiescent world answers whose threads have run as often as these."""
    turns = {each.tid: each.runs for process in processes for each in process.threads}
    return lambda _: turns


def is_proven(before: Process, now: Process, *, later_on: Process | None = None) -> bool:
    """Return whether a short interval between two states of a rank is a proof.

    Args:
        before: The rank at its begin.
        now: The rank at its end.
        later_on: The rank when it is asked whether it is quiescent; None: as at the end.
    """
    first = ProofState().after(moment(before), deadline_s=DEADLINE_S)
    answer = turns_of(later_on or now)
    last = soon(moment(before), now)
    return first.after(last, deadline_s=DEADLINE_S, ask_turns=answer).is_proof


def polling(runs: int, **changes: object) -> Process:
    """Return a rank with a thread of gloo that polls, and has run so often."""
    given = {"fds": (), "ends_s": 100.0, "code": GLOO, "runs": runs, **changes}
    return process(beside("epoll_wait", **given))


def test_a_settled_world_is_proven_to_hang_after_a_short_interval() -> None:
    """Nothing has run in between, and nothing can."""
    assert is_proven(process(), process())


def test_a_world_that_is_not_quiescent_is_not_settled() -> None:
    """Some thread of it can run, or data are in flight."""
    first = ProofState().after(moment(process()), deadline_s=DEADLINE_S)
    last = soon(moment(process()))
    assert not first.after(last, deadline_s=DEADLINE_S, ask_turns=lambda _: None).is_proof


def test_a_thread_that_has_run_after_the_snapshot_does_not_count_as_asleep() -> None:
    """It was woken between the snapshot and the question."""
    assert not is_proven(process(), process(), later_on=process(thread(runs=6)))


@pytest.mark.parametrize(
    ("turns", "state", "is_settled"),
    [(0, "S", False), (1, "S", False), (2, "S", True), (2, "R", False)],
)
def test_who_polls_must_have_had_its_turns(turns: int, state: str, is_settled: bool) -> None:
    """One to find what there is, another for what the first has brought about, and no more."""
    assert is_proven(polling(5), polling(5 + turns, state=state)) == is_settled


def test_who_polls_may_go_on_polling_while_it_is_asked() -> None:
    """It is one of those that may run."""
    assert is_proven(polling(5), polling(9), later_on=polling(11))


def test_a_timer_of_a_thread_that_is_woken_for_all_else_is_not_waited_for() -> None:
    """Those of gRPC strike every second."""
    jax = [process(beside(code=JAX, ends_s=100.2, runs=runs)) for runs in (5, 6)]
    assert is_proven(*jax)


def test_a_wait_that_ends_just_after_the_deadline_is_watched_for_longer() -> None:
    """It may be the last of many short ones, which makes a livelock."""
    short, long = (process(thread(ends_s=DEADLINE_S + s)) for s in (1.0, 100.0))
    assert not is_proven(short, short)
    assert is_proven(long, long)


@pytest.mark.parametrize("entered", [0, 1])
def test_a_collective_that_all_have_entered_is_watched_for_longer(entered: int) -> None:
    """It should end; something unknown may be under way."""
    open_one = operation()
    key, _ = open_one.place
    pages = Operations(0, (open_one,), {key: 1}), Operations(1, (), {key: entered})
    first = replace(moment(process()), operations=pages)
    search = ProofState().after(first, deadline_s=DEADLINE_S)
    answer = turns_of(process())
    found = search.after(soon(first), deadline_s=DEADLINE_S, ask_turns=answer)
    assert found.is_proof == (entered == 0)


def test_short_intervals_do_not_go_on_for_ever() -> None:
    """A deep snapshot costs too much for that: after a few the next is a second away."""
    search = ProofState().after(moment(process()), deadline_s=DEADLINE_S)
    look, waits = moment(process()), []
    for _ in range(12):
        look = replace(look, kernel=replace(look.kernel, at_s=search.due_s + SLACK_S))
        waits.append(search.due_s)
        search = search.after(look, deadline_s=DEADLINE_S)
    gaps = [later - earlier for earlier, later in pairwise(waits)]
    assert gaps[0] == pytest.approx(SHORT_S, rel=0.2)
    assert gaps[-1] == pytest.approx(INTERVAL_S)


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({1: 5, 2: 7}, frozenset()),
        ({1: 5, 2: 9}, frozenset({2})),
        ({1: 5, 2: 8}, None),  # it may have begun something
        ({1: 5}, None),  # somebody may have waited for its end
        ({1: 5, 2: 7, 3: 2}, None),
    ],
)
def test_a_thread_that_polls_has_had_two_turns(
    now: dict[int, int], expected: frozenset[int] | None
) -> None:
    """And whoever had none sleeps; nobody comes or goes."""
    assert pollers({1: 5, 2: 7}, now) == expected


def test_a_world_without_a_living_rank_does_not_wait() -> None:
    """It is dead, which is another verdict."""
    assert "no rank is alive" in found_in(process(thread(state="Z")))


def test_the_dead_do_not_wait() -> None:
    """The others may still hang."""
    assert found_in(process(), Process(pid=7, rank=1)) == ""


def test_a_shallow_snapshot_proves_nothing() -> None:
    """It has not seen the other threads."""
    first = moment(process())
    shallow = replace(first, kernel=replace(first.kernel, is_deep=False))
    assert "only main threads" in "".join(blockers(shallow, later(shallow), deadline_s=1))


@pytest.mark.parametrize(
    ("main", "expected"),
    [
        (thread("clock_nanosleep", ends_s=110.0), "rank 0: main thread sleeps for another 9.0 s"),
        (thread("futex", ends_s=110.0), "main thread waits for a lock for another 9.0 s"),
        (thread("futex", ends_s=None), "main thread waits for a lock for some time"),
        (thread("futex", futex_scope="outside"), "memory that others may share"),
        (thread("futex", futex_scope="unknown"), "memory that others may share"),
        (thread(state="R"), "main thread runs"),
        (thread("running"), "main thread runs"),
        (thread("vfork", state="D", ends_s=None), "uninterruptible sleep (vfork)"),
        (thread("pause"), "waits for a signal"),
        (thread("rt_sigtimedwait"), "waits for a signal"),
        (thread("wait4", child=77), "waits for process 77"),
        (thread("flock", target="/lock"), "whose holder is not known"),
        (thread("flock", target="/lock", holders=()), "whose holder is not known"),
        (thread("flock", target="/lock", holders=(77,)), "held by process 77"),
        (thread("fcntl", args=(3, 4, 0, 0, 0, 0)), "main thread waits in fcntl"),
        (thread("openat", target="/fifo"), "openat(/fifo)"),
        (thread("io_uring_enter"), "io_uring_enter"),
        (thread("semop"), "semop"),
        (thread("", ends_s=math.inf), "main thread waits in"),
        (thread("poll", fds=None), "cannot be read"),
        (thread("read", fds=(9,)), "main thread waits in read"),
        (thread("recvfrom", fds=(9,)), "a descriptor that cannot be read"),
    ],
)  # fmt: skip
def test_a_wait_that_may_end_is_named(main: Thread, expected: str) -> None:
    """So that the page can say what blocked a proof."""
    assert expected in found_in(process(main))


@pytest.mark.parametrize(
    "main",
    [
        thread("clock_nanosleep", ends_s=161.0),
        thread("futex", ends_s=161.0),
        thread("select", fds=(), ends_s=161.0),
        thread("wait4", child=-1),
    ],
)
def test_a_wait_that_ends_after_the_deadline_ends_nothing(main: Thread) -> None:
    """It looks as if it might, and it will, too late."""
    assert found_in(process(main)) == ""


@pytest.mark.parametrize(
    "change", [{"runs": 6}, {"cpu_ns": 1}, {"args": (2, 0x189) + (0,) * 4}, {"pointer": 8}]
)
def test_a_thread_that_has_left_its_wait_moves(change: dict[str, Any]) -> None:
    """Also where it is back in one like it: a loop of waits that end by themselves."""
    assert "wakes up" in found_in(process(), then=process(thread(**change)))


def test_every_other_thread_must_stand_still_as_well() -> None:
    """One that sleeps may release the main thread afterwards."""
    ends = beside("clock_nanosleep", ends_s=110.0, name="beat")
    assert "rank 0: thread beat sleeps for another 9.0 s" in found_in(process(ends))


def test_a_thread_that_has_just_begun_or_ended_moves() -> None:
    """Something has happened in the window."""
    assert "wakes up" in found_in(process(), then=process(beside()))
    assert "has just ended" in found_in(process(beside()), then=process())


def test_a_process_that_has_just_begun_or_ended_moves() -> None:
    """A rank that starts one child after another gets on."""
    child = Process(pid=7, rank=0, is_rank=False, name="cc", threads=(thread(tid=7),))
    first = moment(process())
    both = later(first, process(), child)
    assert "`cc` 7 has just begun" in "".join(blockers(first, both, deadline_s=DEADLINE_S))
    none = later(both, process())
    assert "`cc` 7 has just ended" in "".join(blockers(both, none, deadline_s=DEADLINE_S))


def test_a_reason_that_ranks_share_is_given_once() -> None:
    """With the set of ranks; a reason of one rank alone stays its own."""
    waits = [replace(process(thread("pause"), pid=pid), rank=pid - 1) for pid in (1, 2, 3)]
    stopped = replace(process(thread("pause", state="T"), pid=4), rank=3)
    assert found_in(*waits, stopped).splitlines() == [
        "ranks 0-2: main thread waits for a signal, which any process may send",
        "rank 3: is stopped",
    ]


def test_a_runtimes_own_thread_may_wake_up_again_and_again() -> None:
    """It looks busy: short limits, other arguments, some processor time."""
    before = process(beside("epoll_wait", code=GLOO, fds=(), ends_s=100.0))
    after = process(beside("futex", code=GLOO, ends_s=101.0, runs=90, cpu_ns=5_000_000))
    assert found_in(before, then=after) == ""
    caught = process(beside("running", code=None, state="R", runs=90))
    assert found_in(before, then=caught) == ""


@pytest.mark.parametrize(
    "system",
    [
        "libc-2.31.so",
        "libm.so.6",
        "libgomp-a34b3233.so.1",
        "libevent_core-2.1.so.7",
        "ld-linux-x86-64.so.2",
        "[vdso]",
        "libscipy_openblas64_-99b71e71.so",
        "libgcc_s.so.1",
        "libpthread.so.0",
    ],
)
def test_libraries_of_the_system_do_not_make_a_thread_somebody_elses(system: str) -> None:
    """They do what they are called for."""
    assert is_runtime_thread(beside(code=(GLOO[0], system)))


@pytest.mark.parametrize("other", ["libcurl.so.4", "libmine.so", "libcuda.so.1", "libcrypto.so.3"])
def test_libraries_with_names_like_the_systems_are_somebody_elses(other: str) -> None:
    """Names that begin alike."""
    assert not is_runtime_thread(beside(code=(GLOO[0], other)))


ARROW = "/site-packages/pyarrow/libarrow.so.2600"


def test_what_a_thread_of_pyarrow_has_left_on_a_stack_does_not_count() -> None:
    """A fork ends jemalloc's thread, and gives its stack to the first thread of the rank."""
    assert is_runtime_thread(beside(code=(*GLOO, ARROW)))


@pytest.mark.parametrize("code", [(ARROW, LIBC), (*GLOO, ARROW, PYTHON[0]), (ARROW, *PYTHON)])
def test_a_thread_of_pyarrow_itself_is_somebody_elses(code: tuple[str, ...]) -> None:
    """It may read what a rank waits for."""
    assert not is_runtime_thread(beside(code=code))


@pytest.mark.parametrize(
    "code", [PYTHON, (*GLOO, PYTHON[0]), TENSORSTORE, ("", LIBC), (LIBC,), (), None]
)
def test_a_thread_in_which_others_have_a_part_is_nobodys_own(code: tuple[str, ...] | None) -> None:
    """The same wait means something else here: a poller in Python, a retry, a compiled loop."""
    other = beside("epoll_wait", code=code, fds=(), ends_s=100.0)
    assert not is_runtime_thread(other)
    assert "rank 0: thread python waits in epoll_wait" in found_in(process(other))


def test_a_thread_is_python_if_the_interpreter_is_on_its_stack() -> None:
    """Or if its stack cannot be read."""
    assert is_python(beside(code=PYTHON))
    assert is_python(beside(code=None))
    assert is_python(beside(code=("/usr/bin/python3.13", LIBC)))
    assert not is_python(beside(code=GLOO))


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"call": "clock_nanosleep", "ends_s": 500.0}, "sleeps"),
        ({"call": "pread64", "target": "/data/ckpt", "fds": (3,)}, "pread64(/data/ckpt)"),
        ({"call": "read", "target": "/data/ckpt", "fds": (3,)}, "read(/data/ckpt)"),
        ({"state": "D"}, "uninterruptible"),
        ({"cpu_ns": 30_000_000}, "runs"),
        ({"call": "ioctl"}, "ioctl"),
        ({"futex_scope": "unknown"}, "memory that others may share"),
    ],
)
def test_a_runtimes_own_thread_may_not_work(own: dict[str, Any], expected: str) -> None:
    """It runs, sleeps and does file I/O not at all."""
    idle = process(beside(code=GLOO))
    assert expected in found_in(idle, then=process(beside(**{"code": GLOO, **own})))


def test_the_main_thread_is_never_the_runtimes_own() -> None:
    """What it does is what the test does, whoever's code it is in."""
    assert "waits for a lock for another" in found_in(process(thread(code=GLOO, ends_s=110.0)))


def test_a_thread_in_an_open_operation_may_poll() -> None:
    """Its own short waits only look whether the operation has ended."""
    polls = process(thread("clock_nanosleep", ends_s=100.5, runs=6))
    first = moment(process(), operations=(operation(),))
    assert blockers(first, later(first, polls), deadline_s=DEADLINE_S) == ()


@pytest.mark.parametrize("wait", [thread("clock_nanosleep", ends_s=100.5, runs=6), thread()])
def test_an_operation_that_its_caller_has_limited_may_end(wait: Thread) -> None:
    """It polls, or the kernel holds a limit that nobody can read; both end when they like."""
    limited = operation(timeout_s=DEADLINE_S - operation().since_s - 1)
    first = moment(process(), operations=(limited,))
    found = blockers(first, later(first, process(wait)), deadline_s=DEADLINE_S)
    assert len(found) == 1
    assert found[0].startswith("rank 0: main thread times out in all_reduce after another ")


def test_who_polls_in_an_operation_of_ones_own_may_give_up() -> None:
    """By a clock that nobody sees; one that waits once, for whatever it be, does not."""
    own = operation(scope=Scope("operation", "ring"))
    first = moment(process(), operations=(own,))
    polls = process(thread("clock_nanosleep", ends_s=100.5, runs=6))
    found = blockers(first, later(first, polls), deadline_s=DEADLINE_S)
    assert found == ("rank 0: main thread wakes up in all_reduce, and may then do something else",)
    assert blockers(first, later(first, process()), deadline_s=DEADLINE_S) == ()


def test_a_limit_beyond_the_deadline_ends_nothing() -> None:
    """As those that are set to half an hour, or by ourselves."""
    limited = operation(timeout_s=DEADLINE_S - operation().since_s + 1)
    first = moment(process(), operations=(limited,))
    assert blockers(first, later(first, process()), deadline_s=DEADLINE_S) == ()


def test_a_limit_of_torchs_own_thread_may_end_a_collective() -> None:
    """It is one of gloo's that waits, and it gives up when the limit of its group is over."""
    gives_up = {"code": GLOO, "ends_s": DEADLINE_S - 1}
    found = found_in(process(beside(**gives_up)))
    assert "gives up its work for a rank after another " in found
    for harmless in ({**gives_up, "ends_s": DEADLINE_S + 1}, {**gives_up, "code": JAX}):
        assert found_in(process(beside(**harmless))) == ""
    looks_again = process(beside(**gives_up, runs=7))
    assert found_in(process(beside(code=GLOO, ends_s=100.5)), then=looks_again) == ""


@pytest.mark.parametrize(
    "changed",
    [
        {"sequence": 2},
        {"ended_s": 100.5},
        {"waited_s": None},
        {"thread": 101},
        {"since_s": 2.0},
    ],
)
def test_an_operation_that_has_changed_excuses_nothing(changed: dict[str, Any]) -> None:
    """Nor does one that another thread waits for, or nobody."""
    polls = process(thread("clock_nanosleep", ends_s=100.5, runs=6))
    first = moment(process(), operations=(operation(),))
    second = later(first, polls, operations=(Operations(0, (operation(**changed),)),))
    assert "main thread wakes up" in "".join(blockers(first, second, deadline_s=DEADLINE_S))


def test_a_flight_recorders_operation_is_known_by_its_sequence() -> None:
    """Its times are told a little differently with each answer."""
    asked = operation(source="flight-recorder")
    polls = process(thread("clock_nanosleep", ends_s=100.5, runs=6))
    first = moment(process(), operations=(asked,))
    for sequence, expected in ((1, ""), (2, "main thread wakes up")):
        again = replace(asked, since_s=1.1, waited_s=1.1, sequence=sequence)
        second = later(first, polls, operations=(Operations(0, (again,)),))
        said = "".join(blockers(first, second, deadline_s=DEADLINE_S))
        assert (expected in said) if expected else not said


def test_an_operation_of_another_rank_excuses_nothing() -> None:
    """Thread ids are the machine's, but operations are told by rank."""
    polls = replace(process(thread("clock_nanosleep", ends_s=100.5)), rank=1)
    assert "rank 1: main thread" in found_in(polls, operations=(operation(),))


def test_an_operation_that_gives_up_before_the_deadline_may_end() -> None:
    """One single wait with a limit is not polling: a test may count on the timeout."""
    found = found_in(process(thread(ends_s=110.0)), operations=(operation(),))
    assert found == "rank 0: main thread times out in all_reduce after another 9.0 s"
    assert found_in(process(thread(ends_s=1900.0)), operations=(operation(),)) == ""


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"caught": 1 << 13}, "SIGALRM"),
        ({"pending": 2}, "about to get a signal"),
        ({"timers": 1}, "has made a timer"),
        ({"timers": None}, "timers that cannot be read"),
        ({"tracer": 5}, "is traced by process 5"),
        ({"unread": ("descriptors",)}, "descriptors cannot be read"),
    ],
)
def test_a_signal_may_end_any_wait(change: dict[str, Any], expected: str) -> None:
    """And so may what cannot be read."""
    assert expected in found_in(process(**change))


def test_other_handlers_do_not_matter() -> None:
    """SIGINT has one in every Python; nobody is known to send it."""
    assert found_in(process(caught=0b10 | 1 << 14)) == ""


def test_a_stopped_rank_is_another_verdict() -> None:
    """Only that is said of it."""
    assert found_in(process(thread(state="T"), beside(state="T"))) == "rank 0: is stopped"


@pytest.mark.parametrize(
    "found",
    [
        descriptor("pipe", "outside"),
        descriptor("pipe", "unknown"),
        descriptor("eventfd", "outside"),
        descriptor("eventfd", "unknown"),
        descriptor("fifo"),
        descriptor("tty"),
        descriptor("file", target="/data/ckpt"),
        descriptor("unix", "outside"),
        descriptor("unix", "unknown"),
        descriptor("unix", "harness"),
        descriptor("tcp", "outside"),
        descriptor("udp", "unknown"),
        descriptor("netlink", "unknown"),
        descriptor("listen", "unknown"),
        descriptor("idle", "unknown"),
        descriptor("timerfd", ends_s=120.0),
        descriptor("timerfd", "unknown", ends_s=None),
        descriptor("pidfd", pid=77),
        descriptor("other"),
        descriptor("uring", "unknown"),
    ],
    ids=lambda found: f"{found.kind}-{found.where}",
)
def test_a_descriptor_that_leads_outside_may_end_a_wait(found: Descriptor) -> None:
    """Whether it is read or polled."""
    assert found_in(reading(found))
    assert found_in(reading(found, "poll"))


@pytest.mark.parametrize(
    "found",
    [
        descriptor("pipe"),
        descriptor("unix"),
        descriptor("tcp"),
        descriptor("tcp", "nobody"),
        descriptor("eventfd", target="anon_inode:[eventfd]"),
        descriptor("uring", target="anon_inode:[io_uring]"),
        descriptor("timerfd", target="anon_inode:[timerfd]"),
        descriptor("timerfd", "unknown", target="anon_inode:[timerfd]", ends_s=161.0),
        descriptor("pidfd", target="anon_inode:[pidfd]", pid=MAIN),
    ],
    ids=lambda found: f"{found.kind}-{found.where}",
)
def test_a_descriptor_that_stays_inside_ends_nothing(found: Descriptor) -> None:
    """Its other end is in the hands of somebody who waits as well."""
    assert found_in(reading(found)) == ""
    assert found_in(reading(found, "poll")) == ""


def test_a_ring_of_which_something_was_asked_may_end_any_wait() -> None:
    """Whoever gets the answer may do anything then, though nobody is seen to wait for it."""
    asked = descriptor("uring", "unknown", fd=9)
    assert "has asked io_uring for something" in found_in(process(descriptors={9: asked}))
    assert found_in(process(descriptors={9: replace(asked, where="inside")})) == ""


def test_what_an_epoll_watches_counts_as_waited_for() -> None:
    """Through any number of them; in a circle, too."""
    inner = descriptor("epoll", fd=4, watched=(3, 5))
    outer = descriptor("epoll", fd=3, watched=(4,))
    pipe = descriptor("pipe", fd=5)
    main = thread("epoll_wait", fds=(3,))
    assert found_in(process(main, descriptors={3: outer, 4: inner, 5: pipe})) == ""
    leak = replace(pipe, where="outside", peer="sh 9")
    assert "pipe sh 9" in found_in(process(main, descriptors={3: outer, 4: inner, 5: leak}))
    blind = replace(inner, watched=None)
    assert "cannot be read" in found_in(process(main, descriptors={3: outer, 4: blind, 5: pipe}))


@pytest.mark.parametrize("kind", ["tcp", "unix", "udp"])
def test_a_connection_to_the_outside_counts_even_if_nobody_waits_for_it(kind: str) -> None:
    """Somebody may still ask it."""
    found = descriptor(kind, "outside", peer="10.0.0.1:443")
    said = found_in(process(descriptors={3: found}))
    strange = "is connected to a process that is not part of this world"
    assert said == f"rank 0: {kind} socket to 10.0.0.1:443 {strange}"


@pytest.mark.parametrize(
    "found",
    [
        descriptor("udp", "unknown"),
        descriptor("netlink", "unknown"),
        descriptor("listen", "unknown"),
        descriptor("idle", "unknown"),
        descriptor("pipe", "outside"),
        descriptor("tty"),
        descriptor("unix", "harness"),
    ],
    ids=lambda found: found.kind,
)
def test_what_nobody_waits_for_and_leads_nowhere_does_not_matter(found: Descriptor) -> None:
    """It looks like a way out; every shell leaves some."""
    assert found_in(process(descriptors={3: found})) == ""


@pytest.mark.parametrize(
    ("change", "is_traffic"),
    [({"queues": (8, 0)}, True), ({"bytes_moved": 5000}, True), ({"bytes_moved": 300}, False)],
)
def test_data_that_moves_between_ranks_may_end_a_wait(
    change: dict[str, Any], is_traffic: bool
) -> None:
    """A transfer over a slow link uses no processor; a heartbeat is no transfer."""
    before, after = descriptor("tcp"), descriptor("tcp", **change)
    said = found_in(process(descriptors={3: before}), then=process(descriptors={3: after}))
    assert ("data moves" in said) == is_traffic


def test_data_that_nobody_takes_ends_nothing() -> None:
    """A full queue that stays full is part of the hang."""
    assert found_in(process(descriptors={3: descriptor("tcp", queues=(100, 4000))})) == ""


def to_itself(*moved: int) -> list[Process]:
    """Return a rank that talks to itself, after so many bytes each."""
    ends = Endpoint("127.0.0.1", 50000), Endpoint("127.0.0.1", 29500)
    return [
        process(
            descriptors={
                3: descriptor("tcp", endpoints=ends, bytes_moved=each),
                4: descriptor(
                    "tcp", fd=4, endpoints=ends[::-1], bytes_moved=each, queues=(each % 7, 0)
                ),
            }
        )
        for each in moved
    ]


def test_a_waiting_rank_may_ask_itself_again_and_again() -> None:
    """The one that hosts torch's store does, until all ranks have come."""
    was, becomes = to_itself(0, 9000)
    assert not found_in(was, then=becomes, operations=(operation(),))


@pytest.mark.parametrize(("moved", "open_"), [(9000, ()), (200_000, (operation(),))])
def test_a_rank_that_works_with_itself_may_get_on(moved: int, open_: tuple[Operation, ...]) -> None:
    """A server of its own may do the test's work: where nobody waits, or much is moved."""
    was, becomes = to_itself(0, moved)
    assert "data moves on the tcp" in found_in(was, then=becomes, operations=open_)


def test_data_between_two_ranks_are_nobodys_own() -> None:
    """Both ends must be this rank's."""
    was, becomes = (
        replace(each, descriptors={3: each.descriptors[3]}) for each in to_itself(0, 9000)
    )
    assert "data moves" in found_in(was, then=becomes, operations=(operation(),))


def for_its_turn(**changes: object) -> Thread:
    """Return a thread that waits, five milliseconds at a time, until it may run Python."""
    return beside(ends_s=101.0, waits_for_gil=True, **changes)


def test_a_thread_that_waits_for_its_turn_ends_nothing() -> None:
    """Whoever has the interpreter is looked at as well."""
    assert not found_in(process(for_its_turn()), then=process(for_its_turn(runs=205)))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (beside(), for_its_turn(runs=205)),
        (for_its_turn(), beside(ends_s=101.0, runs=205)),
        (for_its_turn(), for_its_turn(runs=205, cpu_ns=30_000_000)),
    ],
    ids=["at last only", "at first only", "and runs meanwhile"],
)
def test_a_thread_that_gets_its_turn_moves(was: Thread, becomes: Thread) -> None:
    """It must have done nothing but wait for it."""
    assert "wakes up" in found_in(process(was), then=process(becomes))


def test_who_has_the_interpreter_must_stand_still() -> None:
    """Native code that sleeps for a while lets the others run afterwards."""
    native = thread("clock_nanosleep", ends_s=110.0)
    assert "main thread sleeps" in found_in(
        process(native, for_its_turn()), then=process(native, for_its_turn(runs=205))
    )


def test_a_runtimes_own_thread_may_listen() -> None:
    """Servers of rendezvous do so for ever; a thread of the test's may wait for a visitor."""
    server = descriptor("listen", "unknown", peer="127.0.0.1:5000")
    waits = {"call": "epoll_wait", "fds": (3,)}
    own = process(beside(**{"code": GLOO, **waits}), descriptors={3: server})
    assert found_in(own) == ""
    tests = process(beside(**waits), descriptors={3: server})
    assert "a connection to 127.0.0.1:5000" in found_in(tests)


def test_a_runtimes_own_thread_may_wait_for_an_eventfd() -> None:
    """Each loop of a runtime has one; what it does when it is woken is its own."""
    theirs = descriptor("eventfd", "outside", peer="sh 9")
    waits = {"call": "epoll_wait", "fds": (3,)}
    assert found_in(process(beside(**{"code": GLOO, **waits}), descriptors={3: theirs})) == ""
    said = found_in(process(beside(**waits), descriptors={3: theirs}))
    assert said.endswith(
        "waits for eventfd sh 9, which a process that is not part of this world has open"
    )
    doubtful = replace(theirs, where="unknown", peer="")
    assert "may have open" in found_in(process(beside(**waits), descriptors={3: doubtful}))


GPU = descriptor("device", target="/dev/nvidia0")
CUDA = ("/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", LIBC)
NCCL = ("/site-packages/nvidia/nccl/lib/libnccl.so.2", LIBC)
ON_GPU = (replace(operation(), sequence=1), replace(operation(), sequence=2))
"""Two operations that the main thread waits for by the GPU."""


def test_an_accelerator_may_end_a_wait_for_a_lock() -> None:
    """In a main thread that may be a wait for the GPU; of others the stack shows it."""
    assert "has opened /dev/nvidia0" in found_in(process(descriptors={3: GPU}))
    sleeps = thread("clock_nanosleep", ends_s=700.0)
    assert found_in(process(sleeps, descriptors={3: GPU})) == ""
    assert found_in(process(sleeps, beside(), descriptors={3: GPU})) == ""
    in_cuda = beside(code=(*CUDA, *PYTHON))
    assert "has opened /dev/nvidia0" in found_in(process(sleeps, in_cuda, descriptors={3: GPU}))


def test_another_accelerator_may_end_any_wait() -> None:
    """How threads wait for it has not been measured."""
    other = descriptor("device", target="/dev/kfd")
    sleeps = thread("clock_nanosleep", ends_s=700.0)
    assert "has opened /dev/kfd" in found_in(process(sleeps, descriptors={3: other}))


@pytest.mark.parametrize(("entered", "is_blocker"), [(0, False), (1, False), (2, True)])
def test_a_gpu_ends_no_operation_that_a_member_has_not_entered(
    entered: int, is_blocker: bool
) -> None:
    """A thread that spins for two operations waits for both, so one without a member is enough."""
    spins = thread("running", state="R")
    first = moment(process(spins, descriptors={3: GPU}))
    key = ON_GPU[0].group_key
    pages = (Operations(0, ON_GPU, {key: 2}), Operations(1, (), {key: entered}))
    first = replace(first, operations=pages)
    found = blockers(first, later(first), deadline_s=DEADLINE_S)
    assert found == (("rank 0: has opened /dev/nvidia0",) if is_blocker else ())


def test_a_rank_that_has_returned_does_not_wait_for_its_gpu() -> None:
    """It waits at a gate of the harness, though in a lock's manner."""
    gate = operation(name="gate", kind="wait")
    assert found_in(process(descriptors={3: GPU}), operations=(gate,)) == ""


@pytest.mark.parametrize(
    ("changes", "is_runtimes"),
    [
        ({"name": "NCCL Progress 0", "call": "running", "state": "R", "code": None}, True),
        ({"name": "python", "call": "running", "state": "R", "code": None}, False),
        ({"code": NCCL}, True),
        ({"code": CUDA}, True),
        ({"code": (*CUDA, *PYTHON)}, False),
    ],
)
def test_threads_of_cuda_and_nccl_are_the_runtimes_own(
    changes: dict[str, Any], is_runtimes: bool
) -> None:
    """The one that moves data runs all the time, so only its name can tell."""
    assert is_runtime_thread(beside(**changes)) == is_runtimes


def test_the_thread_that_moves_data_of_nccl_may_run() -> None:
    """Any other thread that runs may end a wait."""
    sleeps = thread("clock_nanosleep", ends_s=700.0)
    moves = beside("running", name="NCCL Progress 0", state="R", code=None, cpu_ns=10)
    busy = process(sleeps, replace(moves, cpu_ns=900_000_000))
    assert found_in(process(sleeps, moves), then=busy) == ""
    other = replace(moves, name="python")
    busy = process(sleeps, replace(other, cpu_ns=900_000_000))
    assert "thread python runs" in found_in(process(sleeps, other), then=busy)


def test_threads_that_watch_nccl_time_out_to_poll() -> None:
    """Those of gloo give up an operation."""
    watches = beside(code=("/site-packages/torch/lib/libtorch_cuda.so", LIBC), ends_s=120.0)
    assert found_in(process(watches)) == ""
    assert "gives up its work" in found_in(process(replace(watches, code=GLOO)))


def test_a_child_is_judged_like_a_rank_without_a_runtime() -> None:
    """Its threads are all its own; what it waits for must not end either."""
    waits = process(thread("wait4", child=7))
    child = Process(pid=7, rank=0, is_rank=False, name="sh", threads=(thread(tid=7),))
    assert found_in(waits, child) == ""
    sleeps = replace(child, threads=(thread("clock_nanosleep", tid=7, ends_s=110.0),))
    said = found_in(waits, sleeps)
    assert said == "rank 0: child process `sh` 7 main thread sleeps for another 9.0 s"
    helper = beside("epoll_wait", tid=8, code=GLOO, ends_s=100.0)
    assert "thread python waits in" in found_in(
        waits, replace(child, threads=(*child.threads, helper))
    )


def test_a_file_lock_of_the_world_ends_nothing() -> None:
    """Its holder waits as well; a dead holder is a riddle."""
    waits = process(thread("flock", holders=(7,)))
    holder = Process(pid=7, rank=1, threads=(thread(tid=7),))
    assert found_in(waits, holder) == ""
    assert "held by process 7" in found_in(waits, replace(holder, threads=()))


def test_a_thread_of_ours_is_not_looked_at() -> None:
    """It waits for our questions; what the main thread does is never ours."""
    assert found_in(process(beside("openat", is_exempt=True, ends_s=None))) == ""
    asked = descriptor("file", target="/world/rank-0.ask", is_exempt=True)
    assert found_in(process(beside("poll", fds=(3,), ends_s=101.0), descriptors={3: asked})) == ""
    assert "waits in openat" in found_in(process(thread("openat", is_exempt=True)))


def test_a_closer_look_is_taken_when_all_main_threads_wait() -> None:
    """In operations, in waits without an end in sight, or not any more."""

    def is_worth(main: Thread, *operations: Operation) -> bool:
        return is_still(moment(process(main), operations=operations), deadline_s=DEADLINE_S)

    assert is_worth(thread())
    assert is_worth(thread(state="Z"))
    assert is_worth(thread(state="R"), operation())
    assert not is_worth(thread(state="R"))
    assert not is_worth(thread("clock_nanosleep", ends_s=110.0))


POOL = "_ZN11tensorstore20internal_thread_impl16SharedThreadPool6Worker10WorkerBodyEv"
CLEANER = "_ZN4absl22internal_any_invocable12LocalInvokerILb0EvOZN7riegeli17BackgroundCleaner20E"
SCHEDULE = "_ZN11tensorstore8internal12_GLOBAL__N_117DeadlineTaskQueue3RunEv"
TASK = "_ZN11tensorstore12internal_file20ReadTaskEv"
LOCK = "_ZN4absl5Mutex11AwaitCommonERKNS_9ConditionE"
WAITER = "_ZN4absl24synchronization_internal11FutexWaiter4WaitE"
CALLBACK = "_ZN4absl22internal_any_invocable12LocalInvokerILb0EvOZ4taskE"


@pytest.mark.parametrize("loop", [POOL, CLEANER])
def test_a_worker_that_waits_for_work_is_idle(loop: str) -> None:
    """It ends itself when it gets none, which nobody waits for."""
    worker = pooled(WAITER, "", LOCK, loop)
    assert is_idle(worker)
    assert found_in(process(worker)) == ""


@pytest.mark.parametrize(
    "stack", [(LOCK, SCHEDULE), (LOCK, TASK, POOL), (LOCK, CALLBACK, POOL), ("", "")]
)
def test_a_worker_with_something_further_in_is_not_idle(stack: tuple[str, ...]) -> None:
    """A task, a call that is to be repeated, or a library that does not tell: the wait may end."""
    worker = pooled(*stack)
    assert not is_idle(worker)
    assert "waits for a lock for another" in found_in(process(worker))


def test_what_an_earlier_task_left_on_the_stack_of_an_idle_worker_does_not_matter() -> None:
    """Words that look as if it would return to jax; whoever else it returns to does matter."""
    idle = pooled(WAITER, LOCK, POOL)
    jax = "/site-packages/jaxlib/libjax_common.so"
    assert found_in(process(replace(idle, code=(*TENSORSTORE, jax)))) == ""
    for other in (PYTHON[0], "/site-packages/numpy/_core/_multiarray_umath.so"):
        assert found_in(process(replace(idle, code=(*TENSORSTORE, other)))) != ""


def test_a_worker_that_works_is_not_idle() -> None:
    """Its loop is on its stack as well, and its call is another."""
    worker = pooled(LOCK, POOL)
    assert "pread64" in found_in(process(replace(worker, call="pread64", target="/data/ckpt")))
    assert "stat" in found_in(process(replace(worker, code=(*TENSORSTORE, PYTHON[0]), call="stat")))


def pooled(*names: str) -> Thread:
    """Return a thread of tensorstore that waits for ten seconds, with these on its stack."""
    returns = [(LIBC, 0), *((TENSORSTORE[0], at) for at in range(len(names)))]
    _, function = read_stack(returns, lambda _, offset: names[offset], is_leaf=False)
    return beside(code=TENSORSTORE, function=function, ends_s=110.0)


def test_the_stack_of_another_library_tells_no_function() -> None:
    """Only pools that are known are looked up."""
    returns = [(LIBC, 0), ("/lib/libmine.so", 0), (TENSORSTORE[0], 0)]
    assert read_stack(returns, lambda *_: POOL, is_leaf=False)[1] == ""


def left_behind(*, is_leaf: bool, wait: str = TENSORSTORE[0]) -> Thread:
    """Return a worker with words of others further out than its loop, or in its place."""
    names = {0: WAITER, 1: LOCK, 2: POOL}
    returns = [(wait, 0), (TENSORSTORE[0], 1), (TENSORSTORE[0], 2)]
    returns += [("/site-packages/numpy/_core/_multiarray_umath.so", 3), (PYTHON[0], 4), (LIBC, 5)]
    code, function = read_stack(returns, lambda _, at: names.get(at, ""), is_leaf=is_leaf)
    return beside(code=code, function=function, ends_s=110.0)


def test_what_lies_further_out_than_the_loop_of_a_worker_does_not_matter() -> None:
    """An ended thread's frames lay there; the pool's lock is where the wait returns to."""
    worker = left_behind(is_leaf=True)
    assert worker.code == (TENSORSTORE[0],)
    assert found_in(process(worker)) == ""


@pytest.mark.parametrize(("is_leaf", "wait"), [(False, TENSORSTORE[0]), (True, LIBC)])
def test_a_loop_that_may_itself_be_left_behind_shows_nothing(*, is_leaf: bool, wait: str) -> None:
    """A thread of Python's waits on the stack of an ended worker, in a lock of its own."""
    python = left_behind(is_leaf=is_leaf, wait=wait)
    assert PYTHON[0] in python.code
    assert "waits for a lock for another" in found_in(process(python))


def test_jax_may_connect_again_once_all_have_begun_to() -> None:
    """Its clients wait ever longer before they do."""
    connect = operation(name="jax.distributed.initialize")
    key, _ = connect.place
    first = replace(moment(process()), operations=(Operations(0, (connect,), {key: 1}),))
    missing = replace(first, operations=(*first.operations, Operations(1, (), {})))
    assert "connect again" in "".join(blockers(first, later(first), deadline_s=DEADLINE_S))
    assert blockers(missing, later(missing), deadline_s=DEADLINE_S) == ()


def test_data_that_were_lost_may_arrive() -> None:
    """TCP sends what was lost again, whether or not the test disturbs the network."""
    lost = process(descriptors={3: descriptor("tcp", queues=(0, 1), is_resent=True)})
    assert "may still arrive" in found_in(lost)


def test_data_that_were_lost_may_let_a_rank_of_any_job_go_on() -> None:
    """Two ranks that wait for each other are then no deadlock, seen from outside as in a test."""
    lost = moment(process(descriptors={3: descriptor("tcp", queues=(0, 1), is_resent=True)}))
    (why,) = rank_blockers(lost, later(lost), deadline_s=DEADLINE_S)[0]
    assert "may still arrive" in why
