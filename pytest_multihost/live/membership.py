"""The rank that a process has been given by its launcher, read from its environment."""

from __future__ import annotations

from pathlib import Path

from pytest_multihost.launch.launcher_env import Membership, read_membership
from pytest_multihost.live.rights import why_unreadable
from pytest_multihost.model.errors import MultihostError, SettingError

NUMBERED = "Say which rank each process is: multihost attach 0=PID 1=PID ..."


def membership_of(pid: int) -> Membership:
    """Return the membership of a process.

    Raises:
        MultihostError: It is gone, may not be read, or does not say its rank.
    """
    try:
        variables = _environment(pid)
    except FileNotFoundError:
        raise MultihostError(f"there is no process {pid}", remedy="pgrep -af python") from None
    except ProcessLookupError:
        raise MultihostError(f"process {pid} has ended", remedy="pgrep -af python") from None
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
    """Return the membership of a process; None if it says none, or is gone.

    Raises:
        PermissionError: It may not be read.
    """
    try:
        return read_membership(_environment(pid))
    except (FileNotFoundError, ProcessLookupError, SettingError):
        return None


def _environment(pid: int) -> dict[str, str]:
    """Return the variables with which a process was started."""
    data = Path(f"/proc/{pid}/environ").read_bytes()
    pairs = (each.partition(b"=") for each in data.split(b"\0"))
    return {name.decode(errors="replace"): v.decode(errors="replace") for name, _, v in pairs}
