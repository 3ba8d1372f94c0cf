"""The spec of a world, the same for every rank, and its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from pytest_multihost.core.model.fault import Fault, FaultFacts
from pytest_multihost.core.model.json_values import JsonObject
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.role import RoleSpec
from pytest_multihost.core.model.setting_values import ONE


@dataclass(frozen=True, slots=True)
class Host:
    """A machine, or an emulated one.

    Attributes:
        index: 0 for the host of the primary.
        name: The result of `gethostname` on an emulated host; "localhost" for this machine.
        address: The address at which other hosts reach it.
        interface: The network interface with that address.
        kind: The name of its `HostKind`, if it is emulated; `ONE` for this machine, `MACHINE` for
            a machine of its own, which may share no files with the others.
        is_sealed: Whether its network connects only hosts of the same world.
    """

    index: int
    name: str
    address: str
    interface: str
    ranks: range
    kind: str = ONE
    is_sealed: bool = False


MACHINE = "machine"

Subject = Literal["test", "script", "job"]
"""The kind of program in ranks: a pytest test, a script, or a job that another program started."""


def phase_name(phase: str, subject: Subject) -> str:
    """Return the reader's name of a rank's phase; "call" is pytest's word for the test itself."""
    return f"the {subject}" if phase == "call" else phase


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """Facts about a backend's worlds, for code that does not know the backends.

    Attributes:
        may_run_jax: Whether threads beside the main one may be in operations that no recorder sees,
            such as those of jitted jax functions.
        connects_by_proxies: Whether its runtime would connect the ranks through the proxies that
            environment variables name, as gRPC does.
        operation_error: The exception of a failed torch operation, as ``module:Class``; empty:
            RuntimeError.
        hints: Advice for a test that raises an exception, by a regular expression that is searched
            in the exception's type and text.
        noise: Regular expressions of lines that the terminal omits from the ranks' output.
        tells_classes: Whether verdict.json has one entry for ranks that ended alike.
    """

    may_run_jax: bool = True
    connects_by_proxies: bool = False
    operation_error: str = ""
    hints: Mapping[str, str] = field(default_factory=dict, hash=False)
    noise: tuple[str, ...] = ()
    tells_classes: bool = False


