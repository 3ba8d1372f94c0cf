"""Which operations of a simulated world match, and which of them end with which result."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from pytest_multihost.extensions.simulated.exchange import (
    Exchange,
    broadcast_children,
    broadcast_parent,
)
from pytest_multihost.extensions.simulated.launches import Blob, Completion, SimulatedLaunch

pytestmark = pytest.mark.unit


def floats(*values: float) -> Blob:
    """Return the elements of a tensor."""
    return Blob("float32", struct.pack(f"{len(values)}f", *values))


def values(blob: Blob) -> tuple[float, ...]:
    """Return the elements of a blob."""
    data = blob.data or b""
    return struct.unpack(f"{len(data) // 4}f", data)


def launch(operation: str, member: int, size: int = 2, **given: object) -> SimulatedLaunch:
    """Return the first operation of a rank in a group whose members are the ranks."""
    return SimulatedLaunch(  # type: ignore[arg-type]
        **{
            "rank": member,
            "number": 1,
            "group": "world",
            "member": member,
            "size": size,
            "operation": operation,
            "sequence": 1,
            **given,
        }
    )


def run(*launches: SimulatedLaunch) -> list[Completion]:
    """Return all ends, in the order in which they come."""
    exchange = Exchange()
    return [ended for each in launches for ended in exchange.launch(each)]


def ends(*launches: SimulatedLaunch) -> list[int]:
    """Return the ranks whose operations end, in order."""
    return [each.rank for each in run(*launches)]


def received(launches: Sequence[SimulatedLaunch]) -> dict[int, tuple[tuple[float, ...], ...]]:
    """Return what each rank has received."""
    return {each.rank: tuple(map(values, each.blobs)) for each in run(*launches)}


def test_an_all_reduce_ends_for_all_members_when_the_last_has_entered() -> None:
    """Until then it ends for none."""
    every = [
        launch("all_reduce", each, 3, reduction="sum", blobs=(floats(each),)) for each in range(3)
    ]
    assert ends(*every[:2]) == []
    assert received(every) == {0: ((3.0,),), 1: ((3.0,),), 2: ((3.0,),)}


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [("sum", 8.0), ("avg", 4.0), ("product", 12.0), ("min", 2.0), ("max", 6.0)],
)
def test_each_reduction_combines_the_elements_of_all_members(
    reduction: str, expected: float
) -> None:
    """Of 2 and 6."""
    every = [
        launch("all_reduce", each, reduction=reduction, blobs=(floats((2.0, 6.0)[each]),))
        for each in range(2)
    ]
    assert received(every)[0] == ((expected,),)


def test_collectives_at_the_same_place_that_differ_never_match() -> None:
    """As with gloo: each waits for a member that never enters it."""
    one = launch("all_reduce", 0, reduction="sum", blobs=(floats(1),))
    assert ends(one, launch("barrier", 1)) == []


def test_broadcasts_of_two_roots_never_match() -> None:
    """Both roots have the data, but each has to send it to the other."""
    one = launch("broadcast", 0, root=0, blobs=(floats(1),))
    assert ends(one, launch("broadcast", 1, root=1, blobs=(floats(2),))) == []


def test_a_broadcast_reaches_a_member_that_names_another_root() -> None:
    """Under both roots member 3 of 4 expects the data from 1: measured with gloo."""
    roots, blobs = (0, 0, 0, 1), (floats(7),)
    every = [
        launch("broadcast", each, 4, root=roots[each], blobs=blobs if each == 0 else ())
        for each in range(4)
    ]
    assert received(every) == {0: (), 1: ((7.0,),), 2: ((7.0,),), 3: ((7.0,),)}


def test_a_reduction_of_few_elements_ends_whatever_its_roots_are() -> None:
    """There is nothing to send to a root: measured with gloo. With more elements it hangs."""
    for blob, expected in ((floats(1), [0, 1]), (floats(*range(64)), [])):
        own = [launch("reduce", each, root=each, reduction="sum", blobs=(blob,)) for each in (0, 1)]
        assert ends(*own) == expected


def test_the_second_operation_of_a_group_does_not_match_the_first() -> None:
    """A member that has left one out waits for ever."""
    assert ends(launch("barrier", 0, sequence=1), launch("barrier", 1, sequence=2)) == []


def test_groups_are_kept_apart() -> None:
    """The same number in another group is another place."""
    assert ends(launch("barrier", 0), launch("barrier", 1, group="other")) == []


def test_a_broadcast_needs_the_members_between_the_root_and_a_member() -> None:
    """Gloo sends from 0 to 1 and 2, and from 1 to 3: measured with four ranks."""
    blobs = (floats(7),)
    every = [
        launch("broadcast", each, 4, root=0, blobs=blobs if each == 0 else ()) for each in range(4)
    ]
    assert ends(every[0], every[1], every[2]) == [0, 2]
    assert ends(every[0], every[2], every[3]) == [2]
    assert ends(every[0], every[1], every[3]) == [1, 3]
    assert sorted(ends(*reversed(every))) == [0, 1, 2, 3]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("root", [0, 1, 4])
def test_each_member_of_a_broadcast_is_a_child_of_its_parent(size: int, root: int) -> None:
    """So the data reaches all of them, once."""
    root %= size
    children = [c for each in range(size) for c in broadcast_children(each, root, size)]
    assert sorted([*children, root]) == list(range(size))
    for each in range(size):
        for child in broadcast_children(each, root, size):
            assert broadcast_parent(child, root, size) == each


def test_a_gather_needs_all_members_only_at_its_root() -> None:
    """The others have sent as soon as the root takes part."""
    every = [launch("gather", each, 3, root=0, blobs=(floats(each),)) for each in range(3)]
    assert ends(every[1], every[2]) == []
    assert ends(every[0], every[1]) == [1]
    assert received(every)[0] == ((0.0, 1.0, 2.0),)


def test_a_scatter_needs_all_members_only_at_its_root() -> None:
    """The others have received as soon as the root takes part."""
    parts = (floats(10, 11, 12),)
    every = [
        launch("scatter", each, 3, root=0, blobs=parts if each == 0 else ()) for each in range(3)
    ]
    assert ends(every[0], every[2]) == [2]
    assert received(every) == {0: ((10.0,),), 1: ((11.0,),), 2: ((12.0,),)}


def test_an_all_to_all_exchanges_uneven_parts() -> None:
    """Member 0 sends one element to itself and two to member 1, which sends them one and none."""
    zero = Blob("float32", floats(1, 2, 3).data, (4, 8))
    one = Blob("float32", floats(4).data, (4, 0))
    every = [launch("all_to_all", 0, blobs=(zero,)), launch("all_to_all", 1, blobs=(one,))]
    assert received(every) == {0: ((1.0, 4.0),), 1: ((2.0, 3.0),)}


def test_a_reduce_scatter_gives_each_member_its_part() -> None:
    """The sums of the first elements, and those of the second."""
    every = [
        launch("reduce_scatter", each, reduction="sum", blobs=(floats(each, 10 * each),))
        for each in range(2)
    ]
    assert received(every) == {0: ((1.0,),), 1: ((10.0,),)}


def test_tensors_of_different_sizes_are_an_error_for_every_member() -> None:
    """Gloo fails or mixes up memory, depending on the sizes."""
    every = [
        launch("all_reduce", 0, reduction="sum", blobs=(floats(1),)),
        launch("all_reduce", 1, reduction="sum", blobs=(floats(1, 2),)),
    ]
    assert ["rank 1: 8 bytes" in each.error for each in run(*every)] == [True, True]


def test_a_send_ends_with_its_receive() -> None:
    """Measured: gloo's send waits for the receive, however small the message is."""
    send = launch("send", 0, root=1, blobs=(floats(5),))
    receive = launch("recv", 1, root=0)
    assert ends(send) == []
    assert received([send, receive]) == {0: (), 1: ((5.0,),)}
    assert received([receive, send]) == {0: (), 1: ((5.0,),)}


