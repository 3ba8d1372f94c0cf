"""This process's rank and the number of processes, from the variables of its launcher.

Launchers nest: torchrun runs inside srun, mpirun inside a Slurm allocation. Where the nesting is
known, the innermost launcher wins. Where it is not and the launchers differ, that is an error.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_multihost.core.model.errors import SettingError

Address = tuple[str, int]

_FIRST_PORT, _PORTS, _CANDIDATES = 20_000, 10_000, 4
"""Ports below Linux's ephemeral range."""

_LOOPBACK = re.compile(r"localhost|127\.\d+\.\d+\.\d+|::1")
_NODE_LIST = re.compile(r"(?P<stem>[^,\[]+)(?:\[(?P<first>\d+)[^\]]*\](?P<rest>[^,\[]*))?")

REMEDY = (
    "Say it yourself: PYTEST_MULTIHOST_RANK, PYTEST_MULTIHOST_SIZE and"
    " PYTEST_MULTIHOST_ADDRESS=HOST:PORT, a free port of rank 0's machine, in every process."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """One process of an attached run, as its launcher has numbered it.

    Attributes:
        rank: Its index, 0..size-1; 0 is the controller.
        size: Number of processes.
        source: The launcher that has set these values.
        job: Distinguishes this run from others of the same launcher.
        host: Rank 0's host; None where the launcher does not name it.
        port: Rank 0's port; None where none is configured.
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
        """Where rank 0 may be found, in the order in which it tries to listen there."""
        if self.host is None:
            return ()
        if self.port is not None:
            return ((self.host, self.port),)
        start = zlib.crc32(self.key.encode())
        step = [_FIRST_PORT + (start + 37 * each) % _PORTS for each in range(_CANDIDATES)]
        return tuple((self.host, port) for port in step)

    @property
    def key(self) -> str:
        """A key that all processes of the run share, and no others."""
        return f"{self.source}/{self.job}/{self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Launcher:
    """The variables by which one launcher passes a process its rank.

    Attributes:
        name: The launcher's name.
        rank: Variable of the rank.
        size: Variable of the number of processes.
        job: Variables that distinguish the run from others.
        host: Variable of rank 0's host, or of its address.
        local: Pairs of variables, or values, that are equal if there is but one machine.
    """

    name: str
    rank: str
    size: str
    job: tuple[str, ...] = ()
    host: str = ""
    local: tuple[str, str] = ("", "")


_EXPLICIT = _Launcher(
    name="PYTEST_MULTIHOST_*", rank="PYTEST_MULTIHOST_RANK", size="PYTEST_MULTIHOST_SIZE"
)
_TORCHRUN = _Launcher(
    name="torchrun",
    rank="RANK",
    size="WORLD_SIZE",
    job=("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    host="MASTER_ADDR",
    local=("LOCAL_WORLD_SIZE", "WORLD_SIZE"),
)
_OPEN_MPI = _Launcher(
    name="Open MPI",
    rank="OMPI_COMM_WORLD_RANK",
    size="OMPI_COMM_WORLD_SIZE",
    job=("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    local=("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"),
)
_PMI = _Launcher(
    name="PMI",
    rank="PMI_RANK",
    size="PMI_SIZE",
    job=("PMI_JOBID", "PMI_ID"),
    local=("MPI_LOCALNRANKS", "PMI_SIZE"),
)
_JAX = _Launcher(
    name="jax",
    rank="JAX_PROCESS_ID",
    size="JAX_NUM_PROCESSES",
    job=("JAX_COORDINATOR_ADDRESS",),
    host="JAX_COORDINATOR_ADDRESS",
)
_SLURM = _Launcher(
    name="Slurm",
    rank="SLURM_PROCID",
    size="SLURM_NTASKS",
    job=("SLURM_JOB_ID", "SLURM_STEP_ID"),
    host="SLURM_STEP_NODELIST",
    local=("SLURM_STEP_NUM_NODES", "1"),
)
_LAUNCHERS = (_TORCHRUN, _OPEN_MPI, _PMI, _JAX, _SLURM)


def read_membership(environment: Mapping[str, str]) -> Membership:
    """Return the membership that the variables give to this process.

    Raises:
        SettingError: No variables are set, or they contradict each other.
    """
    launcher = _launcher(environment)
    rank, size = (_number(name, environment) for name in (launcher.rank, launcher.size))
    if rank >= size:
        happened = f"{launcher.rank}={rank} is not one of {launcher.size}={size} processes"
        raise SettingError(happened, remedy="Ranks count from 0.")
    host, port = environment.get(launcher.host) or None, None
    if address := environment.get("PYTEST_MULTIHOST_ADDRESS"):
        host, port = parse_address("PYTEST_MULTIHOST_ADDRESS", address)
    elif launcher is _EXPLICIT:
        happened = "PYTEST_MULTIHOST_RANK is set and PYTEST_MULTIHOST_ADDRESS is not"
        raise SettingError(happened, remedy=REMEDY)
    elif host is not None and launcher is _JAX:
        host, port = parse_address(launcher.host, host)
    elif host is not None and launcher is _SLURM:
        host = first_node(host)
    one, other = (environment.get(each, each) for each in launcher.local)
    return Membership(
        rank=rank,
        size=size,
        source=launcher.name,
        job="/".join(environment.get(name, "") for name in launcher.job),
        host=host,
        port=port,
        is_one_machine=size == 1
        or bool(one and one == other)
        or bool(host and _LOOPBACK.fullmatch(host)),
    )


def parse_address(name: str, text: str) -> Address:
    """Parse "host:port", with brackets around a host that contains colons.

    Raises:
        SettingError: `text` is no address; the error names the variable.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise SettingError(f"{name} must be HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def _launcher(environment: Mapping[str, str]) -> _Launcher:
    """Return the launcher whose variables apply.

    Raises:
        SettingError: There is none, or several that contradict each other.
    """
    if _EXPLICIT.rank in environment or _EXPLICIT.size in environment:
        return _EXPLICIT
    present = [each for each in _LAUNCHERS if each.rank in environment and each.size in environment]
    if not present:
        known = "; ".join(f"{each.rank} and {each.size} ({each.name})" for each in _LAUNCHERS)
        halves = [
            f"{name} is set and {other} is not"
            for each in _LAUNCHERS
            for name, other in ((each.rank, each.size), (each.size, each.rank))
            if name in environment and other not in environment
        ]
        raise SettingError(
            "no launcher has given this process a rank",
            seen="; ".join([*halves, f"looked for {known}."]),
            remedy=f"Start it with torchrun, srun or mpirun. {REMEDY}",
        )
    if _TORCHRUN in present and "TORCHELASTIC_RUN_ID" in environment:
        return _TORCHRUN  # always the innermost launcher
    if _OPEN_MPI in present or _PMI in present:
        present = [each for each in present if each is not _SLURM]  # only the allocation
    if len({(environment[each.rank], environment[each.size]) for each in present}) > 1:
        said = "; ".join(
            f"{each.rank}={environment[each.rank]} of {each.size}={environment[each.size]}"
            for each in present
        )
        happened = "this process has been given different ranks"
        raise SettingError(happened, seen=f"{said}.", remedy=REMEDY)
    return present[0]


def _number(name: str, environment: Mapping[str, str]) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        happened = f"{name} must be a whole number, not {text!r}" if text else f"{name} is not set"
        raise SettingError(happened, remedy=REMEDY)
    return int(text)


def first_node(nodes: str) -> str:
    """Return the first node of a Slurm node list: "gpu07" of "gpu[07-09,12],x1"."""
    found = _NODE_LIST.match(nodes)
    return nodes if found is None else "".join(filter(None, found.group("stem", "first", "rest")))