def common_facts(facts: Sequence[BackendFacts]) -> BackendFacts:
    """Return the facts about a world whose ranks have several backends."""
    if len(set(facts)) == 1:
        return facts[0]
    errors = [each.operation_error for each in facts if each.operation_error]
    return BackendFacts(
        may_run_jax=any(each.may_run_jax for each in facts),
        connects_by_proxies=any(each.connects_by_proxies for each in facts),
        operation_error=errors[0] if errors else "",
        hints={pattern: text for each in facts for pattern, text in each.hints.items()},
        noise=tuple(dict.fromkeys(pattern for each in facts for pattern in each.noise)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePart:
    """The part of a world's spec that one of its services needs; only the service reads `settings`.

    A server and its ranks may have no plugin manager: they find the service's code by an import
    path, "package.module:function".

    Attributes:
        server: Path of a function that returns its part in the server, a `ServerPart`; may be
            empty.
        rank: Path of a function that returns its part in a rank, a `RankPart`; may be empty.
        machine: Path of a function that returns its part on each machine with ranks, a
            `MachinePart`; may be empty.
        keeps_timeouts: Whether runtimes keep their own timeouts, because the test is to meet them.
        one_machine: If all ranks must be on one machine: the setting that asks for the service, as
            in "clock='jump'", and the one to use instead.
        is_replayed: Whether a replay token names it.
        is_interactive: Whether it needs the user, so that worlds that run apart from the test's own
            are without it.
    """

    omits_defaults: ClassVar = True
    server: str = ""
    rank: str = ""
    machine: str = ""
    settings: JsonObject = field(default_factory=dict)
    keeps_timeouts: bool = False
    one_machine: tuple[str, ...] = ()
    is_replayed: bool = False
    is_interactive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecorderPart:
    """A recorder of a library's waits in ranks, and in the children of ranks with roles.

    Attributes:
        module: The library's module. Nothing else of the part is imported before it.
        wrap: Path of a function, "package.module:function", that gets the rank's `Recorder` and
            wraps the library's functions.
    """

    module: str
    wrap: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSpec:
    """One attempt of one test.

    Attributes:
        nodeid: pytest's node id; never carries a rank.
        attempt: 1 for the first run of this test in this session, 2 for its first rerun, ...
        backend: Name of the backend that forms the process group.
        local_devices: Devices per rank, for backends that make their own (jax).
        timeout_s: Seconds from the moment all ranks are ready to the end of the world.
        timeout_from: The source of the timeout, for readers: "the default", "its marker".
        startup_timeout_s: Seconds from the first fork until all ranks are ready.
        seed: Seed of all random choices for this world.
        faults: Its faults; their ranks are numbers.
        fault_facts: Facts about the kinds of its faults, by kind.
        imports_named: Whether ranks import the modules that its faults name. If a token names them,
            a fault counts only once the test itself has imported its module.
        tells_points: Whether each rank records every point to which a fault can be bound.
        told_calls: Functions, as ``module:function``, whose calls are recorded as well.
        told_batches: Data loaders, as ``module:name``, whose batches are recorded as well.
        keeps_operations: Whether each rank keeps all its operations, not only the last ones.
        hosts: Its hosts in order; empty: all ranks are on this machine.
        services: The parts of its services, by their names.
        recorders: The recorders of plugins in its ranks.
        horizon_s: The world hangs if nothing can move within this time; None: before its deadline.
        patience_s: It also hangs once a rank has waited for another one this long, whatever that
            one does; None: it never does for that alone.
        argv: The command that runs it again, if it is not a test.
        selected_by: pytest's arguments that select the test, from the directory where pytest was
            started.
        options: Texts of the options that shaped it, for a replay, by name.
        roles: Its roles in order, which have each rank once; empty: all ranks run one program.
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
    imports_named: bool = True
    tells_points: bool = False
    told_calls: tuple[str, ...] = ()
    told_batches: tuple[str, ...] = ()
    keeps_operations: bool = False
    hosts: tuple[Host, ...] = ()
    services: Mapping[str, ServicePart] = field(default_factory=dict, hash=False)
    recorders: tuple[RecorderPart, ...] = ()
    horizon_s: float | None = None
    patience_s: float | None = None
    backend_facts: BackendFacts = BackendFacts()
    timeout_from: str = ""
    argv: tuple[str, ...] = ()
    selected_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    subject: Subject = "test"
    roles: tuple[RoleSpec, ...] = ()

    @classmethod
    def of_job(
        cls, name: str, size: int, backend: str, *, hosts: tuple[Host, ...] = ()
    ) -> WorldSpec:
        """Return the description of a job that the engine has not started.

        Args:
            name: Its name in reports.
            backend: The library that connects its ranks, or their launcher, in a word.
        """
        return cls(
            nodeid=name,
            attempt=1,
            size=size,
            backend=backend,
            local_devices=1,
            timeout_s=0.0,
            startup_timeout_s=0.0,
            seed=0,
            hosts=hosts,
            subject="job",
        )

    @property
    def keeps_proxies(self) -> bool:
        """Whether its ranks keep the proxy variables, through which a script may load data.

        Tests drop them, and so do scripts whose backend would connect the ranks through the
        proxies.
        """
        return bool(self.argv) and not self.backend_facts.connects_by_proxies

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
        """The names of the services that a replay needs."""
        return tuple(name for name, each in self.services.items() if each.is_replayed)

    @property
    def without_user(self) -> WorldSpec:
        """The same world without the services that need the user."""
        kept = {name: each for name, each in self.services.items() if not each.is_interactive}
        return replace(self, services=kept)

    @property
    def all_hosts(self) -> tuple[Host, ...]:
        """Its hosts in order."""
        here = Host(0, "localhost", "127.0.0.1", "lo", range(self.size))
        return self.hosts or (here,)

    def is_by_horizon(self, found_s: float | None, go_s: float | None) -> bool:
        """Return whether a hang was proven for the horizon only, and not up to the timeout.

        Args:
            found_s: When it was found; None if that is unknown.
            go_s: When all ranks began the test; None if they have not, or if that is unknown.
        """
        if self.horizon_s is None or found_s is None or go_s is None:
            return self.horizon_s is not None
        return found_s + self.horizon_s < go_s + self.timeout_s

    def facts_of(self, fault: Fault) -> FaultFacts:
        """Return the facts about a fault's kind; the default ones if the spec has none."""
        return self.fault_facts.get(fault.kind, FaultFacts())

    def host_of(self, rank: int) -> Host:
        """Return the host of a rank."""
        return next(host for host in self.all_hosts if rank in host.ranks)

    @property
    def is_sealed(self) -> bool:
        """Whether its network connects only its own processes."""
        return bool(self.hosts) and all(each.is_sealed for each in self.hosts)

    @property
    def names(self) -> Names:
        """How texts call its ranks."""
        return Names(self.size, tuple((each.name, each.ranks) for each in self.roles))

    @property
    def role_hosts(self) -> frozenset[int]:
        """The ranks that host a service of their role's runtime, so that they exit last."""
        return frozenset(each.ranks.start for each in self.roles if each.primary_leaves_last)

    @property
    def testing_ranks(self) -> tuple[int, ...]:
        """The ranks that run the test's function, or a script, and no program in its place."""
        programs = {rank for each in self.roles if each.run for rank in each.ranks}
        return tuple(rank for rank in range(self.size) if rank not in programs)

    def role_of(self, rank: int) -> RoleSpec | None:
        """Return the role of a rank; None if the world has no roles."""
        return next((role for role in self.roles if rank in role.ranks), None)

    def of_role(self, role: RoleSpec) -> WorldSpec:
        """Return the world that the runtime of a role sees: its ranks alone, from 0."""
        hosts = [
            replace(host, ranks=ranks)
            for host in self.hosts
            if (ranks := _numbers_in(role, host.ranks))
        ]
        return replace(
            self,
            size=len(role.ranks),
            backend=role.backend,
            hosts=tuple(replace(host, index=index) for index, host in enumerate(hosts)),
            roles=(),
        )


def _numbers_in(role: RoleSpec, ranks: range) -> range:
    """Return the numbers that a role's ranks among some ranks have in the role."""
    first, stop = max(role.ranks.start, ranks.start), min(role.ranks.stop, ranks.stop)
    return range(first - role.ranks.start, stop - role.ranks.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpec:
    """The spec of one rank of a world.

    Attributes:
        rank: Its index, 0..size-1.
        directory: Artifacts of this attempt, such as logs and stacks.
        scratch: Private directory of this world outside the artifacts: rendezvous files,
            temporary directories of the tests.
        ports: Two TCP ports of the primary's host, reserved for this world: one for MASTER_PORT,
            one for the backend's own service.
        role_ports: For each role in order, such a pair, and the ports of its program.
    """

    world: WorldSpec
    rank: int
    directory: str
    scratch: str
    ports: tuple[int, int]
    role_ports: tuple[int, ...] = ()

    @property
    def is_primary(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def host(self) -> Host:
        """The host it is on."""
        return self.world.host_of(self.rank)

    @property
    def role(self) -> RoleSpec | None:
        """Its role; None if the world has no roles."""
        return self.world.role_of(self.rank)

    @property
    def backend(self) -> str:
        """Name of the backend that it starts."""
        role = self.role
        return self.world.backend if role is None else role.backend

    def ports_of(self, role: RoleSpec) -> tuple[int, ...]:
        """Return the ports of a role: two for its rendezvous, then its program's own."""
        before = self.world.roles[: self.world.roles.index(role)]
        first = sum(each.port_count for each in before)
        return self.role_ports[first : first + role.port_count]

    @property
    def in_role(self) -> RankSpec:
        """The spec that the runtime of its role sees; this one if the world has no roles.

        The role is its world there: the rank counts from 0 in it, and it has ports and a private
        directory of its own.
        """
        role = self.role
        if role is None:
            return self
        return replace(
            self,
            world=self.world.of_role(role),
            rank=self.rank - role.ranks.start,
            ports=(self.ports_of(role)[0], self.ports_of(role)[1]),
            role_ports=(),
            scratch=f"{self.scratch}/{role.name}.role",
        )


def port_count(world: WorldSpec) -> int:
    """Return how many ports the roles of a world need, beside the world's own two."""
    return sum(each.port_count for each in world.roles)