def test_messages_of_one_sender_and_tag_keep_their_order() -> None:
    """Messages of another tag do not."""
    sends = [
        launch("send", 0, number=each, root=1, tag=tag, blobs=(floats(each),))
        for each, tag in ((1, 0), (2, 7), (3, 0))
    ]
    receives = [
        launch("recv", 1, number=each, root=0, tag=tag) for each, tag in ((4, 0), (5, 0), (6, 7))
    ]
    ended = {each.number: each for each in run(*sends, *receives)}
    assert [values(ended[each].blobs[0]) for each in (4, 5, 6)] == [(1.0,), (3.0,), (2.0,)]


def test_a_receive_from_anybody_says_who_has_sent() -> None:
    """It takes the message that came first."""
    sends = [launch("send", each, 3, root=0, blobs=(floats(each),)) for each in (2, 1)]
    ended = run(*sends, launch("recv", 0, 3))
    assert [each.source for each in ended if each.rank == 0] == [2]


def test_what_a_lost_member_leaves_behind_meets_nothing() -> None:
    """Its timeout has struck before the other one enters."""
    exchange = Exchange()
    assert exchange.launch(launch("barrier", 0)) == []
    assert [each.rank for each in exchange.lose("world", 0, "late")] == [0]
    [ended] = exchange.launch(launch("barrier", 1))
    assert "late" in ended.error


def test_a_lost_member_that_has_done_its_part_is_not_missed() -> None:
    """It has sent to the root of the gather, which waits for another one."""
    every = [launch("gather", each, 3, root=0, blobs=(floats(each),)) for each in range(3)]
    exchange = Exchange()
    exchange.launch(every[0])
    exchange.launch(every[1])
    assert exchange.lose("world", 1, "gone") == []
    assert {each.error for each in exchange.launch(every[2])} == {""}


