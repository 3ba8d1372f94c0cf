"""The spec of a world, the same for every rank; its hosts; the token that replays it."""

from __future__ import annotations

import base64
import ipaddress
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import permutations
from typing import ClassVar, Literal

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.fault import Fault, Point
from pytest_multihost.core.model.json_values import (
    JsonError,
    JsonObject,
    from_json,
    parse_json,
    to_json,
)

Early = Literal["fail", "warn", "off"]
"""The reaction to a proven hang: end the world, only note it, or do not look for one."""

ClockMode = Literal["real", "jump"]
"""How time passes in a world: as on its machine, or also in jumps over waits that only end it."""

NETWORK = ipaddress.ip_network("10.77.0.0/16")
"""Addresses of hosts made from namespaces; unreachable from outside their world."""

BRIDGE_ADDRESS = str(NETWORK[-2])
"""The address of the bridge that connects them."""


HazardMode = Literal["off", "warn", "fail"]
"""What to do about hazards: nothing, a warning each, or to fail the test."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine, or an emulated one.

    Attributes:
        index: 0 for the host of the primary.
        name: What `gethostname` returns on an emulated host; "localhost" for this machine.
        address: The address at which other hosts reach it.
        interface: The network interface with that address.
        ranks: The ranks on it.
    """

    index: int
    name: str
    address: str
    interface: str
    ranks: range


@dataclass(frozen=True, slots=True)
class Hosts:
    """The setting `hosts`; in JSON it is its text.

    Attributes:
        kind: What hosts are made from: Linux namespaces, or containers; "one": no hosts are made,
            and all ranks are on this machine.
        ranks_each: Ranks on each host.
    """

    kind: Literal["one", "netns", "docker"] = "one"
    ranks_each: int = 1

    @classmethod
    def parse(cls, text: object) -> Hosts:
        """Return the value of a text such as "one", "netns", "netns:2".

        Raises:
            SettingError: It is invalid.
        """
        if text == "one":
            return ONE
        if isinstance(text, str) and (found := _HOSTS.fullmatch(text)) is not None:
            return cls("netns" if found[1] == "netns" else "docker", int(found[2] or 1))
        choices = "one, netns, netns:N (N ranks on each host), docker, docker:N"
        raise SettingError(f"must be one of {choices}, not {shown(text)}")

    def __str__(self) -> str:
        """Return the setting in canonical form."""
        return self.kind if self.ranks_each == 1 else f"{self.kind}:{self.ranks_each}"


ONE = Hosts()

MAX_SEED = (1 << 63) - 1

MAX_RANKS = 10_000
"""The most ranks that a world can be asked for; more fit on no machine."""

NO_TIMEOUT_S = 365 * 86_400.0
"""The timeout of a world that has none: a year, which every runtime can add to a time."""

_HOSTS = re.compile(r"(netns|docker)(?::([1-9][0-9]{0,8}))?", re.ASCII)


@cache
def all_hosts(hosts: Hosts, size: int) -> tuple[Host, ...]:
    """Return the hosts of a world of `size` ranks in order; the last may have fewer ranks."""
    if hosts.kind == "one":
        return (Host(0, "localhost", "127.0.0.1", "lo", range(size)),)
    found: list[Host] = []
    for first in range(0, size, hosts.ranks_each):
        index = len(found)
        # The container engine assigns addresses, and resolves containers' names.
        address = f"host-{index}" if hosts.kind == "docker" else str(NETWORK[index + 1])
        ranks = range(first, min(size, first + hosts.ranks_each))
        found.append(Host(index, f"host-{index}", address, "eth0", ranks))
    return tuple(found)


Site = tuple[str, str, str, int]
"""A host's name, its address, the network interface with that address, and its number of ranks."""


Subject = Literal["test", "script", "job"]
"""What ranks run: a test of pytest's, a script, or something that was started without us."""


