"""Lets root look at another user's job with that user's rights only.

What a job has in memory, and the files that it has mapped, are made by its user. So a child of root
takes that user's rights before it reads them, and its answer is text. A program that misleads the
reader gets no more than it has.

Where only an ancestor may read a process (kernel.yama.ptrace_scope), the child keeps the one
capability to do that, CAP_SYS_PTRACE, for itself and for the readers that it starts.
"""

from __future__ import annotations

import ctypes
import json
import os
import pwd
import sys
import tempfile
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.foreign_bytes import UnreadableError, parsing
from pytest_multihost.core.model.json_values import Json, from_json, parse_foreign, to_json
from pytest_multihost.core.slots import py_spy_command
from pytest_multihost.core.watch.kernel.proc_files import read_status

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_KEEP_CAPABILITIES, _NO_NEW_PRIVILEGES, _AMBIENT, _RAISE = 8, 38, 47, 2
_SYS_PTRACE, _VERSION_3 = 19, 0x20080522
_MAX_ANSWER = 64 << 20

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Texts:
    """What a look at a job has brought.

    Attributes:
        page: The page for the terminal; empty if the job has ended.
        verdict: The verdict as JSON.
        html: The page for a browser; empty if nobody asked for it.
        is_hung: Whether the job seems to hang.
    """

    page: str = ""
    verdict: str = ""
    html: str = ""
    is_hung: bool = False


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer of the child.

    Attributes:
        error: Why there is no result.
    """

    result: Json = None
    error: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class User:
    """Whose rights a process takes."""

    uid: int
    gid: int


def user_of(pids: Collection[int]) -> User | None:
    """Return the user whose rights suffice to look at processes; None: this one's own are right.

    Raises:
        MultihostError: They are of several users, and this is root.
    """
    if os.geteuid() != 0:
        return None
    statuses = (read_status(f"/proc/{pid}") for pid in pids)
    ids = ((each.get("Uid", "").split(), each.get("Gid", "").split()) for each in statuses)
    found = {User(int(uid[0]), int(gid[0])) for uid, gid in ids if uid and gid}
    if len({each.uid for each in found}) > 1:
        raise MultihostError(
            "the processes are of several users, and root reads a job with the rights of its user",
            remedy="Look at the processes of each user separately.",
        )
    return next((each for each in found if each.uid != 0), None)


def why_not(user: User) -> str:
    """Return why a user may not run this program, which root has where he cannot read it."""
    needed = [sys.executable, os.__file__, __file__, *py_spy_command()[:1]]
    child = os.fork()
    if not child:
        code = 1
        try:
            become(user)
            code = 0 if all(os.access(each, os.R_OK) for each in needed) else 1
        finally:
            os._exit(code)
    return "" if os.waitpid(child, 0)[1] == 0 else f"may not read {Path(sys.executable).resolve()}"


def become(user: User) -> None:
    """Take the rights of a user, for good.

    Raises:
        OSError: That is not allowed.
    """
    try:
        entry = pwd.getpwuid(user.uid)
        groups = os.getgrouplist(entry.pw_name, user.gid)
    except KeyError:
        groups = [user.gid]
    keeps = _SCOPE.exists() and _SCOPE.read_text("utf-8").strip() in {"1", "2"}
    libc = ctypes.CDLL(None, use_errno=True)
    if keeps:
        libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
    os.setgroups(groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    if keeps:
        header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
        data = (ctypes.c_uint32 * 6)(*[1 << _SYS_PTRACE] * 3, 0, 0, 0)
        if libc.capset(header, data) or libc.prctl(_AMBIENT, _RAISE, _SYS_PTRACE, 0, 0):
            raise OSError(ctypes.get_errno(), "the right to read processes could not be kept")
    libc.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if os.getresuid() != (user.uid,) * 3 or os.getresgid() != (user.gid,) * 3:
        raise OSError("the rights of root could not be given up")


def as_user(user: User, read: Callable[[], T], kind: type[T]) -> T:
    """Call a function in a child with a user's rights, and return its result.

    Args:
        kind: The type of the result, which travels as JSON.

    Raises:
        MultihostError: The child could not; its answer cannot be read.
    """
    with tempfile.TemporaryFile() as answer:
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
        if not child:
            _read(user, read, answer)
        try:
            os.waitpid(child, 0)
        except KeyboardInterrupt:  # the child has the signal as well
            os.waitpid(child, 0)
            raise
        answer.seek(0)
        data = answer.read(_MAX_ANSWER)
    try:
        with parsing("the answer of the process that has looked at the job"):
            found = from_json(_Answer, parse_foreign(data))
            if not found.error:
                return from_json(kind, found.result)
    except UnreadableError as error:
        raise MultihostError("the job could not be read", seen=str(error)) from error
    happened, seen, remedy = (*found.error, "", "")[:3]
    raise MultihostError(happened, seen=seen, remedy=remedy)


def _read(user: User, read: Callable[[], Any], answer: BinaryIO) -> NoReturn:
    found = _Answer(error=("the job could not be read",))
    try:
        become(user)
        found = _Answer(to_json(read()))
    except MultihostError as error:
        found = _Answer(error=(error.happened, error.seen, error.remedy))
    except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's code
        found = _Answer(error=("the job could not be read", traceback.format_exc()[-2000:], ""))
    finally:
        answer.write(json.dumps(to_json(found)).encode())
        answer.flush()
        os._exit(0)
