"""The effects of network faults: cuts, delay, loss and rate between the hosts of a world.

All values refer to hosts, by index, not to ranks, because the ranks of a host share its link.
Delay, loss and rate apply to a host's outgoing packets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from pytest_multihost.core.model.event import Effect
from pytest_multihost.core.model.fault import Fault
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.spec import WorldSpec

Pair = tuple[int, int]
"""A sending host and a receiving host."""

_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """Delay, loss and rate of the frames that a host sends.

    Attributes:
        loss: The fraction of lost frames, 0 to 1.
        bytes_per_s: The maximum rate at which frames leave; None for no limit.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None

    def combined(self, other: Shape) -> Shape:
        """Return the effect of both at once; the lower rate applies."""
        rates = [each for each in (self.bytes_per_s, other.bytes_per_s) if each is not None]
        return Shape(
            delay_s=self.delay_s + other.delay_s,
            loss=1 - (1 - self.loss) * (1 - other.loss),
            bytes_per_s=min(rates, default=None),
        )


@dataclass(frozen=True, slots=True)
class NetworkDisturbance:
    """The effect of one fault on the network.

    Attributes:
        cuts: Pairs of hosts between which no frame arrives.
        shapes: Delay, loss and rate of each host's other frames.
        resets: Hosts whose connections to other hosts are reset, once.
        nameless: Hosts that cannot resolve other hosts' names.
    """

    cuts: frozenset[Pair] = frozenset()
    shapes: Mapping[int, Shape] = field(default_factory=dict)
    resets: frozenset[int] = frozenset()
    nameless: frozenset[int] = frozenset()


def merged(disturbances: Iterable[NetworkDisturbance]) -> NetworkDisturbance:
    """Return the combined effect of disturbances, without resets, which happen only once."""
    cuts: frozenset[Pair] = frozenset()
    nameless: frozenset[int] = frozenset()
    shapes: dict[int, Shape] = {}
    for each in disturbances:
        cuts |= each.cuts
        nameless |= each.nameless
        for host, shape in each.shapes.items():
            shapes[host] = shape.combined(shapes.get(host, Shape()))
    return NetworkDisturbance(cuts=cuts, shapes=shapes, nameless=nameless)


def disturbance_of(fault: Fault, rank: int, spec: WorldSpec) -> NetworkDisturbance:
    """Return the effect of a fault that happens to a rank.

    Args:
        fault: A fault of one of `NETWORK_KINDS`.
        rank: The rank that has passed the fault's point.
    """
    host = spec.host_of(rank).index
    given = fault.params
    if fault.kind == "partition":
        return NetworkDisturbance(cuts=cuts_of(fault, spec))
    if fault.kind == "reset":
        return NetworkDisturbance(resets=frozenset({host}))
    if fault.kind == "dns_failure":
        return NetworkDisturbance(nameless=frozenset({host}))
    shapes = {
        "net_delay": lambda: Shape(delay_s=given["seconds"]),
        "net_loss": lambda: Shape(loss=given["percent"] / _PERCENT),
        "net_rate": lambda: Shape(bytes_per_s=given["bytes_per_s"]),
    }
    return NetworkDisturbance(shapes={host: shapes[fault.kind]()})


def cuts_of(partition: Fault, spec: WorldSpec) -> frozenset[Pair]:
    """Return the cuts of a partition."""
    groups = partition.params["groups"]
    sides = [frozenset(spec.host_of(rank).index for rank in group) for group in groups]
    one_way = bool(partition.params.get("one_way"))
    pairs = [(sides[0], sides[1])] if one_way else permutations(sides, 2)
    return frozenset((sender, to) for one, two in pairs for sender in one for to in two)


def bridge_segments(count: int, wanted: NetworkDisturbance) -> list[tuple[int, ...]]:
    """Return the groups of hosts that can share a bridge, on which the kernel forwards all frames.

    The hosts of a group are cut off from the same hosts, in the same directions, and have no other
    disturbance. The largest group comes first.
    """
    found: dict[object, list[int]] = {}
    for host in range(count):
        to = frozenset(pair[1] for pair in wanted.cuts if pair[0] == host)
        by = frozenset(pair[0] for pair in wanted.cuts if pair[1] == host)
        found.setdefault(host if host in wanted.shapes else (to, by), []).append(host)
    return sorted((tuple(each) for each in found.values()), key=lambda each: (-len(each), each))


def relay_routes(
    segments: Sequence[Sequence[int]], wanted: NetworkDisturbance
) -> dict[int, frozenset[int]]:
    """Return, for each host, the hosts to which its frames must be relayed in userspace.

    These are the hosts on other bridges that are not cut off from it.

    Args:
        segments: As `bridge_segments` returns them.
    """
    segment_of = {host: segment for segment in segments for host in segment}
    found = {}
    for host, segment in segment_of.items():
        severed = {to for sender, to in wanted.cuts if sender == host}
        if reached := segment_of.keys() - segment - severed:
            found[host] = frozenset(reached)
    return found


_WORDS = {
    "reset": "its host's connections were reset, and new ones may be made",
    "net_delay": "packets from its host arrive late",
    "net_loss": "some packets from its host are lost",
    "net_rate": "its host sends slowly",
    "dns_failure": "its host cannot resolve the names of other hosts",
}


def effect_of(fault: Fault, spec: WorldSpec) -> Effect:
    """Return the effect of a network fault, for the history of its world."""
    if fault.kind == "partition":
        return Effect(describe_cut(fault, spec.names), tuple(sorted(cuts_of(fault, spec))))
    return Effect(_WORDS[fault.kind])


def describe_cut(fault: Fault, names: Names) -> str:
    """Return in words between which ranks a partition cuts the network."""
    groups = fault.params["groups"]
    sides = [names.of(group) for group in groups]
    if fault.params.get("one_way"):
        send = "sends" if len(groups[0]) == 1 else "send"
        return f"nothing that {sides[0]} {send} reaches {sides[1]}"
    return f"the network is cut between {', '.join(sides[:-1])} and {sides[-1]}"
