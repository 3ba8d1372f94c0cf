"""Lets root look at another user's job with that user's rights only.

The memory of a job, and its mapped files, are made by its user. So a child of root
takes that user's rights before it reads them, and its answer is text. A program that misleads the
reader gets no more than it has: nor root's terminal, in which it could type, nor root's time.

Where only an ancestor may read a process (kernel.yama.ptrace_scope), the child keeps the one
capability to do that, CAP_SYS_PTRACE, for itself and for the readers that it starts.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pwd
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TypeVar

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.foreign_bytes import UnreadableError, parsing
from pytest_multihost.core.model.json_values import Json, from_json, parse_foreign, to_json
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.slots import py_spy_command
from pytest_multihost.core.watch.kernel.proc_files import read_status

_SCOPE = Path("/proc/sys/kernel/yama/ptrace_scope")
_KEEP_CAPABILITIES, _NO_NEW_PRIVILEGES, _AMBIENT, _RAISE = 8, 38, 47, 2
_SYS_PTRACE, _VERSION_3 = 19, 0x20080522
_MAX_ANSWER = 64 << 20
_MAX_LINE = 1 << 16
_LOOK_S, _END_S = 0.02, 5.0

LIMIT_S = 300.0
"""How long a look may take. The job's user may stop the reader, or make it wait for memory."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Texts:
    """The result of a look at a job.

    Attributes:
        page: The page for the terminal; empty if the job has ended.
        html: The page for a browser; empty if it was not asked for.
        is_hung: Whether the job seems to hang.
    """

    page: str = ""
    verdict: str = ""
    html: str = ""
    is_hung: bool = False


@dataclass(frozen=True, slots=True)
class _ChildAnswer:
    """The answer of the child."""

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
    with contextlib.suppress(MultihostError):
        if as_user(user, lambda: all(os.access(each, os.R_OK) for each in needed), bool):
            return ""
    return f"may not read {Path(sys.executable).resolve()}"


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


def as_user(user: User, read: Callable[[], T], kind: type[T], *, limit_s: float = LIMIT_S) -> T:
    """Call a function in a child with a user's rights, and return its result.

    The child's standard error is printed.

    Args:
        kind: The type of the result, which travels as JSON.

    Raises:
        MultihostError: The child could not, or was stopped; its answer cannot be read.
    """
    with tempfile.TemporaryFile() as answer:
        sys.stdout.flush()
        sys.stderr.flush()
        said, saying = os.pipe()
        child = os.fork()
        if not child:
            _read(user, read, answer, saying)
        os.close(saying)
        try:
            _await(child, said, limit_s)
        except BaseException:
            _end(child)
            raise
        finally:
            os.close(said)
        answer.seek(0)
        data = answer.read(_MAX_ANSWER)
    try:
        with parsing("the answer of the process that has looked at the job"):
            found = from_json(_ChildAnswer, parse_foreign(data))
            if not found.error:
                return from_json(kind, found.result)
    except UnreadableError as error:
        raise MultihostError("the job could not be read", seen=str(error)) from error
    happened, seen, remedy = (*found.error, "", "")[:3]
    raise MultihostError(happened, seen=seen, remedy=remedy)


def _await(child: int, said: int, limit_s: float) -> None:
    """Print the lines of a child until it ends.

    Raises:
        MultihostError: Another process has stopped it, or it takes too long.
    """
    until_s = time.monotonic() + limit_s
    text = b""
    while True:
        changed, status = os.waitpid(child, os.WNOHANG | os.WUNTRACED)
        text = _print_lines(said, text)
        if changed and not os.WIFSTOPPED(status):
            return
        if changed or time.monotonic() > until_s:
            why = "was stopped by another process" if changed else f"took over {limit_s:g} s"
            raise MultihostError("the job could not be read", seen=f"Its reader {why}.")


def _print_lines(said: int, text: bytes) -> bytes:
    """Print the lines that a child has written, waiting a moment for one; return the last part.

    Args:
        text: The earlier part of a line.
    """
    is_there = select.select([said], [], [], _LOOK_S)[0]
    part = os.read(said, _MAX_LINE) if is_there else b""
    if is_there and not part:  # it has closed the pipe
        time.sleep(_LOOK_S)
    *lines, text = (text + part).split(b"\n")
    for line in lines:
        sys.stderr.write(f"{printable(line.decode(errors='replace'))}\n")
    return text[:_MAX_LINE]


def _end(child: int) -> None:
    """End a child, if it runs or is stopped: first as Ctrl-C does, so that its own children end."""
    for number in (signal.SIGCONT, signal.SIGINT):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)
    until_s = time.monotonic() + _END_S
    with contextlib.suppress(ChildProcessError):
        while not os.waitpid(child, os.WNOHANG)[0]:
            if time.monotonic() > until_s:
                os.kill(child, signal.SIGKILL)
            time.sleep(_LOOK_S)


def _read(user: User, read: Callable[[], Any], answer: BinaryIO, saying: int) -> NoReturn:
    found = _ChildAnswer(error=("the job could not be read",))
    try:
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor, instead in enumerate((nothing, nothing, saying)):
            os.dup2(instead, descriptor)
        become(user)
        found = _ChildAnswer(to_json(read()))
    except MultihostError as error:
        found = _ChildAnswer(error=(error.happened, error.seen, error.remedy))
    except BaseException:  # noqa: BLE001 - a forked child must never return into its parent's code
        found = _ChildAnswer(
            error=("the job could not be read", traceback.format_exc()[-2000:], "")
        )
    finally:
        answer.write(json.dumps(to_json(found)).encode())
        answer.flush()
        os._exit(0)
