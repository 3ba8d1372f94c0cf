"""Causes in full: the operation, since when, every rank, and how sure that is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import collective, operation, stands

from pytest_multihost.core.blame.cause import UNKNOWN, Cause
from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.payloads import as_other_payload
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import Wait, broken_by, find_waits, possible_waits
from pytest_multihost.testing import HARNESS_SCOPE, SOCKET_SCOPE, Operation, RankSnapshot, Scope

TRIO = (0, 1, 2)


def first(*states: RankState) -> Cause:
    """Return the first cause, without the list of all waits."""
    return replace(find_causes(states)[0], waits=())


def waits_of(rank: int, *states: RankState) -> list[Wait]:
    """Return the waits of a rank."""
    return [each for each in find_waits({e.rank: e for e in states}) if each.rank == rank]


PAIR = operation(since_s=4.0, group=(0, 1))
OTHER_PAIR = operation(since_s=3.0, group=(0, 1), ordinal=1)
OF_ALL = operation(since_s=5.0)


def test_a_stopped_rank_in_a_circle_is_to_blame_and_no_deadlock_is_told() -> None:
    """Continued, it would finish its collective."""
    found = first(
        stands(0, PAIR), stands(1, OTHER_PAIR, condition="stopped", since_s=2.5), stands(2, OF_ALL)
    )
    assert found == Cause(
        kind="stopped",
        confidence="certain",
        culprits=(1,),
        waiting=(0, 2),
        operation=PAIR,
        at_s=2.5,
    )


def test_native_code_that_holds_the_gil_in_a_circle_is_to_blame() -> None:
    """It holds the GIL while another of its threads waits for a lock of the other rank."""
    found = first(
        stands(0, PAIR), stands(1, condition="gil_held", lock_holders=(0,)), stands(2, OF_ALL)
    )
    assert (found.kind, found.confidence) == ("gil_held", "certain")
    assert (found.culprits, found.waiting, found.operation) == ((1,), (0, 2), PAIR)


def test_a_deadlock_began_with_its_first_operation() -> None:
    """Others wait for it since longer, and are not in it."""
    early = operation(since_s=1.0)
    found = first(stands(0, PAIR), stands(1, OTHER_PAIR), stands(2, early))
    assert found == Cause(
        kind="deadlock",
        confidence="certain",
        waiting=(0, 1, 2),
        cycle=(0, 1),
        operation=OTHER_PAIR,
        at_s=3.0,
    )


def test_a_deadlock_with_a_lock_that_is_tried_again_and_again_is_only_likely() -> None:
    """Between two tries it may be released."""
    tries = RankState(seen=RankSnapshot(rank=1, lock_holders=(0,), tries_lock=True))
    found = first(stands(0, PAIR), tries)
    assert (found.kind, found.confidence, found.operation) == ("deadlock", "likely", PAIR)


def test_all_who_wait_for_what_one_of_them_should_provide_wait_for_somebody_unknown() -> None:
    """No rank is named."""
    key = operation("store.get", kind="wait", detail="k")
    assert first(*(stands(rank, key) for rank in TRIO)) == UNKNOWN
    assert (UNKNOWN.kind, UNKNOWN.confidence, UNKNOWN.culprits) == ("unknown", "unknown", ())


def test_barriers_of_the_harness_with_another_name_are_another_operation() -> None:
    """Two ranks are in barrier a, one is in barrier b: that one is the minority."""
    a, b = (
        operation("world.barrier", since_s=at_s, scope=HARNESS_SCOPE, detail=name)
        for name, at_s in (("a", 1.0), ("b", 2.0))
    )
    found = first(stands(0, a), stands(1, b), stands(2, a))
    assert (found.kind, found.culprits, found.waiting) == ("mismatch", (1,), (0, 2))
    assert (found.operation, found.at_s, found.confidence) == (a, 1.0, "certain")


def test_shapes_alone_make_no_minority() -> None:
    """The runtime's collectives may match although they differ."""
    one, two = operation(detail="f32[5]"), operation(detail="f32[3]")
    found = first(stands(0, one), stands(1, two), stands(2, one))
    assert (found.kind, found.culprits, found.confidence) == ("transport", (), "likely")
    assert (found.operation, found.at_s, found.waiting) == (one, 1.0, TRIO)


