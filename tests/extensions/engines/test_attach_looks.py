"""What several machines have seen, put together to one look, and what that may prove."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_multihost.core.proof import Snapshot, blockers
from pytest_multihost.core.slots import (
    SlotPage,
    history_path,
    read_histories,
    read_slots,
    shift_times,
)
from pytest_multihost.core.watch.kernel import RemoteSnapshot, merge_snapshots
from pytest_multihost.extensions.engines.pytest_plugin.controller import first_difference
from pytest_multihost.testing import (
    NEVER,
    PLAIN,
    Descriptor,
    Endpoint,
    KernelSnapshot,
    Process,
    Thread,
    from_json,
    to_json,
)

pytestmark = pytest.mark.unit

PID = 50
STRANGE = "connected to a process that is not part of this world"
"""Both machines have given their rank this process id."""


def connection(local: str, remote: str, space: str = "", **changes: object) -> Descriptor:
    """Return one side of a TCP connection that leads out of its machine."""
    about = {"fd": 5, "target": "socket:[1]", "kind": "tcp", "where": "outside", "peer": remote}
    ends = Endpoint(local, 7, space), Endpoint(remote, 7, space)
    return Descriptor(**{**about, "endpoints": ends, **changes})


def waiting(rank: int, found: Descriptor, **changes: object) -> Process:
    """Return a rank that waits for what comes through a connection."""
    about = {"tid": PID, "call": "read", "ends_s": NEVER, "fds": (5,), "started_s": 1.0}
    return Process(
        pid=PID, rank=rank, threads=(Thread(**{**about, **changes}),), descriptors={5: found}
    )


def look(*processes: Process, at_s: float = 10.0) -> KernelSnapshot:
    """Return a close look."""
    return KernelSnapshot(at_s=at_s, processes=processes, is_deep=True)


MINE = look(waiting(0, connection("10.0.0.1", "10.0.0.2")))
THEIRS = look(waiting(1, connection("10.0.0.2", "10.0.0.1")), at_s=1010.0)


def joined(
    mine: KernelSnapshot = MINE, theirs: KernelSnapshot = THEIRS, **changes: object
) -> KernelSnapshot:
    """Return both machines' looks as one."""
    other = RemoteSnapshot(**{"number": 1, "snapshot": theirs, "offset_s": -1000.0, **changes})
    return merge_snapshots(mine, [other], PLAIN)


def test_a_look_travels() -> None:
    """Unchanged, with its times that never come."""
    process = waiting(3, connection("a", "b"), holders=(7,), code=("libc.so",), child=-1)
    found = look(replace(process, unread=("signals",), timers=None))
    assert from_json(KernelSnapshot, json.loads(json.dumps(to_json(found)))) == found


def test_processes_of_two_machines_with_one_number_are_told_apart() -> None:
    """Each is found by an id of its own, and its thread ids stay what slot pages call them."""
    found = joined()
    assert [each.rank for each in found.processes] == [0, 1]
    assert len({each.pid for each in found.processes}) == 2
    assert [each.threads[0].tid for each in found.processes] == [PID, PID]
    assert found.is_deep


def test_a_connection_between_machines_leads_into_the_world() -> None:
    """Both sides of it."""
    descriptors = [each.descriptors[5] for each in joined().processes]
    assert [each.where for each in descriptors] == ["inside", "inside"]
    assert [each.peer for each in descriptors] == ["10.0.0.2 (rank 1)", "10.0.0.1 (rank 0)"]


def test_two_ranks_that_wait_for_each_other_across_machines_are_proven_to_hang() -> None:
    """As they would be on one."""
    before, now = joined(), replace(joined(), at_s=11.0)
    assert blockers(Snapshot(before), Snapshot(now), deadline_s=100.0) == ()


@pytest.mark.parametrize(
    ("theirs", "word"),
    [
        (look(), STRANGE),  # nobody there has the other end
        (look(waiting(1, connection("10.0.0.2", "10.0.0.3"))), STRANGE),
        (replace(THEIRS, is_deep=False), "only main threads were observed"),
    ],
)
def test_what_the_other_machine_does_not_show_proves_nothing(
    theirs: KernelSnapshot, word: str
) -> None:
    """It may end the wait."""
    before, now = joined(theirs=theirs), replace(joined(theirs=theirs), at_s=11.0)
    assert word in " ".join(blockers(Snapshot(before), Snapshot(now), deadline_s=100.0))


def test_bytes_on_their_way_between_machines_prove_nothing() -> None:
    """What is not acknowledged may arrive when the network gets better."""
    mine = look(waiting(0, connection("10.0.0.1", "10.0.0.2", queues=(0, 12))))
    before, now = joined(mine), replace(joined(mine), at_s=11.0)
    assert blockers(Snapshot(before), Snapshot(now), deadline_s=100.0) == (
        f"rank 0: tcp socket to 10.0.0.2 is {STRANGE}",
        f"rank 0: main thread waits for tcp 10.0.0.2, which is {STRANGE}",
    )


