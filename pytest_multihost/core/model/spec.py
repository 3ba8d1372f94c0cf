"""The spec of a world, the same for every rank; its hosts; the token that replays it."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.fault import Fault, FaultFacts, Point
from pytest_multihost.core.model.json_values import (
    JsonError,
    JsonObject,
    from_json,
    parse_json,
    to_json,
)

Early = Literal["fail", "warn", "off"]
"""The reaction to a proven hang: end the world, only note it, or do not look for one."""


@dataclass(frozen=True, slots=True)
class Host:
    """A machine, or an emulated one.

    Attributes:
        index: 0 for the host of the primary.
        name: What `gethostname` returns on an emulated host; "localhost" for this machine.
        address: The address at which other hosts reach it.
        interface: The network interface with that address.
        kind: The name of its `HostKind`, if it is emulated; `ONE` for this machine, `MACHINE` for
            a machine of its own, which may share no files with the others.
    """

    index: int
    name: str
    address: str
    interface: str
    ranks: range
    kind: str = "one"


ONE, MACHINE = "one", "machine"

MAX_SEED = (1 << 63) - 1

MAX_RANKS = 10_000
"""The most ranks that a world can be asked for; more fit on no machine."""

NO_TIMEOUT_S = 365 * 86_400.0
"""The timeout of a world that has none: a year, which every runtime can add to a time."""

Subject = Literal["test", "script", "job"]
"""What ranks run: a test of pytest's, a script, or something that was started without us."""


def phase_name(phase: str, subject: Subject) -> str:
    """Return the name of a rank's phase: "call" is pytest's word."""
    return f"the {subject}" if phase == "call" and subject != "test" else phase


DEFAULT_BACKEND: Final = "none"


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """What a backend says about its worlds, for those who do not know the backends.

    Attributes:
        may_run_jax: Whether the ranks may be in operations beside their main threads that no
            recorder sees, as those of a jitted function of jax are.
        connects_by_proxies: Whether its runtime would connect the ranks through the proxies that
            environment variables name, as gRPC does.
        operation_error: What an operation of torch's raises when it fails, as ``module:Class``;
            empty: RuntimeError.
    """

    may_run_jax: bool = True
    connects_by_proxies: bool = False
    operation_error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePart:
    """What the spec of a world says of one of its services; nobody but the service reads more.

    A server and its ranks may have no plugin manager: they find the service's code by an import
    path, "package.module:function".

    Attributes:
        server: Returns the service's part in the server, a `ServerPart`; empty: it has none.
        rank: Returns its part in a rank, a `RankPart`; empty: it has none.
        settings: What it needs, under names of its own.
        keeps_timeouts: Whether runtimes keep their own timeouts, because these are to be seen.
        one_machine: If all ranks must be on one machine, the setting that asks for the service, as
            in "clock='jump'", and what to say instead.
        is_replayed: Whether a replay token names it.
    """

    omits_defaults: ClassVar = True
    server: str = ""
    rank: str = ""
    settings: JsonObject = field(default_factory=dict)
    keeps_timeouts: bool = False
    one_machine: tuple[str, ...] = ()
    is_replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """One attempt of one test.

    Attributes:
        nodeid: pytest's node id; never carries a rank.
        attempt: 1 for the first run of this test in this session, 2 for its first rerun, ...
        size: Number of ranks.
        backend: Name of the backend that forms the process group.
        backend_facts: What it says about its worlds.
        local_devices: Devices per rank, for backends that make their own (jax).
        timeout_s: Seconds from the moment all ranks are ready to the end of the world.
        startup_timeout_s: Seconds from the first fork until all ranks are ready.
        seed: Seed of all random choices for this world.
        faults: Its faults; their ranks are numbers.
        fault_facts: What the kinds of its faults say about them, by kind.
        tells_points: Whether each rank records every point to which a fault can be bound.
        told_calls: Functions, as ``module:function``, whose calls it records as well.
        told_batches: Data loaders, as ``module:name``, whose batches it records as well.
        keeps_operations: Whether each rank keeps all its operations, not only the last ones.
        hosts: Its hosts in order; empty: all ranks are on this machine.
        services: What its services need, by their names.
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
    fault_facts: Mapping[str, FaultFacts] = field(default_factory=dict, hash=False)
    tells_points: bool = False
    told_calls: tuple[str, ...] = ()
    told_batches: tuple[str, ...] = ()
    keeps_operations: bool = False
    hosts: tuple[Host, ...] = ()
    services: Mapping[str, ServicePart] = field(default_factory=dict, hash=False)
    horizon_s: float | None = None
    backend_facts: BackendFacts = BackendFacts()
    command: str = ""
    subject: Subject = "test"

    @property
    def keeps_proxies(self) -> bool:
        """Whether its ranks see the variables of proxies, through which a script may load data.

        Tests do not, nor scripts whose backend would connect the ranks through the proxies.
        """
        return bool(self.command) and not self.backend_facts.connects_by_proxies

    @property
    def deadline_text(self) -> str:
        """Until when nothing can move in it if it hangs, in words."""
        return "before the deadline" if self.horizon_s is None else f"within {self.horizon_s:g} s"

    @property
    def shares_files(self) -> bool:
        """Whether all of its hosts see the same files."""
        return all(each.kind != MACHINE for each in self.hosts)

    @property
    def keeps_timeouts(self) -> bool:
        """Whether runtimes keep their own timeouts in it."""
        return any(each.keeps_timeouts for each in self.services.values())

    @property
    def replayed_services(self) -> tuple[str, ...]:
        """The names of the services without which a replay would not repeat it."""
        return tuple(name for name, each in self.services.items() if each.is_replayed)

    @property
    def all_hosts(self) -> tuple[Host, ...]:
        """Its hosts in order."""
        here = Host(0, "localhost", "127.0.0.1", "lo", range(self.size))
        return self.hosts or (here,)

    def facts_of(self, fault: Fault) -> FaultFacts:
        """Return what the kind of one of its faults says about it; by default it is of a rank."""
        return self.fault_facts.get(fault.kind, FaultFacts())

    def host_of(self, rank: int) -> Host:
        """Return the host of a rank."""
        return next(host for host in self.all_hosts if rank in host.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """One rank's place in a world.

    Attributes:
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
        services: Names of the services that it needs.
    """

    test: int
    size: int
    seed: int
    faults: tuple[Fault, ...]
    services: tuple[str, ...] = ()

    def is_of(self, nodeid: str) -> bool:
        """Whether it replays the test with this node id."""
        return self.test == checksum(nodeid)


@dataclass(frozen=True, slots=True)
class _Token:
    """A token's JSON: version, test, size, seed, faults and services, by one letter each."""

    omits_defaults: ClassVar = True

    v: int
    t: int = 0
    n: int = 0
    s: int = 0
    f: tuple[_ShortFault, ...] = ()
    c: tuple[str, ...] = ()


def checksum(nodeid: str) -> int:
    """Return the checksum of a node id."""
    return zlib.crc32(nodeid.encode("utf-8", "surrogatepass"))


def token(spec: WorldSpec) -> str:
    """Return the token that replays a world."""
    faults = tuple(
        (f.kind, f.ranks, f.at, f.params, f.must_fire + 2 * f.is_first) for f in spec.faults
    )
    test, services = checksum(spec.nodeid), spec.replayed_services
    content = _Token(VERSION, test, spec.size, spec.seed, faults, services)
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