def test_a_mismatch_at_an_unknown_place_is_only_likely() -> None:
    """All have entered something of the group, and it cannot match."""
    reduce, gather = operation(sequence=0), operation("all_gather", sequence=0, since_s=2.0)
    states = [stands(0, reduce), stands(1, gather), stands(2, reduce)]
    assert waits_of(0, *states) == [
        Wait(0, reduce, frozenset({1}), is_sure=False, is_mismatch=True)
    ]
    assert first(*states).confidence == "likely"


def test_a_receive_from_any_rank_waits_for_those_that_wait_for_nothing() -> None:
    """If all wait, for any other of its group."""
    receive = operation("recv", kind="transfer", peer=None)
    busy = stands(1, operation("send", kind="transfer", peer=2))
    states = [stands(0, receive), busy, stands(2)]
    assert waits_of(0, *states) == [Wait(0, receive, frozenset({2}), is_sure=False)]
    both = [stands(0, receive), busy, stands(2, operation("recv", kind="transfer", peer=1))]
    assert waits_of(0, *both) == [Wait(0, receive, frozenset({1, 2}), is_sure=False)]


def test_a_rank_that_gave_up_waits_for_the_first_that_was_lost() -> None:
    """Its exception does not say which."""
    lost = stands(0, condition="raised", since_s=9.0, is_lost=True)
    states = [
        stands(1, condition="died", since_s=6.0),
        stands(2, condition="stopped", since_s=5.0),
        stands(3, condition="finished", since_s=1.0),
    ]
    assert waits_of(0, lost, *states) == [Wait(0, None, frozenset({2}), is_sure=False)]
    assert waits_of(0, lost) == [Wait(0, None, frozenset(), is_sure=False)]
    assert waits_of(0, lost, states[2]) == [Wait(0, None, frozenset(), is_sure=False)]


def test_of_two_failed_ranks_who_polls_looks_for_the_first() -> None:
    """Whichever has the lower number."""
    polls = stands(0, label="SLEEPING", polls=True)
    failed = [
        stands(1, condition="raised", since_s=8.0),
        stands(2, condition="died", since_s=3.0),
    ]
    states = {each.rank: each for each in (polls, *failed)}
    assert possible_waits(states) == (Wait(0, None, frozenset({2}), is_sure=False),)


def test_a_wait_for_a_connection_leaves_out_all_that_wait() -> None:
    """They will not connect; nor will who has finished, if another has failed."""
    door = operation("accept4", kind="wait", scope=SOCKET_SCOPE, sequence=0, group=(0, 1, 2, 3))
    others = [stands(1, OF_ALL), stands(2), stands(3, condition="finished")]
    [wait] = waits_of(0, stands(0, door), *others)
    assert wait == Wait(0, door, frozenset({2, 3}), is_sure=False)
    failed = [others[0], stands(2, condition="died", since_s=1.0), others[2]]
    [wait] = waits_of(0, stands(0, door), *failed)
    assert wait.missing == {2}


def test_fellows_of_a_wait_for_a_key_ask_for_the_same_key() -> None:
    """Who asks for another one may provide this."""
    mine, other = (operation("store.get", kind="wait", detail=name) for name in "ab")
    [wait] = waits_of(0, stands(0, mine), stands(1, mine), stands(2, other))
    assert wait.missing == {2}


def call(caller: int, peer: int, **more: object) -> Operation:
    """Return the call of a function of another rank."""
    scope = Scope("rpc", str(caller))
    return operation("rpc_sync(f)", kind="transfer", peer=peer, scope=scope, **more)


RUNS = replace(
    operation("run", kind="wait", detail="f", thread=7), scope=Scope("rpc-callee"), waited_s=None
)


def test_a_called_function_that_has_ended_keeps_no_caller() -> None:
    """The rank's own wait for the caller counts again."""
    shutdown = operation("rpc.shutdown", scope=Scope("rpc"), group=(0, 1))
    ended = replace(RUNS, ended_s=2.0)
    running = [stands(0, call(0, 1)), stands(1, shutdown, RUNS)]
    over = [stands(0, call(0, 1)), stands(1, shutdown, ended)]
    assert [each.kind for each in find_causes(running)] == ["straggler"]
    assert find_causes(running)[0].culprits == (1,)
    assert find_causes(over)[0].kind == "deadlock"


