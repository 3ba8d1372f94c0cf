"""Faults of the network, on hand-made facts: who reaches whom, how late, what a hang is then."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import kernel_snapshot, operation, stands

from pytest_multihost import at, faults
from pytest_multihost.core.blame import Cause, RankState, as_cut, find_causes, severed
from pytest_multihost.core.engine import Surroundings, run_world
from pytest_multihost.core.fault_planner import offered_planner
from pytest_multihost.core.host_kind import Hosts
from pytest_multihost.core.proof import Snapshot, blockers
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.core.services import Opening, open_services, with_needed
from pytest_multihost.core.watch import Watchdog, WorldObserver
from pytest_multihost.extensions.netns.effects import (
    NetworkDisturbance,
    Shape,
    bridge_segments,
    describe_cut,
    disturbance_of,
    effect_of,
    merged,
    relay_routes,
)
from pytest_multihost.extensions.netns.kind_of_hosts import NAME, NETNS
from pytest_multihost.extensions.netns.kinds import network_problems
from pytest_multihost.extensions.netns.relay import MAX_QUEUE_S, Uplink
from pytest_multihost.faults.kind import kinds_by_name
from pytest_multihost.testing import (
    PLAIN,
    Activity,
    Descriptor,
    Endpoint,
    Fault,
    FaultChanged,
    FaultPerformed,
    Host,
    ManualClock,
    Process,
    Scope,
    ScriptedLauncher,
    Step,
    Thread,
    WorldSpec,
    from_json,
    make_event,
    make_spec,
    to_json,
    well_behaved,
)

pytestmark = pytest.mark.unit

HOOK = new_plugin_manager().hook
KINDS = kinds_by_name(HOOK.pytest_multihost_faults())
PLANNER = offered_planner(HOOK)
CUT = faults.partition(groups=[[0], [1, 2, 3]])

EXAMPLES = [
    faults.partition(groups=[(0, 1), range(2, 4)], one_way=True, at=at.collective(nth=3)),
    faults.partition(groups=[[0], [1], [2]], rank=3, heals_after=2, at=at.rendezvous()),
    faults.net_delay(rank=0, seconds=0.05, heals_after=1),
    faults.net_loss(rank="others", percent=100),
    faults.net_rate(rank=[1, 2], bytes_per_s=1e6, at=at.sync_point("save")),
    faults.reset(rank=1, at=at.io("*/ckpt/*"), must_fire=False),
    faults.dns_failure(rank="all", at=at.rendezvous()),
]


def hosts_of(text: str, size: int = 4) -> tuple[Host, ...]:
    """Return the hosts of a world."""
    return Hosts.parse(text, [NETNS]).of(size)


def world(*given: Fault, hosts: str = "netns", size: int = 4) -> WorldSpec:
    """Return a world of four hosts with faults."""
    facts = {each.kind: KINDS[each.kind].facts for each in given}
    return replace(make_spec(size), hosts=hosts_of(hosts, size), faults=given, fault_facts=facts)


OF_FOUR: Mapping[str, Any] = {"size": 4, "seed": 0, "hosts": hosts_of("netns"), "roles": ()}


# What can be asked for


@pytest.mark.parametrize("fault", EXAMPLES, ids=repr)
def test_a_fault_of_the_network_can_be_pasted_back_and_survives_json(fault: Fault) -> None:
    """Its repr makes an equal one, on the command line too."""
    assert eval(repr(fault), {"faults": faults, "at": at}) == fault  # noqa: S307 - our own text
    assert PLANNER.parse(repr(fault)) == fault
    assert from_json(Fault, json.loads(json.dumps(to_json(fault)))) == fault
    assert PLANNER.plan([fault], **OF_FOUR).problems == []


def test_a_partition_is_made_by_the_first_that_is_named_unless_said_otherwise() -> None:
    """Somebody has to pass the point."""
    assert faults.partition(groups=[[2, 1], [0]]).ranks == (2,)
    assert faults.partition(groups=[[2, 1], [0]], rank=0).ranks == (0,)


WRONG: list[tuple[Any, str]] = [
    (faults.partition(groups=[[0, 1]]), "groups must be a list of at least two lists of ranks"),
    (faults.partition(groups=[[0], []]), "groups must be a list of at least two lists of ranks"),
    (faults.partition(groups=[0, 1]), "groups must be a list of at least two lists of ranks"),
    (faults.partition(groups=[[0], [1, 0]]), "groups must be lists that share no rank"),
    (faults.net_loss(rank=0, percent=0), "percent must be a number above 0, at most 100, not 0"),
    (faults.net_loss(rank=0, percent=101), "percent must be a number above 0, at most 100"),
    (faults.net_rate(rank=0, bytes_per_s=0), "bytes_per_s must be a number above 0, not 0"),
    (faults.net_delay(rank=0, seconds=-1), "seconds must be a number of seconds from 0"),
    (faults.net_delay(rank=0, seconds=1, heals_after=-1), "heals_after must be a number of sec"),
    (faults.kill(rank=0, at=at.rendezvous()), "at.rendezvous() is only for faults of the network"),
]


@pytest.mark.parametrize(("fault", "problem"), WRONG, ids=lambda each: repr(each)[:60])
def test_what_is_wrong_is_said_with_what_would_be_right(fault: Fault, problem: str) -> None:
    """All in a sentence that begins with the fault itself."""
    [found] = PLANNER.plan([fault], **OF_FOUR).problems
    assert found.startswith(f"{fault!r}: {problem}")


def test_a_network_fault_on_one_host_is_a_usage_error_that_names_the_hosts_it_needs() -> None:
    """Other faults need no hosts."""
    [found] = network_problems([faults.freeze(rank=0), CUT], (), 4)
    assert repr(CUT) in found
    assert 'needs hosts="netns"' in found
    assert network_problems([faults.freeze(rank=0)], (), 4) == []


@pytest.mark.parametrize(
    ("fault", "hosts", "problem"),
    [
        (CUT, "netns:2", "host-0 is in two groups"),
        (faults.partition(groups=[[0], [4]]), "netns", "groups name rank 4, and the ranks are 0"),
        (faults.partition(groups=[[0], [1], [2]], one_way=True), "netns", "one_way takes two"),
    ],
)
def test_groups_must_fit_the_hosts(fault: Fault, hosts: str, problem: str) -> None:
    """A host is cut off as a whole."""
    [found] = network_problems([fault], hosts_of(hosts), 4)
    assert problem in found
    assert network_problems([faults.partition(groups=[[0, 1], [2]])], hosts_of(hosts), 4) == []


def test_two_that_exclude_each_other_are_refused_by_name() -> None:
    """A host has one delay, whoever of its ranks brings it; different kinds go together."""
    one, two = faults.net_delay(rank=0, seconds=1), faults.net_delay(rank=1, seconds=2)
    assert network_problems([one, two], hosts_of("netns"), 4) == []
    [found] = network_problems([one, two], hosts_of("netns:2"), 4)
    assert repr(one) in found
    assert repr(two) in found
    assert "host-0" in found
    both = [one, faults.net_loss(rank=0, percent=1), CUT, CUT, faults.reset(rank=0)]
    assert network_problems(both, hosts_of("netns"), 4) == []


# Who reaches whom


def pairs(*given: Fault, **changes: object) -> set[tuple[int, int]]:
    """Return the cuts of partitions."""
    spec = world(*given, **changes)
    return set(merged(disturbance_of(each, 0, spec) for each in given).cuts)


def test_a_partition_cuts_between_groups_and_leaves_who_is_in_none() -> None:
    """In both directions; one way on demand; hosts take all of their ranks along."""
    cut = faults.partition(groups=[[0], [1, 2]])
    assert pairs(cut) == {(0, 1), (0, 2), (1, 0), (2, 0)}
    assert pairs(faults.partition(groups=[[0], [1, 2]], one_way=True)) == {(0, 1), (0, 2)}
    assert pairs(faults.partition(groups=[[0], [3]]), hosts="netns:2") == {(0, 1), (1, 0)}


@pytest.mark.parametrize(
    ("wanted", "parts", "ways"),
    [
        (NetworkDisturbance(), [(0, 1, 2, 3)], {}),
        (NetworkDisturbance(cuts=frozenset(pairs(CUT))), [(1, 2, 3), (0,)], {}),
        (
            NetworkDisturbance(cuts=frozenset({(0, 1)})),
            [(2, 3), (0,), (1,)],
            {0: {2, 3}, 1: {0, 2, 3}, 2: {0, 1}, 3: {0, 1}},
        ),
        (
            NetworkDisturbance(shapes={0: Shape(delay_s=1)}),
            [(1, 2, 3), (0,)],
            {0: {1, 2, 3}, 1: {0}, 2: {0}, 3: {0}},
        ),
        (
            NetworkDisturbance(cuts=frozenset(pairs(CUT)), shapes={0: Shape(delay_s=1)}),
            [(1, 2, 3), (0,)],
            {},
        ),
    ],
    ids=["calm", "both ways", "one way", "slow", "slow and cut off"],
)
def test_the_kernel_carries_what_is_not_disturbed_and_we_carry_the_rest(
    wanted: NetworkDisturbance, parts: list[tuple[int, ...]], ways: dict[int, set[int]]
) -> None:
    """Every allowed way is there once: within a segment by bridge, else by hand."""
    assert bridge_segments(4, wanted) == parts
    assert relay_routes(parts, wanted) == ways


def test_faults_of_one_host_add_up() -> None:
    """Delays add, losses combine, the lower limit holds."""
    spec = world()
    given = [
        faults.net_delay(rank=0, seconds=1),
        faults.net_loss(rank=0, percent=50),
        faults.net_rate(rank=0, bytes_per_s=10),
    ]
    found = merged(disturbance_of(each, 0, spec) for each in given)
    assert found.shapes == {0: Shape(delay_s=1, loss=0.5, bytes_per_s=10)}
    assert Shape(loss=0.5, bytes_per_s=5).combined(found.shapes[0]) == Shape(1, 0.75, 5)


# How late


def test_a_delay_puts_off_every_frame_by_the_same() -> None:
    """Also where they come together."""
    uplink = Uplink(Shape(delay_s=0.25))
    assert [uplink.arrival_s(now_s, 1000) for now_s in (1.0, 1.0, 1.5)] == [1.25, 1.25, 1.75]


def test_a_limit_lets_frames_leave_one_after_the_other() -> None:
    """A line that has been idle does not make up for it; what waits too long is dropped."""
    uplink = Uplink(Shape(bytes_per_s=1000))
    assert [uplink.arrival_s(1.0, 500) for _ in range(3)] == [1.5, 2.0, 2.5]
    assert uplink.arrival_s(10.0, 500) == 10.5
    found = [uplink.arrival_s(20.0, 500) for _ in range(5)]
    assert found[-1] is None
    assert found[0] == 20.5
    assert MAX_QUEUE_S == 1.0


def test_losses_come_to_the_share_that_was_asked_for() -> None:
    """None and all are exact."""
    uplink = Uplink(Shape(loss=0.3))
    lost = sum(uplink.arrival_s(0.0, 1) is None for _ in range(20_000))
    assert lost == pytest.approx(6000, rel=0.05)
    assert Uplink(Shape(loss=1.0)).arrival_s(0.0, 1) is None
    assert Uplink().arrival_s(3.0, 1) == 3.0


# What the engine does


def test_the_server_is_asked_when_the_point_is_passed_and_the_rank_told_when_it_is_done() -> None:
    """And everything is healed before the fixtures are torn down."""
    begun = {
        "index": 0,
        "fault": "partition",
        "at": {"point": "start"},
        "phase": "begun",
        "service": NAME,
    }
    done = {"service": NAME, "index": 0, "error": ""}
    script = [
        *well_behaved(0),
        *well_behaved(1),
        Step(0, "fault", begun, on="go"),
        Step(0, "answered", done, on="go"),
    ]
    launcher = ScriptedLauncher(clock := ManualClock(100.0), script)
    given = {"hosts": hosts_of("netns", 2), "services": NETNS.services()}
    spec = replace(make_spec(2), faults=(faults.partition(groups=[[0], [1]]),), **given)
    services = [each for group in HOOK.pytest_multihost_services() for each in group]
    spec = with_needed(spec, services)
    watchdog = Watchdog(WorldObserver(Path("/nowhere"), 2))
    opening = Opening(spec=spec, scratch=Path("/nowhere"), watchdog=watchdog)
    surroundings = Surroundings(
        launcher=launcher,
        dumper=lambda *_: (),
        now=clock.now,
        directory=Path("/nowhere"),
        scratch=Path("/nowhere"),
        services=open_services(services, opening),
    )
    result = run_world(spec, surroundings)
    effects = [each.body.effect for each in result.history if isinstance(each.body, FaultChanged)]
    assert effects == [effect_of(spec.faults[0], spec)]
    assert launcher.disturbed == [(0, 0), None]
    assert (0, FaultPerformed(0, "")) in [(rank, each.message) for _, rank, each in launcher.sent]


# What is proven


DEADLINE_S = 160.0
A, B = "10.77.0.1", "10.77.0.2"


def talking(where: str = "inside", queues: tuple[int, int] = (0, 0), **changes: object) -> Process:
    """Return rank 0 on host A, whose main thread reads from a connection to host B."""
    found = Descriptor(
        fd=3,
        target="socket:[5]",
        kind="tcp",
        where=where,  # type: ignore[arg-type]
        queues=queues,
        endpoints=(Endpoint(A, 1), Endpoint(B, 2)),
        **changes,
    )
    main = Thread(tid=1, call="recvfrom", fds=(3,), ends_s=math.inf, args=(3,))
    return Process(pid=1, rank=0, threads=(main,), descriptors={3: found})


def found_in(before: Process, after: Process, **more: object) -> str:
    """Return what may end a wait."""
    first, second = (
        Snapshot(kernel_snapshot(each, at_s=at_s), **more)
        for at_s, each in ((100.0, before), (101.0, after))
    )
    return "; ".join(blockers(first, second, deadline_s=DEADLINE_S))


INWARD = frozenset({(B, A)})
OUTWARD = frozenset({(A, B)})


def test_what_piles_up_before_a_cut_does_not_spoil_the_proof() -> None:
    """The same on a whole network does."""
    few, many = talking(queues=(0, 10)), talking(queues=(0, 500))
    assert found_in(few, many, severed=INWARD, is_disturbed=True) == ""
    assert "data moves" in found_in(few, many)
    assert "data moves" in found_in(few, many, severed=frozenset({("10.77.0.3", A)}))


def test_what_is_not_acknowledged_on_a_disturbed_network_may_still_arrive() -> None:
    """Not through a cut, and not where nothing was ever disturbed: there it would have moved."""
    still = talking(queues=(0, 10))
    assert found_in(still, still) == ""
    assert "may still arrive" in found_in(still, still, is_disturbed=True)
    assert found_in(still, still, is_disturbed=True, severed=OUTWARD) == ""
    heard = talking()
    assert found_in(heard, heard, is_disturbed=True) == ""


def test_a_main_thread_that_connects_through_a_cut_still_gives_up_some_day() -> None:
    """The kernel sends its last SYN after two minutes."""
    connecting = talking(where="outside")
    assert "not part of this world" in found_in(
        connecting, connecting, severed=INWARD, is_disturbed=True
    )


def test_only_a_cut_that_nothing_heals_severs() -> None:
    """What waits beyond one that heals will go on."""
    healing = faults.partition(groups=[[0], [1]], heals_after=5)
    for fault, expected in ((faults.partition(groups=[[0], [1]]), {(A, B), (B, A)}), (healing, ())):
        effect = to_json(effect_of(fault, world(fault)))
        detail = {"index": 0, "fault": "partition", "phase": "begun", "effect": effect}
        until = {"until_s": 15.0} if fault is healing else {}
        event = make_event(10.0, 0, "fault", {**detail, **until})
        assert severed(world(fault), [event], 12.0) == set(expected)


# What it is called


collective = partial(operation, group=(0, 1, 2, 3))
"""A collective of all that a thread waits in."""


def judged(*states: RankState, fault: Fault = CUT) -> Cause:
    """Return the first cause in a world whose network is cut."""
    spec = world(fault)
    effect = to_json(effect_of(fault, spec))
    begun = {"index": 0, "fault": fault.kind, "phase": "begun", "effect": effect}
    begun_at = make_event(1.0, 0, "fault", begun)
    result = builders.world(history=[begun_at], spec=spec, ended_s=20.0, detected_s=20.0)
    return as_cut(find_causes(states)[0], {each.rank: each for each in states}, result)


KEY = operation("store.get", kind="wait", group=(0, 1, 2, 3), detail="k")
SLEEPS = {"label": "SLEEPING", "activity": Activity("sleep")}
CONNECTS = {"label": "BLOCKED", "activity": Activity("connect", "socket:[7]")}


def test_all_in_one_operation_across_a_cut_is_the_cut_for_certain() -> None:
    """Nobody is to blame."""
    cause = judged(*(stands(rank, collective()) for rank in range(4)))
    assert (cause.kind, cause.confidence, cause.culprits) == ("transport", "certain", ())
    assert cause.cut == effect_of(CUT, world(CUT))
    assert cause.waiting == (0, 1, 2, 3)


def test_ranks_that_wait_for_each_other_across_a_cut_are_no_deadlock() -> None:
    """Each has sent what the other waits for."""
    recv = {"name": "recv", "kind": "transfer"}
    cause = judged(
        stands(0, collective(peer=1, **recv)),
        stands(1, collective(peer=0, **recv)),
        stands(2, **SLEEPS),
        stands(3, **SLEEPS),
    )
    assert (cause.kind, cause.cycle, cause.cut) == ("transport", (), effect_of(CUT, world(CUT)))


def test_an_answer_that_does_not_arrive_blames_nobody() -> None:
    """Rank 0 may have set the key long ago."""
    cause = judged(stands(0, **SLEEPS), *(stands(rank, KEY) for rank in (1, 2, 3)))
    assert (cause.kind, cause.culprits, cause.waiting) == ("transport", (), (1, 2, 3))


def test_a_rank_that_cannot_connect_is_not_late() -> None:
    """It waits as well."""
    others = [stands(rank, collective(sequence=0, scope=Scope("init"))) for rank in (0, 2, 3)]
    cause = judged(*others, stands(1, **CONNECTS))
    assert (cause.kind, cause.culprits, cause.waiting) == ("transport", (), (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("third", "kind"),
    [
        (stands(3, **SLEEPS), "straggler"),
        (stands(3, condition="died", since_s=1.0), "died"),
        (stands(3, condition="finished", since_s=1.0), "finished"),
        (stands(3, condition="stopped"), "stopped"),
    ],
    ids=["late", "dead", "gone", "stopped"],
)
def test_a_rank_that_is_late_or_dead_is_so_with_a_cut_as_well(third: RankState, kind: str) -> None:
    """It would have hung on a whole network too."""
    cause = judged(*(stands(rank, collective()) for rank in range(3)), third)
    assert (cause.kind, cause.culprits, cause.cut) == (kind, (3,), None)


def test_a_hang_within_one_side_is_not_the_cuts() -> None:
    """Its group does not span the cut."""
    inside = collective(group=(1, 2))
    cause = judged(stands(1, inside), stands(2, inside), stands(0, **SLEEPS), stands(3, **SLEEPS))
    assert (cause.kind, cause.confidence, cause.cut) == ("transport", "likely", None)


def test_a_slow_network_is_no_cut() -> None:
    """It is evidence, and no more."""
    slow = faults.net_delay(rank=0, seconds=1)
    cause = judged(*(stands(rank, collective()) for rank in range(4)), fault=slow)
    assert (cause.kind, cause.cut) == ("transport", None)


def test_a_cut_is_told_by_whom_it_keeps_from_whom() -> None:
    """In the words of a summary."""
    assert describe_cut(CUT, PLAIN) == "the network is cut between rank 0 and ranks 1-3"
    three = faults.partition(groups=[[0], [1, 2], [3]])
    assert describe_cut(three, PLAIN) == "the network is cut between rank 0, ranks 1,2 and rank 3"
    one_way = faults.partition(groups=[[0], [1, 2]], one_way=True)
    assert describe_cut(one_way, PLAIN) == "nothing that rank 0 sends reaches ranks 1,2"
