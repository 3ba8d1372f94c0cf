"""What faults do to the network between a world's hosts: cuts, and what happens to frames.

All values are about hosts, by index, not about ranks: two ranks of one host share its cable. What
happens to frames is described where they are sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations

from pytest_multihost.model.fault import Fault
from pytest_multihost.model.spec import WorldSpec

Pair = tuple[int, int]
"""A host that sends, and one that receives."""

_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """What happens to the frames that a host sends.

    Attributes:
        delay_s: How much later they arrive.
        loss: The share of them that does not arrive, 0 to 1.
        bytes_per_s: At which rate they leave at most; None: unlimited.
    """

    delay_s: float = 0.0
    loss: float = 0.0
    bytes_per_s: float | None = None

    def combined(self, other: Shape) -> Shape:
        """Return the effect of both at once; of two rates the lower holds."""
        rates = [each for each in (self.bytes_per_s, other.bytes_per_s) if each is not None]
        return Shape(
            delay_s=self.delay_s + other.delay_s,
            loss=1 - (1 - self.loss) * (1 - other.loss),
            bytes_per_s=min(rates, default=None),
        )


@dataclass(frozen=True, slots=True)
class Disturbance:
    """What one fault does to the network.

    Attributes:
        cuts: From which host to which no frame arrives.
        shapes: What happens to the frames of a host that do arrive.
        resets: Hosts whose connections to other hosts are reset, once.
        nameless: Hosts that cannot resolve the names of others.
    """

    cuts: frozenset[Pair] = frozenset()
    shapes: Mapping[int, Shape] = field(default_factory=dict)
    resets: frozenset[int] = frozenset()
    nameless: frozenset[int] = frozenset()


def merged(disturbances: Iterable[Disturbance]) -> Disturbance:
    """Return the effect of several disturbances at once, without resets, which happen only once."""
    cuts: frozenset[Pair] = frozenset()
    nameless: frozenset[int] = frozenset()
    shapes: dict[int, Shape] = {}
    for each in disturbances:
        cuts |= each.cuts
        nameless |= each.nameless
        for host, shape in each.shapes.items():
            shapes[host] = shape.combined(shapes.get(host, Shape()))
    return Disturbance(cuts=cuts, shapes=shapes, nameless=nameless)


def disturbance_of(fault: Fault, rank: int, spec: WorldSpec) -> Disturbance:
    """Return what a fault does when it happens to a rank.

    Args:
        fault: One of `NETWORK_KINDS`.
        rank: The rank that has passed its point.
        spec: The world.
    """
    host = spec.host_of(rank).index
    given = fault.params
    if fault.kind == "partition":
        return Disturbance(cuts=cuts_of(fault, spec))
    if fault.kind == "reset":
        return Disturbance(resets=frozenset({host}))
    if fault.kind == "dns_failure":
        return Disturbance(nameless=frozenset({host}))
    shapes = {
        "net_delay": lambda: Shape(delay_s=given["seconds"]),
        "net_loss": lambda: Shape(loss=given["percent"] / _PERCENT),
        "net_rate": lambda: Shape(bytes_per_s=given["bytes_per_s"]),
    }
    return Disturbance(shapes={host: shapes[fault.kind]()})


def cuts_of(partition: Fault, spec: WorldSpec) -> frozenset[Pair]:
    """Return the cuts of a partition."""
    groups = partition.params["groups"]
    sides = [frozenset(spec.host_of(rank).index for rank in group) for group in groups]
    one_way = bool(partition.params.get("one_way"))
    pairs = [(sides[0], sides[1])] if one_way else permutations(sides, 2)
    return frozenset((sender, to) for one, two in pairs for sender in one for to in two)


def bridge_segments(count: int, wanted: Disturbance) -> list[tuple[int, ...]]:
    """Return which hosts can share a bridge: the kernel forwards all frames between them.

    These are hosts that are cut off from the same hosts, in the same directions, and nothing else
    happens to their frames. The largest segment comes first.

    Args:
        count: Number of hosts.
        wanted: What is to be done to their network.
    """
    found: dict[object, list[int]] = {}
    for host in range(count):
        to = frozenset(pair[1] for pair in wanted.cuts if pair[0] == host)
        by = frozenset(pair[0] for pair in wanted.cuts if pair[1] == host)
        found.setdefault(host if host in wanted.shapes else (to, by), []).append(host)
    return sorted((tuple(each) for each in found.values()), key=lambda each: (-len(each), each))


def relay_routes(
    segments: Sequence[Sequence[int]], wanted: Disturbance
) -> dict[int, frozenset[int]]:
    """Return, for each host, to which hosts its frames must be relayed in userspace.

    These are hosts on other bridges that are not cut off.

    Args:
        segments: As `bridge_segments` returns them.
        wanted: What is to be done to the network.
    """
    segment_of = {host: segment for segment in segments for host in segment}
    found = {}
    for host, segment in segment_of.items():
        severed = {to for sender, to in wanted.cuts if sender == host}
        if reached := segment_of.keys() - segment - severed:
            found[host] = frozenset(reached)
    return found
