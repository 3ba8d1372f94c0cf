"""Which right is missing to read a process, and the command that gives it."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from pathlib import Path

from pytest_multihost.model.errors import MultihostError

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_NEVER = "3"


def check_rights(pid: int) -> None:
    """Refuse a process whose memory may not be read.

    Raises:
        MultihostError: It may not, with the command that changes that.
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


def why_unreadable(pid: int) -> tuple[str, str]:
    """Return why the memory of a process may not be read, and what changes that."""
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
        return f"It belongs to {_user(owner)}, and you are {_user(os.geteuid())}.", again
    if scope not in {"", "0"}:
        return (
            f"kernel.yama.ptrace_scope is {scope}: only a parent may read its children.",
            f"{again}\nor for everybody: sudo sysctl kernel.yama.ptrace_scope=0",
        )
    return "It runs with rights that you do not have, or does not let itself be read.", again


def this_program() -> list[str]:
    """Return the program that runs, as a command that works in any directory and for any user."""
    program = Path(sys.argv[0]).resolve()
    is_module = program.suffix == ".py"  # python -m
    return [sys.executable, "-m", "pytest_multihost.command.main"] if is_module else [str(program)]


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""
