"""Which operations of a job's ranks cannot be one, where frames do not show the groups."""

from __future__ import annotations

from dataclasses import replace

import builders
import pytest
from builders import stands

from pytest_multihost.core.blame import Cause, find_causes
from pytest_multihost.extensions.live.barriers import Barrier, barrier_of_call
from pytest_multihost.extensions.live.groups import with_unlike_groups
from pytest_multihost.extensions.live.waits import (
    SeenWait,
    as_of_probably_all,
    as_of_some,
    is_in_ddp,
    seen_wait,
    with_barrier,
)
from pytest_multihost.testing import Frame

SITE = "/venv/lib/python3.12/site-packages"
TORCH = f"{SITE}/torch/distributed/distributed_c10d.py"
LOGGED = Frame(f"{SITE}/torch/distributed/c10d_logger.py", 81, "wrapper")
A, B = (f"<ProcessGroup at 0x7f{each}>" for each in ("0a", "0b"))


def wait(held: str, line: int = 17, source: str = "", **variables: str) -> SeenWait:
    """Return a wait in an all_reduce of a group, with the variables of its caller."""
    frames = (Frame(TORCH, 3000, "all_reduce"), LOGGED, Frame("/job/train.py", line, "step"))
    values = ({}, {"args": "(<Tensor at 0x7f>)", "kwargs": f'{{"group": {held}}}'}, variables)
    return seen_wait(frames, source, size=2, at_s=1.0, is_blocked=True, values=values)


def at_barrier(name: str) -> SeenWait:
    """Return a wait at a barrier of jax's coordination service; its id is unknown if empty."""
    native = builders.operation(
        "wait_at_barrier", has_members=False, sequence=0, source="native-frames", group=(0, 1, 2)
    )
    barrier = Barrier(name) if name else None
    return with_barrier(SeenWait(as_of_probably_all(native)), barrier, 0.0)


def some(name: str) -> SeenWait:
    """Return a wait in a collective of an unknown group."""
    found = builders.operation(
        name, has_members=False, sequence=0, source="python-frames", group=(0, 1, 2)
    )
    return SeenWait(as_of_some(found))


def judged(*waits: SeenWait) -> Cause:
    """Return why ranks hang that wait so; a rank without an operation sleeps."""
    told = with_unlike_groups(dict(enumerate(waits)), range(len(waits)))
    states = [
        stands(rank, *([each.operation] if each.operation else []), label="BLOCKED")
        for rank, each in told.items()
    ]
    return find_causes(states)[0]


def test_groups_in_a_loop_in_opposite_orders_are_a_deadlock() -> None:
    """The loop's variable holds both in turn; the other variables tell them apart."""
    both = {"a": A, "b": B}
    cause = judged(wait(A, group=A, **both), wait(B, group=B, **both))
    assert (cause.kind, cause.culprits, cause.cycle) == ("deadlock", (), (0, 1))


def test_groups_that_attributes_hold_are_told_apart_by_the_line() -> None:
    """No variable holds them."""
    tensor, data = (
        wait(A, line, f"dist.all_reduce(x, group=self.{name})")
        for line, name in ((17, "tensor"), (19, "data"))
    )
    assert judged(tensor, data).kind == "deadlock"


def test_a_group_with_one_name_more_on_a_rank_may_be_the_same() -> None:
    """An innocent: the rank has kept it under another name, too."""
    cause = judged(wait(A, group=A, mine=A), wait(B, group=B))
    assert cause.kind == "transport"


def test_groups_that_a_list_holds_are_told_apart_by_their_places() -> None:
    """A dictionary's keys do the same; the loop's variable holds each in turn."""
    for both in (f"[{A}, {B}]", f'{{"data": {A}, "tensor": {B}}}'):
        cause = judged(wait(A, group=A, groups=both), wait(B, group=B, groups=both))
        assert (cause.kind, cause.culprits, cause.cycle) == ("deadlock", (), (0, 1))


def test_lists_in_opposite_orders_do_not_tell_groups_apart() -> None:
    """An innocent: the first item of each rank's list may be one group."""
    one, two = wait(A, order=f"[{A}, {B}]"), wait(B, order=f"[{B}, {A}]")
    assert judged(one, two).kind == "transport"


def test_groups_of_a_module_are_told_apart_by_the_line() -> None:
    """The variables of a module are not on its stack."""
    tensor, data = (
        wait(A, n, f"dist.all_reduce(x, group={name})") for n, name in ((17, "tp"), (19, "dp"))
    )
    assert judged(tensor, data).kind == "deadlock"
    assert judged(tensor, tensor).kind == "transport"


def test_a_rank_at_another_barrier_than_the_others_is_a_likely_mismatch() -> None:
    """The ids are at one line of code; both are in the sentence's operations."""
    cause = judged(at_barrier("saved"), at_barrier("loaded"), at_barrier("saved"))
    assert (cause.kind, cause.confidence, cause.culprits) == ("mismatch", "likely", (1,))
    words = {each.operation.title for each in cause.concerned_waits if each.operation}
    assert words == {"wait_at_barrier saved", "wait_at_barrier loaded"}


def test_ranks_at_barriers_of_their_own_wait_for_each_other() -> None:
    """A tie names nobody."""
    cause = judged(at_barrier("1"), at_barrier("2"), at_barrier("3"))
    assert (cause.kind, cause.culprits) == ("deadlock", ())


