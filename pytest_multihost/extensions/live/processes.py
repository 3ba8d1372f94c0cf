"""Maps the processes of a running job to ranks, by the variables that their launcher set.

`check_rights` and `why_unreadable` name the right that is missing to read a process, and the
command that grants it.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_multihost.core.launch.launcher_env import Membership, read_membership
from pytest_multihost.core.model.errors import MultihostError, SettingError
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.rank_names import PLAIN, rank_numbers
from pytest_multihost.core.watch.kernel import read_stat
from pytest_multihost.core.watch.kernel.proc_files import read_status

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_NEVER = "3"
_MAX_BYTES = 1 << 22


def check_rights(pid: int) -> None:
    """Check that the memory of a process may be read; a process that has ended passes.

    Raises:
        MultihostError: It may not be read; the error names the command that changes that.
    """
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
    except PermissionError as error:
        seen, remedy = why_unreadable(pid)
        raise MultihostError(
            f"the memory of process {pid} may not be read", seen=seen or str(error), remedy=remedy
        ) from error
    except OSError:
        return  # it has ended


def is_own(pid: int) -> bool:
    """Return whether a process runs with this user's rights only."""
    users = read_status(f"/proc/{pid}").get("Uid", "").split()
    return bool(users) and {*users} == {str(os.geteuid())}


def owner_of(pid: int) -> int:
    """Return the user who has started a process, as this machine numbers users; 0 if it is gone.

    The owner of its folder in /proc is another one if the process does not let itself be read.
    """
    users = read_status(f"/proc/{pid}").get("Uid", "").split()
    return int(users[0]) if users else 0


def read_some(path: str) -> bytes:
    """Return the beginning of a file that a process has made of its own memory, up to 4 MiB.

    Raises:
        OSError: It cannot be read.
    """
    with open(path, "rb") as file:  # noqa: PTH123 - a file of /proc
        return file.read(_MAX_BYTES)


def read_maps(pid: int) -> str:
    """Return which files a process has mapped, as text; empty if that cannot be read."""
    try:
        return read_some(f"/proc/{pid}/maps").decode(errors="replace")
    except OSError:
        return ""


def why_unreadable(pid: int) -> tuple[str, str]:
    """Return why the memory of a process may not be read, and the command that changes that."""
    again = f"sudo {shlex.join([*this_program(), *sys.argv[1:]])}"
    scope = _text(_SCOPE)
    if scope == _NEVER:
        return (
            "kernel.yama.ptrace_scope is 3: no process may be read until the next boot.",
            "Set it to 1 or less in /etc/sysctl.d, and boot.",
        )
    if os.geteuid() == 0:
        return (
            "This is root without CAP_SYS_PTRACE, as in a container.",
            "Start the container with: docker run --cap-add=SYS_PTRACE ...",
        )
    owner = Path(f"/proc/{pid}").stat().st_uid
    if owner != os.geteuid():
        return f"It belongs to {user_name(owner)}, and you are {user_name(os.geteuid())}.", again
    if scope not in {"", "0"}:
        return (
            f"kernel.yama.ptrace_scope is {scope}: only a parent may read its children.",
            f"{again}\nor for everybody: sudo sysctl kernel.yama.ptrace_scope=0",
        )
    return "It runs with rights that you do not have, or does not let itself be read.", again


def this_program() -> list[str]:
    """Return this program as a command that works in any directory and for any user."""
    program = Path(sys.argv[0]).resolve()
    is_module = program.suffix == ".py"  # python -m
    return (
        [sys.executable, "-P", "-m", "pytest_multihost.core.command.main"]
        if is_module
        else [str(program)]
    )


def user_name(number: int) -> str:
    """Return the name of a user."""
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""


NUMBERED = "Say which rank each process is: multihost attach 0=PID 1=PID ..."


def membership_of(pid: int) -> Membership:
    """Return the membership of a process.

    Raises:
        MultihostError: It is gone, may not be read, or has no variables of a launcher.
    """
    try:
        variables = environment_of(pid)
    except FileNotFoundError:
        raise MultihostError(
            f"there is no process {pid}", remedy="List the processes: pgrep -af python"
        ) from None
    except ProcessLookupError:
        raise MultihostError(
            f"process {pid} has ended", remedy="List the processes: pgrep -af python"
        ) from None
    except PermissionError as error:
        seen, remedy = why_unreadable(pid)
        raise MultihostError(f"process {pid} cannot be read", seen=seen, remedy=remedy) from error
    try:
        return read_membership(variables)
    except SettingError as error:
        raise MultihostError(
            f"process {pid} does not say which rank it is",
            seen=f"Its environment: {error.happened}.",
            remedy=NUMBERED,
        ) from error


def membership_if_any(pid: int) -> Membership | None:
    """Return the membership of a process; None if it has none, or is gone.

    Raises:
        PermissionError: It may not be read.
    """
    try:
        return read_membership(environment_of(pid))
    except (FileNotFoundError, ProcessLookupError, SettingError):
        return None