def test_a_wait_that_its_function_has_left_again_is_none() -> None:
    """The function computes: the caller waits for it, and not the other way round."""
    shutdown = operation("rpc.shutdown", scope=Scope("rpc"), group=(0, 1))
    left = replace(operation("all_reduce", group=(1, 2), thread=7), ended_s=2.0)
    found = first(stands(0, call(0, 1)), stands(1, shutdown, RUNS, left), stands(2))
    assert (found.kind, found.culprits, found.waiting) == ("straggler", (1,), (0,))


@pytest.mark.parametrize("condition", ["died", "raised"])
def test_a_failure_that_others_wait_for_has_the_time_of_the_failure(condition: str) -> None:
    """Not that at which they began to wait."""
    found = first(stands(0, OF_ALL), stands(1, OF_ALL), stands(2, condition=condition, since_s=6.5))
    assert (found.kind, found.at_s, found.operation) == (condition, 6.5, OF_ALL)
    assert found.confidence == "certain"


def test_a_late_rank_is_late_since_the_first_began_to_wait_for_it() -> None:
    """The operation is that of the first."""
    later = replace(OF_ALL, since_s=7.0)
    found = first(stands(0, later), stands(1, OF_ALL), stands(2))
    assert (found.kind, found.at_s, found.operation) == ("straggler", 5.0, OF_ALL)
    assert (found.culprits, found.waiting) == ((2,), (0, 1))


def test_a_rank_whose_callers_have_gone_on_waits_like_any_other() -> None:
    """It runs a function for somebody, and nobody is seen to wait for that."""
    inside = operation("all_gather", group=(2, 3), sequence=1)
    states = [
        stands(0, call(0, 1)),
        stands(1, RUNS),
        stands(2, RUNS, inside),
        stands(3, inside),
    ]
    assert waits_of(2, *states) == [Wait(2, inside, frozenset())]


def test_a_rank_that_runs_what_another_called_does_not_wait_for_that_caller() -> None:
    """Its shutdown waits for the caller alone, and so for its own function."""
    shutdown = operation("rpc.shutdown", scope=Scope("rpc"), group=(0, 1))
    states = [stands(0, call(0, 1)), stands(1, shutdown, RUNS)]
    assert waits_of(1, *states) == []
    assert waits_of(0, *states) == [Wait(0, call(0, 1), frozenset({1}))]
    third = operation("rpc.shutdown", scope=Scope("rpc"))
    states = [stands(0, call(0, 1)), stands(1, third, RUNS), stands(2)]
    assert waits_of(1, *states) == [Wait(1, third, frozenset({2}))]


def sent(rank: int, times: int) -> RankState:
    """Return a rank that has sent messages to rank 0, and waits for nothing."""
    done = [
        operation("send", kind="transfer", peer=0, sequence=number, ended_s=2.0)
        for number in range(1, times + 1)
    ]
    return stands(rank, *done)


def received(*peers: int | None, failed: int = 0) -> list[Operation]:
    """Return receives that have ended well, and some that have failed."""
    made = [
        operation("recv", kind="transfer", peer=peer, sequence=number, ended_s=2.0)
        for number, peer in enumerate(peers, start=1)
    ]
    return made + [replace(made[-1], failed=True, peer=None)] * failed


@pytest.mark.parametrize(
    ("before", "from_1", "from_2", "missing"),
    [
        (received(1, None), 2, 0, {1}),  # the one from any rank took the second
        (received(1, 2, None), 2, 1, {1}),  # nobody else had sent one that was left
        (received(1, None), 2, 1, set()),  # it may have been that of rank 2
        (received(1, None), 3, 0, set()),  # one is left
        (received(1), 2, 0, set()),
        (received(1, failed=1), 2, 0, set()),  # that one took nothing
        (received(1, None), 1, 0, {1}),  # it has not sent a second one
    ],
)
def test_a_receive_lacks_its_peer_if_another_receive_has_taken_its_message(
    before: list[Operation], from_1: int, from_2: int, missing: set[int]
) -> None:
    """Where it may have taken another's, nobody is named."""
    waits = operation("recv", kind="transfer", peer=1, sequence=2)
    states = [stands(0, *before, waits), sent(1, from_1), sent(2, from_2)]
    assert waits_of(0, *states) == [Wait(0, waits, frozenset(missing))]