def test_a_broadcast_fails_only_behind_a_lost_member() -> None:
    """Gloo sends from 0 to 1 and 2, and from 1 to 3."""
    blobs = (floats(7),)
    every = [
        launch("broadcast", each, 4, root=0, blobs=blobs if each == 0 else ()) for each in range(4)
    ]
    exchange = Exchange()
    exchange.launch(every[3])
    assert [each.rank for each in exchange.lose("world", 1, "gone")] == [3]
    exchange = Exchange()
    exchange.launch(every[2])
    assert exchange.lose("world", 1, "gone") == []
    ended = {each.rank: each.error for each in exchange.launch(every[0])}
    assert "gone" in ended[0]
    assert ended[2] == ""


def test_transfers_between_others_outlive_a_lost_member() -> None:
    """Each pair of members has a connection of its own."""
    exchange = Exchange()
    exchange.lose("world", 0, "gone")
    send, receive = launch("send", 1, 3, root=2, blobs=(floats(5),)), launch("recv", 2, 3, root=1)
    assert exchange.launch(send) == []
    assert {each.error for each in exchange.launch(receive)} == {""}
    [ended] = exchange.launch(launch("recv", 2, 3, number=2, root=0))
    assert "gone" in ended.error


def test_nobody_is_told_of_a_lost_member_of_nccl() -> None:
    """The others wait until the watchdog's timeout."""
    exchange = Exchange()
    exchange.lose("world", 0, "gone")
    assert exchange.launch(launch("barrier", 1, stream="s")) == []


def test_a_rank_that_has_ended_is_lost_to_all_groups_that_it_has_joined() -> None:
    """Gloo sees closed connections."""
    exchange = Exchange()
    for member in range(2):
        exchange.launch(launch("join", member, sequence=0))
    exchange.launch(launch("barrier", 1))
    [ended] = exchange.lose_rank(0)
    assert (ended.rank, "rank 0 has ended" in ended.error) == (1, True)


def in_group(group: str, operation: str, member: int, **given: object) -> SimulatedLaunch:
    """Return an operation of a rank in a group of two."""
    return launch(operation, member, group=group, **given)


def test_nothing_is_kept_of_transfers_that_have_ended() -> None:
    """Each may have a tag of its own."""
    exchange = Exchange()
    for tag in range(3):
        exchange.launch(launch("send", 0, number=tag, root=1, tag=tag))
        ended = exchange.launch(launch("recv", 1, number=tag, root=0, tag=tag))
        assert [each.error for each in ended] == ["", ""]
    assert exchange == Exchange()


def test_of_a_group_that_all_members_have_left_only_the_name_is_kept() -> None:
    """A job may make and destroy a group in each of its steps; a late operation fails."""
    exchange = Exchange()
    for member in range(2):
        exchange.launch(in_group("a", "join", member))
    exchange.launch(in_group("a", "all_reduce", 0, number=2))
    ended = exchange.lose("a", 1, "closed")
    assert [each.error for each in ended] == ["Connection closed by peer: closed"]
    exchange.lose("a", 0, "closed")
    assert exchange.lose_rank(0) == []
    late = exchange.launch(in_group("a", "all_reduce", 0, number=3))
    assert [each.error for each in late] == ["Application timeout caused pair closure"]
    left = {name: getattr(exchange, name) for name in Exchange.__slots__}
    assert {name for name, kept in left.items() if any(kept)} <= {"_closed", "_joined", "_meetings"}
    assert left["_joined"] == {1: {}}


PAIR = launch("join", 0, group="world:0-2", peer=2)


def stuck(*launches: SimulatedLaunch, waits: dict[int, set[int]]) -> set[int]:
    """Return the ranks of three that are stuck."""
    exchange = Exchange()
    for each in launches:
        exchange.launch(each)
    return {*exchange.stuck_ranks(waits, 3)}


def test_ranks_that_wait_on_the_host_for_each_other_are_stuck() -> None:
    """Rank 0 makes a communicator with rank 2, which makes one of all three."""
    everybody = launch("join", 2, 3)
    assert stuck(PAIR, everybody, waits={0: {1}, 1: {5}, 2: {1}}) == {0, 2}


def test_a_rank_is_not_stuck_if_nccl_lets_its_peer_go_on() -> None:
    """It may come, whatever it waits for on its device."""
    assert stuck(PAIR, waits={0: {1}, 1: {5}, 2: {5}}) == set()


def test_a_rank_with_another_wait_is_not_known_to_be_stuck() -> None:
    """The other thread of its peer may go on, and do what it waits for."""
    everybody = launch("join", 2, 3)
    assert stuck(PAIR, everybody, waits={0: {1}, 1: {5}, 2: {1, 6}}) == set()