def phase_name(phase: str, subject: Subject) -> str:
    """Return the name of a rank's phase: "call" is pytest's word."""
    return f"the {subject}" if phase == "call" and subject != "test" else phase


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """One attempt of one test.

    Attributes:
        nodeid: pytest's node id; never carries a rank.
        attempt: 1 for the first run of this test in this session, 2 for its first rerun, ...
        size: Number of ranks.
        backend: Name of the backend that forms the process group.
        local_devices: Devices per rank, for backends that make their own (jax).
        timeout_s: Seconds from the moment all ranks are ready to the end of the world.
        startup_timeout_s: Seconds from the first fork until all ranks are ready.
        seed: Seed of all random choices for this world.
        faults: Its faults; their ranks are numbers.
        tells_points: Whether each rank records every point to which a fault can be bound.
        told_calls: Functions, as ``module:function``, whose calls it records as well.
        told_batches: Data loaders, as ``module:name``, whose batches it records as well.
        keeps_operations: Whether each rank keeps all its operations, not only the last ones.
        hosts: The kind of its hosts, and the ranks on each.
        clock: How time passes in it.
        sites: The existing hosts of an attached run on several machines; empty if the harness
            makes the hosts.
        horizon_s: It hangs if nothing in it can move within so many seconds; None: before its
            deadline.
        command: The command line that runs it again, if it is no test.
        subject: What its ranks run.
    """

    nodeid: str
    attempt: int
    size: int
    backend: str
    local_devices: int
    timeout_s: float
    startup_timeout_s: float
    seed: int
    faults: tuple[Fault, ...] = ()
    tells_points: bool = False
    told_calls: tuple[str, ...] = ()
    told_batches: tuple[str, ...] = ()
    keeps_operations: bool = False
    hosts: Hosts = ONE
    clock: ClockMode = "real"
    sites: tuple[Site, ...] = ()
    horizon_s: float | None = None
    command: str = ""
    subject: Subject = "test"

    @property
    def keeps_proxies(self) -> bool:
        """Whether its ranks see the variables of proxies, through which a script may load data.

        Tests do not, nor those that jax connects for them: gRPC would use the proxies.
        """
        return bool(self.command) and self.backend != "jax"

    @property
    def deadline_text(self) -> str:
        """Until when nothing can move in it if it hangs, in words."""
        return "before the deadline" if self.horizon_s is None else f"within {self.horizon_s:g} s"

    @property
    def all_hosts(self) -> tuple[Host, ...]:
        """Its hosts in order."""
        return hosts_at(self.sites) or all_hosts(self.hosts, self.size)

    def host_of(self, rank: int) -> Host:
        """Return the host of a rank."""
        return next(host for host in self.all_hosts if rank in host.ranks)