def environment_of(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started.

    Raises:
        OSError: It is gone, or may not be read.
    """
    data = read_some(f"/proc/{pid}/environ")
    pairs = (each.partition(b"=") for each in data.split(b"\0"))
    return {name.decode(errors="replace"): v.decode(errors="replace") for name, _, v in pairs}


_AGENT = "pt_elastic"
"""The name that torch gives to the process of torchrun."""

_AGENTS = frozenset({"torch.distributed.run", "torch.distributed.launch"})


def is_agent(pid: int) -> bool:
    """Return whether a process is torchrun's own, which starts ranks, watches them and ends them.

    Ranks that it forks have its name as well; they are its children.
    """
    stat = read_stat(f"/proc/{pid}")
    if stat is None:
        return False
    if stat.name == _AGENT:
        parent = read_stat(f"/proc/{stat.parent}")
        return parent is None or parent.name != _AGENT
    return is_torchrun(command_words(pid))


def is_torchrun(words: Sequence[str]) -> bool:
    """Return whether the words of a command line, the interpreter first, run torchrun."""
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in {"-m", "-c"}:
        rest = rest[1:]
    if rest[:1] == ["-m"]:
        return "".join(rest[1:2]) in _AGENTS
    return Path("".join(rest[:1])).name == "torchrun"


def command_words(pid: int) -> list[str]:
    """Return the words of the command line of a process; none if it cannot be read."""
    try:
        data = read_some(f"/proc/{pid}/cmdline")
    except OSError:
        return []
    return data.rstrip(b"\0").decode(errors="backslashreplace").split("\0")


_PYTHON_NAME = re.compile(r"python[\d.]*[a-z]*( \(deleted\))?")


def is_python(pid: int) -> bool:
    """Return whether a process runs Python; for another user's, its command line decides."""
    try:
        name = Path(f"/proc/{pid}/exe").readlink().name
    except PermissionError:
        name = Path("".join(command_words(pid)[:1])).name
    except OSError:
        return False
    return bool(_PYTHON_NAME.fullmatch(name)) or "/libpython" in read_maps(pid)


_RANK_AND_PID = re.compile(r"(?:(\d{1,6})=)?(\d{1,10})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Job:
    """A job's ranks on this machine, or on several machines together.

    Attributes:
        size: Number of all ranks of the job, here or elsewhere.
        launcher: The source of the ranks' numbers: a launcher, or "you".
        is_size_known: Whether the launcher gives the number of ranks; else it is a lower bound.
        is_guess: Whether the numbers of the ranks are only likely.
        ended: Ranks that should be on this machine but no longer are.
        notes: How the ranks were found, one sentence each.
        hosts: The machine of each rank, if they are on several.
        within: The process that has started the ranks and waits for them. It and all that it has
            started belong to the world then; 0: only ranks and their descendants do.
        alarmed: Processes of which it is known that SIGALRM only fails the test.
        controllers: Processes that only tell others which test to run, as xdist's controller does.
        strays: Processes that may go on as a rank which has ended: their parents have ended.
    """

    pids: Mapping[int, int]
    size: int
    launcher: str
    is_size_known: bool = True
    ended: frozenset[int] = frozenset()
    notes: tuple[str, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    is_guess: bool = False
    within: int = 0
    alarmed: frozenset[int] = frozenset()
    controllers: frozenset[int] = frozenset()
    strays: tuple[int, ...] = ()

    @property
    def title(self) -> str:
        """The job's name in the report: its processes."""
        if not self.hosts:
            return f"processes {' '.join(map(str, self.pids.values()))}"
        by_host = group_by_value((self.hosts[rank], rank) for rank in self.pids)
        return "; ".join(
            f"{PLAIN.of(ranks)} on {host}: processes {' '.join(str(self.pids[r]) for r in ranks)}"
            for host, ranks in by_host.items()
        )


def find_job(names: Sequence[str]) -> Job:
    """Return the job of some processes.

    Args:
        names: One per process: its id, or its rank and its id (``4711``, ``0=4711``).

    Raises:
        MultihostError: A process cannot be read or is named twice, or it is not clear which rank it
            is.
    """
    pairs = [_rank_and_pid(each) for each in names]
    counts = Counter(pid for _, pid in pairs)
    if twice := [pid for pid, count in counts.items() if count > 1]:
        raise MultihostError(f"process {twice[0]} is named twice, and a process is one rank")
    given = {pid: rank for rank, pid in pairs if rank is not None}
    places = {pid: membership_of(pid) for _, pid in pairs if pid not in given}
    sources = {each.source for each in places.values()} | ({"you"} if given else set())
    sizes = {each.size for each in places.values()}
    ranks = [*given.values(), *(each.rank for each in places.values())]
    owners = {owner_of(pid) for pid in places}
    if len(owners) > 1:
        raise MultihostError(
            "the processes are not of one user, and a job is",
            seen="\n".join(f"{pid}: {user_name(owner_of(pid))}" for pid in places),
            remedy=NUMBERED,
        )
    if len(sizes) > 1 or len(sources) > 1 or len({*ranks}) < len(ranks):
        seen = [f"{pid}: rank {e.rank} of {e.size}, by {e.source}" for pid, e in places.items()]
        seen += [f"{pid}: rank {rank}, as you say" for pid, rank in given.items()]
        raise MultihostError(
            "these processes are not the ranks of one job",
            seen="\n".join(seen),
            remedy=f"Name one process for each rank of one job. {NUMBERED}",
        )
    pids = {**{rank: pid for pid, rank in given.items()}, **{e.rank: i for i, e in places.items()}}
    size = max([*sizes, *(rank + 1 for rank in pids)])
    return Job(dict(sorted(pids.items())), size, ", ".join(sources), is_size_known=bool(sizes))


def _rank_and_pid(text: str) -> tuple[int | None, int]:
    found = _RANK_AND_PID.fullmatch(text)
    if found is None:
        remedy = "Name ids of processes, or find a job by a part of its command: --match TEXT."
        raise MultihostError(f"{text!r} is not the id of a process", remedy=remedy)
    return (int(found[1]) if found[1] else None), int(found[2])


def not_here(job: Job) -> str:
    """Return as text the ranks of a job that are not among its processes; empty if all are."""
    return rank_numbers(set(range(job.size)) - job.pids.keys())
