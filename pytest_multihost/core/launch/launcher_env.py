"""Read the rank that a launcher such as torchrun or srun gives to a process in its variables.

Launchers nest: torchrun runs inside srun, mpirun inside a Slurm allocation. If the nesting is
known, the innermost launcher wins. Otherwise it is an error if the launchers differ.

`LAUNCHERS` holds one `OuterLauncher` for each, with all facts about its variables.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.setting_values import MAX_RANKS

Address = tuple[str, int]

ADDRESS = "PYTEST_MULTIHOST_ADDRESS"
"""Variable of rank 0's address; users may set it with any launcher."""

_FIRST_PORT, _PORTS, _CANDIDATES = 20_000, 10_000, 4
"""First port and number of ports, below Linux's ephemeral range; how many of them to try."""

_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")
_COUNT, _PORT = re.compile(r"\d{1,9}", re.ASCII), re.compile(r"\d{1,5}", re.ASCII)
_NODE_LIST = re.compile(r"(?P<stem>[^,\[]+)(?:\[(?P<first>\d+)[^\]]*\](?P<rest>[^,\[]*))?")

REMEDY = (
    "Or set PYTEST_MULTIHOST_RANK, PYTEST_MULTIHOST_SIZE and PYTEST_MULTIHOST_ADDRESS=HOST:PORT,"
    " a free port of rank 0's machine, in every process."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One process of an attached run, as its launcher has numbered it.

    Attributes:
        rank: Its index, 0..size-1; 0 is the controller.
        source: Name of the launcher that has set these values, or a description of it.
        job: Distinguishes this run from others of the same launcher.
        host: Rank 0's host; None if the launcher does not name it.
        port: Rank 0's port; None if none is configured.
        is_one_machine: Whether all processes are known to be on one machine.
    """

    rank: int
    size: int
    source: str
    job: str
    host: str | None = None
    port: int | None = None
    is_one_machine: bool = False

    @property
    def addresses(self) -> tuple[Address, ...]:
        """Rank 0's possible addresses, in the order in which it tries to listen at them."""
        if self.host is None:
            return ()
        if self.port is not None:
            return ((self.host, self.port),)
        start = zlib.crc32(self.key.encode())
        step = [_FIRST_PORT + (start + 37 * each) % _PORTS for each in range(_CANDIDATES)]
        return tuple((self.host, port) for port in step)

    @property
    def key(self) -> str:
        """A key that only the processes of this run share."""
        return f"{self.source}/{self.job}/{self.size}"


def _plain_host(_: str, text: str) -> tuple[str, None]:
    return text, None


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterLauncher:
    """A program that starts processes and passes each its rank in variables.

    Attributes:
        size: Variable of the number of processes.
        job: Variables that distinguish the run from others.
        host: Variable of rank 0's host or address.
        read_host: Returns the host, and the port if one is given, from the name and the value of
            that variable.
        local: Two variables, or a variable and a value, that are equal only on a single machine.
        foreign: Variables that a rank of another world must not inherit: whole names, or prefixes,
            which end in "*".
        precedence: If several launchers have numbered a process, only those with the highest
            precedence count.
        precedence_needs: Variable without which its precedence is 0; empty if it needs none.
        otherwise: The name of the source of its variables if that variable is missing.
        runs_in: Names of launchers that only allocate resources for this one. Their numbers are
            ignored if this one has numbered the process.
        is_by_hand: Whether users set its variables. Then a rank or a size is enough to choose it,
            and an error is raised if the rest, including the host, is missing.
    """

    name: str
    rank: str
    size: str
    job: tuple[str, ...] = ()
    host: str = ""
    read_host: Callable[[str, str], tuple[str, int | None]] = _plain_host
    local: tuple[str, str] = ("", "")
    foreign: tuple[str, ...] = ()
    precedence: int = 0
    precedence_needs: str = ""
    otherwise: str = ""
    runs_in: tuple[str, ...] = ()
    is_by_hand: bool = False

    def has_numbered(self, environment: Mapping[str, str]) -> bool:
        """Return whether it has given a rank to the process with these variables."""
        are_set = [name in environment for name in (self.rank, self.size)]
        return any(are_set) if self.is_by_hand else all(are_set)

    def precedence_in(self, environment: Mapping[str, str]) -> int:
        """Return its precedence in a process with these variables."""
        return self.precedence if self._is_known_in(environment) else 0

    def name_in(self, environment: Mapping[str, str]) -> str:
        """Return the name of the launcher that has set these variables."""
        return self.name if self._is_known_in(environment) else self.otherwise

    def _is_known_in(self, environment: Mapping[str, str]) -> bool:
        return not self.precedence_needs or self.precedence_needs in environment


def parse_address(name: str, text: str) -> Address:
    """Parse "host:port", with brackets around a host that contains colons.

    Raises:
        SettingError: `text` is not an address; the error names the variable.
    """
    host, _, port = text.rpartition(":")
    if not host or not _PORT.fullmatch(port) or not 0 < int(port) < 1 << 16:
        raise SettingError(f"{name} must be HOST:PORT, not {shown(text)}")
    return host.strip("[]"), int(port)


def first_node(nodes: str) -> str:
    """Return the first node of a Slurm node list: "gpu07" of "gpu[07-09,12],x1"."""
    found = _NODE_LIST.match(nodes)
    return nodes if found is None else "".join(filter(None, found.group("stem", "first", "rest")))


def _host_of_first_node(_: str, text: str) -> tuple[str, None]:
    return first_node(text), None


LAUNCHERS = (
    OuterLauncher(
        name="PYTEST_MULTIHOST_*",
        rank="PYTEST_MULTIHOST_RANK",
        size="PYTEST_MULTIHOST_SIZE",
        host=ADDRESS,
        read_host=parse_address,
        precedence=2,
        is_by_hand=True,
    ),
    OuterLauncher(
        name="torchrun",
        rank="RANK",
        size="WORLD_SIZE",
        job=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
        host="MASTER_ADDR",  # without a port: the launcher's own store uses MASTER_PORT
        local=("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
        foreign=(
            *("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
            *("LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_NAME"),
            *("GROUP_RANK", "GROUP_WORLD_SIZE", "GROUP_NAME"),
            *("ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
            *("NODE_RANK", "NODE_WORLD_SIZE", "NODE_NAME"),
            "TORCHELASTIC_*",
        ),
        precedence=1,  # always the innermost launcher
        precedence_needs="TORCHELASTIC_RUN_ID",  # without it, any script may have set RANK
        otherwise="a program that sets RANK",
    ),
    OuterLauncher(
        name="Open MPI",
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        local=("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
        foreign=("OMPI_*", "PMIX_*"),
        runs_in=("Slurm",),
    ),
    OuterLauncher(
        name="PMI",  # MPICH and its derivatives
        rank="PMI_RANK",
        size="PMI_SIZE",
        job=("PMI_JOBID", "PMI_ID"),
        local=("MPI_LOCALNRANKS", "PMI_SIZE"),
        foreign=("PMI_*", "MPI_*"),
        runs_in=("Slurm",),
    ),
    OuterLauncher(
        name="jax",
        rank="JAX_PROCESS_ID",
        size="JAX_NUM_PROCESSES",
        job=("JAX_COORDINATOR_ADDRESS",),
        host="JAX_COORDINATOR_ADDRESS",
        read_host=parse_address,
        foreign=(
            *("JAX_COORDINATOR_ADDRESS", "JAX_COORDINATOR_BIND_ADDRESS"),
            *("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_LOCAL_DEVICE_IDS"),
        ),
    ),
    OuterLauncher(
        name="Slurm",
        rank="SLURM_PROCID",
        size="SLURM_NTASKS",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
        host="SLURM_STEP_NODELIST",
        read_host=_host_of_first_node,
        local=("SLURM_STEP_NUM_NODES", "1"),
        foreign=(
            *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_NTASKS", "SLURM_NPROCS"),
            *("SLURM_JOB_NUM_NODES", "SLURM_STEP_*"),
        ),
    ),
)

_FOREIGN = [name for each in LAUNCHERS for name in each.foreign]
_FOREIGN_NAMES = frozenset(name for name in _FOREIGN if not name.endswith("*"))
_FOREIGN_BEGINNINGS = tuple(name[:-1] for name in _FOREIGN if name.endswith("*"))


def is_foreign(variable: str) -> bool:
    """Return whether a launcher has set this variable for its own ranks; ignores the name's case.

    A rank of another world must not see it.
    """
    name = variable.upper()
    return name in _FOREIGN_NAMES or name.startswith(_FOREIGN_BEGINNINGS)


def read_membership(environment: Mapping[str, str]) -> Membership:
    """Return the membership that the variables give to this process.

    Raises:
        SettingError: No variables are set, or they contradict each other.
    """
    launcher = _launcher(environment)
    rank, size = (_number(name, environment) for name in (launcher.rank, launcher.size))
    if rank >= size:
        happened = f"{launcher.rank}={rank} is too large for {launcher.size}={size}"
        raise SettingError(happened, remedy="Ranks count from 0.")
    host, port = _address(launcher, environment)
    one, other = (environment.get(each, each) for each in launcher.local)
    return Membership(
        rank=rank,
        size=size,
        source=launcher.name_in(environment),
        job="/".join(environment.get(name, "") for name in launcher.job),
        host=host,
        port=port,
        is_one_machine=size == 1
        or bool(one and one == other)
        or bool(host and _LOOPBACK.fullmatch(host)),
    )


def _address(
    launcher: OuterLauncher, environment: Mapping[str, str]
) -> tuple[str, int | None] | tuple[None, None]:
    """Return rank 0's host and port, as far as the variables name them.

    Raises:
        SettingError: A variable holds no valid address, or a required one is missing.
    """
    if address := environment.get(ADDRESS):
        return parse_address(ADDRESS, address)
    if launcher.is_by_hand:
        happened = f"{launcher.rank} is set and {launcher.host} is not"
        raise SettingError(happened, remedy=REMEDY)
    if text := environment.get(launcher.host):
        return launcher.read_host(launcher.host, text)
    return None, None


def _launcher(environment: Mapping[str, str]) -> OuterLauncher:
    """Return the launcher whose variables apply.

    Raises:
        SettingError: There is none, or several contradict each other.
    """
    present = [each for each in LAUNCHERS if each.has_numbered(environment)]
    if not present:
        raise _no_launcher(environment)
    highest = max(each.precedence_in(environment) for each in present)
    present = [each for each in present if each.precedence_in(environment) == highest]
    outer = {name for each in present for name in each.runs_in}
    present = [each for each in present if each.name not in outer]
    if len({(environment.get(each.rank), environment.get(each.size)) for each in present}) > 1:
        said = "; ".join(
            f"{each.rank}={environment[each.rank]} of {each.size}={environment[each.size]}"
            for each in present
        )
        happened = "this process has been given different ranks"
        raise SettingError(happened, seen=f"{said}.", remedy=REMEDY)
    return present[0]


def _no_launcher(environment: Mapping[str, str]) -> SettingError:
    launchers = [each for each in LAUNCHERS if not each.is_by_hand]
    known = "; ".join(f"{each.rank} and {each.size} ({each.name})" for each in launchers)
    halves = [
        f"{name} is set and {other} is not"
        for each in launchers
        for name, other in ((each.rank, each.size), (each.size, each.rank))
        if name in environment and other not in environment
    ]
    return SettingError(
        "no launcher has given this process a rank",
        seen="; ".join([*halves, f"looked for {known}."]),
        remedy=f"Start it with torchrun, srun or mpirun. {REMEDY}",
    )


def _number(name: str, environment: Mapping[str, str]) -> int:
    text = environment.get(name, "")
    if not _COUNT.fullmatch(text) or int(text) > MAX_RANKS:
        wanted = f"a whole number of at most {MAX_RANKS}"
        happened = f"{name} must be {wanted}, not {shown(text)}" if text else f"{name} is not set"
        raise SettingError(happened, remedy=REMEDY)
    return int(text)