def hosts_at(sites: tuple[Site, ...]) -> tuple[Host, ...]:
    """Return the hosts at sites in order; ranks are numbered consecutively."""
    hosts: list[Host] = []
    for index, (name, address, interface, count) in enumerate(sites):
        first = hosts[-1].ranks.stop if hosts else 0
        hosts.append(Host(index, name, address, interface, range(first, first + count)))
    return tuple(hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """One rank's place in a world.

    Attributes:
        world: The world it belongs to.
        rank: Its index, 0..size-1.
        directory: Artifacts of this attempt, such as logs and stacks.
        scratch: Private directory of this world outside the artifacts: rendezvous files,
            temporary directories of the tests.
        ports: Two TCP ports of the primary's host, reserved for this world: one for MASTER_PORT,
            one for the backend's own service.
    """

    world: WorldSpec
    rank: int
    directory: str
    scratch: str
    ports: tuple[int, int]

    @property
    def is_primary(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def host(self) -> Host:
        """The host it is on."""
        return self.world.host_of(self.rank)


# Replay tokens

VERSION = 1
_CRC_BYTES = 4
_ShortFault = tuple[str, tuple[int, ...] | str, Point, JsonObject, int]


@dataclass(frozen=True, slots=True)
class Replay:
    """The content of a token.

    Attributes:
        test: Checksum of the test's node id.
        size: Ranks of the world.
    """

    test: int
    size: int
    seed: int
    faults: tuple[Fault, ...]
    clock: ClockMode = "real"

    def is_of(self, nodeid: str) -> bool:
        """Whether it replays the test with this node id."""
        return self.test == checksum(nodeid)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token's JSON: version, test, size, seed, faults and clock, under names of one letter."""

    omits_defaults: ClassVar = True

    v: int
    t: int = 0
    n: int = 0
    s: int = 0
    f: tuple[_ShortFault, ...] = ()
    c: ClockMode = "real"


def checksum(nodeid: str) -> int:
    """Return the checksum of a node id."""
    return zlib.crc32(nodeid.encode("utf-8", "surrogatepass"))


def token(spec: WorldSpec) -> str:
    """Return the token that replays a world."""
    faults = tuple(
        (f.kind, f.ranks, f.at, f.params, f.must_fire + 2 * f.is_first) for f in spec.faults
    )
    content = _Token(VERSION, checksum(spec.nodeid), spec.size, spec.seed, faults, spec.clock)
    text = json.dumps(to_json(content), separators=(",", ":")).encode()
    sealed = text + zlib.crc32(text).to_bytes(_CRC_BYTES, "big")
    return base64.urlsafe_b64encode(sealed).decode().rstrip("=")


def read_token(text: str) -> Replay:
    """Return the content of a token.

    Raises:
        SettingError: It is not a token, or one of another version.
    """
    try:
        sealed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        sealed = b""
    content, crc = sealed[:-_CRC_BYTES], sealed[-_CRC_BYTES:]
    if not content or zlib.crc32(content).to_bytes(_CRC_BYTES, "big") != crc:
        raise SettingError(
            "the token cannot be replayed: it is damaged",
            seen=f"{shown(text)} does not end in the checksum of what it says.",
            remedy="Copy all of it from the line that begins with 'replay'.",
        )
    try:
        found = from_json(_Token, parse_json(content))
        is_usable = 0 <= found.n <= MAX_RANKS and abs(found.s) <= MAX_SEED
        problem = "" if is_usable else "it has no such number of ranks, or no such seed"
    except JsonError as error:
        problem = str(error)
    if problem:
        raise SettingError(
            "the token cannot be replayed: it does not say what to replay",
            seen=f"Its content: {problem}.",
            remedy="Copy the one that was printed in the line that begins with 'replay'.",
        )
    if found.v != VERSION:
        raise SettingError(
            "the token cannot be replayed by this version of pytest-multihost-hangs",
            seen=f"It is of format {shown(found.v)}, and this version reads {VERSION}.",
            remedy="Run the test with the version that has printed it, or find a new failure.",
        )
    faults = tuple(
        Fault(kind, ranks, at, params, must_fire=bool(flags & 1), is_first=bool(flags & 2))
        for kind, ranks, at, params, flags in found.f
    )
    return Replay(found.t, found.n, found.s, faults, found.c)


# The effect of faults on the network between a world's hosts: cuts, delay, loss and rate.
#
# All values refer to hosts, by index, not to ranks: two ranks of one host share its link. Delay,
# loss and rate belong to the sending host.


Pair = tuple[int, int]
"""A sending host and a receiving host."""

_PERCENT = 100


@dataclass(frozen=True, slots=True)
class Shape:
    """Delay, loss and rate of the frames that a host sends.

    Attributes:
        delay_s: How much later they arrive.
        loss: The fraction that is lost, 0 to 1.
        bytes_per_s: The maximum rate at which they leave; None: unlimited.
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
class Disturbance:
    """What one fault does to the network.

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


def merged(disturbances: Iterable[Disturbance]) -> Disturbance:
    """Return the combined effect of disturbances, without resets, which happen only once."""
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
    """Return the groups of hosts that can share a bridge, where the kernel forwards all frames.

    The hosts of a group are cut off from the same hosts, in the same directions, and have no other
    disturbance. The largest group comes first.

    Args:
        count: Number of hosts.
        wanted: The disturbance to apply.
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

    These are the hosts on other bridges that are not cut off.

    Args:
        segments: As `bridge_segments` returns them.
        wanted: The disturbance to apply.
    """
    segment_of = {host: segment for segment in segments for host in segment}
    found = {}
    for host, segment in segment_of.items():
        severed = {to for sender, to in wanted.cuts if sender == host}
        if reached := segment_of.keys() - segment - severed:
            found[host] = frozenset(reached)
    return found