def test_a_function_that_computes_is_not_kept_by_one_that_calls_back() -> None:
    """Both run for rank 0; what the other thread had waited for is over."""
    over = replace(operation("all_reduce", thread=8), ended_s=2.0)
    second = replace(RUNS, thread=8, detail="g")
    back = call(1, 0, thread=7)
    one = [stands(0, call(0, 1)), stands(1, RUNS, back)]
    assert waits_of(1, *one) == [Wait(1, back, frozenset({0}))]
    two = [stands(0, call(0, 1)), stands(1, RUNS, second, back, over)]
    assert waits_of(1, *two) == []


def of_size(detail: str, name: str = "all_reduce") -> Operation:
    """Return a collective of three ranks with a tensor."""
    return operation(name, sequence=1, group=TRIO, detail=detail)


@pytest.mark.parametrize("has_left", [True, False], ids=["gone on", "still there"])
@pytest.mark.parametrize(
    ("name", "smaller", "kind", "culprits"),
    [
        ("all_reduce", "f32[2]", "mismatch", (0,)),
        ("all_reduce", "f64[3]", "mismatch", (0,)),
        ("all_reduce", "f32[3,1]", "transport", ()),
        ("all_reduce", "", "transport", ()),
        ("all_gather", "f32[2]", "transport", ()),
    ],
)
def test_a_tensor_of_another_size_is_a_mismatch_where_sizes_must_agree(
    *, has_left: bool, name: str, smaller: str, kind: str, culprits: tuple[int, ...]
) -> None:
    """A rank with a smaller tensor may have all that it needs, and go on."""
    own, usual = of_size(smaller, name), of_size("f32[1,3]", name)
    ended = replace(own, ended_s=own.since_s + 0.1, waited_s=None)
    mine = (ended, collective(2, name="barrier", group=TRIO)) if has_left else (own,)
    states = [stands(0, *mine), stands(1, usual), stands(2, usual)]
    cause = find_causes(states)[0]
    found = as_other_payload(cause, {each.rank: each for each in states})
    assert (found.kind, found.culprits) == (kind, culprits)
    assert found.waiting == tuple(rank for rank in TRIO if rank not in culprits)


@pytest.mark.parametrize(
    ("absent", "kind"),
    [
        ({"condition": "finished"}, "finished"),
        ({"label": "SLEEPING"}, "straggler"),
        ({"condition": "raised", "since_s": 9.0}, "raised"),
    ],
)
def test_a_mismatch_hides_no_rank_that_has_entered_neither_operation(
    absent: dict[str, object], kind: str
) -> None:
    """If the mismatch were mended, the others would wait for it."""
    one, other = operation(sequence=1), operation("barrier", sequence=1)
    states = [stands(0, one), stands(1, **absent), stands(2, other), stands(3, one)]
    found = {cause.kind: cause.culprits for cause in find_causes(states)}
    assert found == {"mismatch": (2,), kind: (1,)}


def test_a_rank_that_has_passed_the_operation_is_not_absent_from_it() -> None:
    """A broadcast lets some pass before others enter."""
    one, other = operation(sequence=1), operation("barrier", sequence=1)
    ended = replace(one, ended_s=1.5, waited_s=None)
    states = [stands(0, one), stands(1, ended, label="SLEEPING"), stands(2, other), stands(3, one)]
    assert [(cause.kind, cause.culprits) for cause in find_causes(states)] == [("mismatch", (2,))]


def test_a_collective_that_a_rank_broke_off_is_no_transfer_of_the_same_number() -> None:
    """They are counted apart."""
    broke = replace(operation(sequence=1), ended_s=2.0, waited_s=None, failed=True, error="OSError")
    receive = operation("recv", kind="transfer", sequence=1, peer=1)
    peer = stands(1, broke=(broke,))
    assert broken_by(operation(sequence=1), peer) == broke
    assert broken_by(receive, peer) is None