def test_ranks_at_one_barrier_and_at_an_unknown_one_are_not_accused() -> None:
    """An innocent: the barrier whose id cannot be read may be the same."""
    assert judged(at_barrier("saved"), at_barrier(""), at_barrier("saved")).kind == "transport"


def test_a_rank_in_no_operation_explains_waits_at_two_barriers_better() -> None:
    """One barrier may be of a few ranks, and both need the one that computes."""
    cause = judged(at_barrier("saved"), at_barrier("loaded"), SeenWait())
    assert (cause.kind, cause.culprits) == ("straggler", (2,))


CALL = ("def meet(client, name, step):", "    client.wait_at_barrier(", "        {}, 1000{})")


@pytest.mark.parametrize(
    ("given", "more", "found"),
    [
        ("name", "", Barrier("saved", limit_s=1.0)),
        ('f"{name} {step}"', "", Barrier("saved 3", limit_s=1.0)),
        ('"a-" + name', "", Barrier("a-saved", limit_s=1.0)),
        ("name", ", process_ids=[1, 0]", Barrier("saved", (0, 1), 1.0)),
        ("name", ", ranks", Barrier("saved", (0, 2), 1.0)),
        ("name", ", everybody()", None),
        ("self.name", "", None),
        ("long", "", None),
        ("step + 1", "", None),
        ('f"{step:03}"', "", None),
    ],
)
def test_the_id_of_a_barrier_is_read_from_its_call(
    given: str, more: str, found: Barrier | None
) -> None:
    """Only if all of it is known: half an id may be equal where the whole is not."""
    lines = [*CALL[:2], CALL[2].format(given, more)]
    values = {"name": '"saved"', "step": "3", "ranks": "[0, 2]", "long": '"begin..."'}
    assert barrier_of_call(lines, 2, values) == found


@pytest.mark.parametrize(
    ("given", "left_s"),
    [
        ("600_000", 500.0),
        ("timeout_in_ms=timeout", 200.0),
        ("5 * 60 * 1000", 200.0),
        ("_TIMEOUT * 1000", None),
        ("limit()", None),
    ],
)
def test_a_barrier_times_out_after_its_timeout_since_the_process_began_at_the_earliest(
    given: str, left_s: float | None
) -> None:
    """When the first rank has arrived is unknown: it was not before its process began."""
    barrier = barrier_of_call(
        [f'client.wait_at_barrier("saved", {given})'], 1, {"timeout": "300000"}
    )
    assert with_barrier(at_barrier(""), barrier, 100.0).ends_in_s == left_s


def test_different_operations_of_unknown_groups_wait_for_each_other() -> None:
    """Whether they are of one group or of two, no call of the others ends one of them."""
    cause = judged(some("all_reduce"), some("barrier"), some("barrier"))
    assert (cause.kind, cause.culprits) == ("deadlock", ())


def test_a_rank_in_no_operation_explains_the_waits_better() -> None:
    """The groups of the two that wait may both need it."""
    cause = judged(some("all_reduce"), some("barrier"), SeenWait())
    assert (cause.kind, cause.culprits) == ("straggler", (2,))


def test_a_wait_for_earlier_work_may_be_any_collective() -> None:
    """An innocent: the work was begun by the other operation."""
    assert judged(some("all_reduce"), some("work.wait")).kind == "transport"


def test_a_rank_that_leaves_is_missing_where_others_still_work() -> None:
    """It waits in shutdown for all, and the others wait for its next step."""
    step = replace(as_of_probably_all(builders.operation()), group=(0, 1, 2))
    leaving = replace(step, name="shutdown", has_members=True)
    cause = judged(SeenWait(step), SeenWait(leaving), SeenWait(leaving))
    assert (cause.kind, cause.culprits, cause.waiting) == ("straggler", (1, 2), (0,))


def test_ranks_that_all_leave_wait_for_the_one_that_does_not() -> None:
    """Nobody waits in another operation."""
    leaving = replace(builders.operation("shutdown"), group=(0, 1, 2), sequence=0)
    cause = judged(SeenWait(), SeenWait(leaving), SeenWait(leaving))
    assert (cause.kind, cause.culprits) == ("straggler", (0,))


def test_a_program_of_jax_against_a_barrier_names_the_minority() -> None:
    """Such a program is likely of all ranks."""
    native = builders.operation(has_members=False, sequence=0, source="native-frames")
    program = SeenWait(as_of_probably_all(replace(native, group=(0, 1, 2))))
    sync = replace(native, name="sync_global_devices", group=(0, 1, 2), has_members=True)
    cause = judged(program, SeenWait(replace(sync, source="python-frames")), program)
    assert (cause.kind, cause.confidence, cause.culprits) == ("mismatch", "likely", (1,))


DDP = Frame(f"{SITE}/torch/nn/parallel/distributed.py", 1700, "_sync_buffers")
USER = Frame("/job/train.py", 17, "step")


def test_a_broadcast_of_buffers_is_ddps() -> None:
    """C++ code has begun it."""
    assert is_in_ddp((DDP, Frame(f"{SITE}/torch/nn/modules/module.py", 1, "_call_impl"), USER))


def test_an_operation_of_the_module_itself_is_not_ddps() -> None:
    """An innocent: DDP has called the module, which uses a group of its own."""
    assert not is_in_ddp((Frame("/job/model.py", 9, "forward"), DDP, USER))