@pytest.mark.parametrize(("machine", "where"), [("here", "inside"), ("there", "outside")])
def test_a_loopback_address_means_something_on_one_machine_alone(machine, where) -> None:
    """The first network namespace has the same number everywhere."""
    mine = look(waiting(0, connection("127.0.0.1", "127.0.0.2", "here net:[1]")))
    theirs = look(waiting(1, connection("127.0.0.2", "127.0.0.1", f"{machine} net:[1]")))
    found = joined(mine, theirs)
    assert {each.descriptors[5].where for each in found.processes} == {where}


def test_times_of_another_machine_become_ours_and_err_on_the_safe_side() -> None:
    """A wait may end by as much earlier as the clock is not known."""
    theirs = look(waiting(1, connection("a", "b"), ends_s=1100.0, started_s=1001.0))
    thread = joined(theirs=theirs, slack_s=0.5).processes[1].threads[0]
    assert thread.started_s == 1.0
    assert thread.ends_s == 99.5


def test_what_never_ends_does_not_end_on_our_clock_either() -> None:
    """And what is not known is not known."""
    theirs = look(
        waiting(1, connection("a", "b"), ends_s=None), replace(waiting(2, connection("c", "d")))
    )
    assert [each.threads[0].ends_s for each in joined(theirs=theirs).processes[1:]] == [None, NEVER]


def test_process_ids_that_threads_and_descriptors_name_move_along() -> None:
    """A lock's holder, a child that is waited for, a pidfd."""
    process = waiting(1, connection("a", "b", pid=60), holders=(61,), child=62)
    found = joined(theirs=look(process)).processes[1]
    base = found.pid - PID
    assert base > 1 << 31
    assert found.threads[0].holders == (61 + base,)
    assert found.threads[0].child == 62 + base
    assert found.descriptors[5].pid == 60 + base


# Whether two processes hold the same tests

LISTED = [("t.py::a", 2, "gloo"), ("t.py::b", 4, "none")]


def test_the_same_tests_in_another_order_are_the_same() -> None:
    """The controller says which is next."""
    assert first_difference(LISTED, LISTED[::-1]) is None


@pytest.mark.parametrize(
    ("theirs", "words"),
    [
        (LISTED[:1], "t.py::b: here ranks=4, backend='none' and there it was not collected"),
        ([*LISTED, ("t.py::c", 2, "jax")], "t.py::c: here it was not collected and there ranks=2"),
        ([LISTED[0], ("t.py::b", 2, "none")], "t.py::b: here ranks=4, backend='none' and there"),
        ([], "t.py::a: here ranks=2, backend='gloo' and there it was not collected"),
    ],
)
def test_the_first_test_that_differs_is_named(theirs, words) -> None:
    """With what each side makes of it, and how many each has."""
    difference = first_difference(LISTED, theirs)
    assert difference is not None
    assert words in difference
    assert f"2 multihost tests here, {len(theirs)} there" in difference


def test_the_name_of_a_test_elsewhere_is_one_printable_line() -> None:
    """It goes to the terminal, and comes from another process."""
    difference = first_difference([], [("t.py::a\x1b[2J\n::error::b", 2, "gloo")])
    assert difference is not None
    assert difference.isprintable()
    assert "\u241b[2J\u240a" in difference


# Slot pages of another machine


def test_a_slot_page_is_moved_to_our_clock(tmp_path: Path) -> None:
    """Its times are, and nothing else of it; an operation that is open stays open."""
    page = SlotPage.create(tmp_path / "rank-1.slots")
    call = page.call("all_reduce", "collective", page.group((0, 1)))
    begun = page.begin(call, now_ns=5_000_000_000, thread=7, source=(0, 0, 0))
    page.leave(begun)
    page.end(begun, 6_000_000_000)
    waited = page.begin(call, now_ns=7_000_000_000, thread=7, source=(0, 0, 0))
    page.wait(waited, now_ns=7_500_000_000, thread=7, source=(0, 0, 0))
    data = page.path.read_bytes()
    moved = tmp_path / "moved"
    moved.write_bytes(shift_times(data, -4_000_000_000))
    was, now = (read_slots(path, rank=1) for path in (page.path, moved))
    assert [(each.since_s, each.ended_s) for each in now.recent] == [(1.0, 2.0), (3.0, None)]
    assert now.recent[1].waited_s == 3.5
    assert now.entered == was.entered
    assert [each.name for each in now.recent] == [each.name for each in was.recent]
    assert shift_times(data, 0) == data
    assert shift_times(b"no page", 1) == b"no page"


def test_a_history_is_moved_to_our_clock(tmp_path: Path) -> None:
    """All of its times are, and nothing else of it."""
    page = SlotPage.create(tmp_path / "rank-1.slots")
    call = page.call("all_reduce", "collective", page.group((0, 1)))
    for second in (5, 6, 7):
        page.begin(call, now_ns=second * 1_000_000_000, thread=7, source=(0, 0, 0))
    [was] = read_histories(page.path, rank=1)
    file = history_path(page.path)
    file.write_bytes(shift_times(file.read_bytes(), -4_000_000_000))
    [now] = read_histories(page.path, rank=1)
    assert now == replace(was, times_s=(1.0, 2.0, 3.0))
