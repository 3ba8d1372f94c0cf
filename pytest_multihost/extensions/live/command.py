"""Runs ``multihost attach``: reads the job, judges it, prints the page and writes the files.

For a job on several machines, ``multihost attach`` runs on each of them. Rank 0's process prints
the result; the others read the ranks of their machine for it. Modules that only this needs are
imported in the functions, because they would slow down the usual case of one machine.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

from pytest_multihost.core import files
from pytest_multihost.core.command.world_page import Screen, this_screen
from pytest_multihost.core.files import artifacts_folder
from pytest_multihost.core.model.errors import LaunchError, MultihostError
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.rank_names import rank_numbers
from pytest_multihost.core.model.source import files_below
from pytest_multihost.core.model.stack import SourceContext, context_of
from pytest_multihost.extensions.live.as_user import (
    LIMIT_S,
    Texts,
    User,
    as_user,
    user_of,
    why_not,
)
from pytest_multihost.extensions.live.machine import LocalWorlds, choose
from pytest_multihost.extensions.live.processes import (
    Job,
    is_own,
    owner_of,
    this_program,
    user_name,
)
from pytest_multihost.extensions.live.reader import JobReader, LocalReader
from pytest_multihost.extensions.live.seen_world import follow, judge_job
from pytest_multihost.extensions.live.shown import texts_of
from pytest_multihost.extensions.live.user_reader import UserReader

if TYPE_CHECKING:
    from pytest_multihost.core.launch.meeting import Companion, Meeting
    from pytest_multihost.extensions.live.joined import Machine

_MAX_COMMAND = 100
_COLOUR = re.compile(r"(\x1b\[[\d;]{0,16}m)", re.ASCII)
_RANK = "PYTEST_MULTIHOST_RANK"


def attach(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    """Print the state of a job's ranks and the culprit; return 0 if the job seems to hang.

    A command that names no job lists those of this machine, and returns 0.

    Raises:
        MultihostError: A process cannot be read, or it is not clear which job is meant.
        OSError: A file cannot be written.
    """
    if options.join or _RANK in os.environ:
        return _attach_together(options, hook)
    found = choose(options.processes, match=options.match, below=options.children_of)
    job = _asked(found) if isinstance(found, LocalWorlds) else found
    if job is None:
        is_list = not (options.processes or options.match or options.children_of)
        return 0 if is_list else 1
    context = _context(job, options)
    return _show(job, LocalReader(job, context), context, options, _user(job))


def _user(job: Job) -> User | None:
    """Return the user with whose rights root looks at a job; None: with its own."""
    user = user_of(job.pids.values())
    if user is not None and (why := why_not(user)):
        _say(f"reads this job with root's rights: {user_name(user.uid)} {why}")
        return None
    return user


def _reader(job: Job, options: argparse.Namespace) -> JobReader:
    """Return the reader of a job that several machines read together."""
    reader, user = LocalReader(job, _context(job, options)), _user(job)
    return reader if user is None else UserReader(reader, user)


def _context(job: Job, options: argparse.Namespace) -> SourceContext:
    """Return a reader of source lines for a job: of another user's, only below the named folders.

    A frame may name any file, and root could read it. A process of one's own may name Python's
    files anywhere.
    """
    suffix = ".py" if all(map(is_own, job.pids.values())) else ""
    return context_of(str(Path.cwd()), files_below(options.source_root, suffix))


def _attach_together(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    """Judge a job together with the processes on other machines; return the exit code."""
    folder = artifacts_folder().absolute()
    meeting: Meeting | None = hook.pytest_multihost_meeting(folder=folder)
    if meeting is None:
        raise MultihostError(
            "no plugin can look at a job on several machines",
            remedy="Look at the ranks of each machine separately: multihost attach",
        )
    found = found_here(
        lambda: choose(options.processes, match=options.match, below=options.children_of),
        lambda job: _reader(job, options),
    )
    context = context_of(str(Path.cwd()), files_below(options.source_root))
    return look_together(meeting, found, lambda job, reader: _show(job, reader, context, options))


def _show(
    job: Job,
    reader: JobReader,
    context: SourceContext,
    options: argparse.Namespace,
    user: User | None = None,
) -> int:
    """Print the state of a job's ranks; return the exit code.

    Args:
        user: Whose rights the process that reads them takes; None: none but its own.
    """
    # A reader of other rights does not get this process's terminal.
    look = partial(_look, job, reader, context, options, this_screen())
    limit_s = math.inf if options.follow else LIMIT_S
    try:
        found = look() if user is None else as_user(user, look, Texts, limit_s=limit_s)
    except KeyboardInterrupt:
        return 1
    if not found.page:
        _say("the job has ended")
        return 1
    _write(found, options)
    return int(not found.is_hung)


def _look(
    job: Job,
    reader: JobReader,
    context: SourceContext,
    options: argparse.Namespace,
    screen: Screen,
) -> Texts:
    """Read and judge a job; return its output."""
    judge = partial(judge_job, job, reader, context, reads_native=options.native)
    judged = (
        follow(reader, judge, _say, patience_s=options.patience)
        if options.follow
        else judge().judged
    )
    if judged is None:
        return Texts()
    return texts_of(
        job,
        judged,
        screen=screen,
        shows_native=options.native,
        has_html=options.html is not None,
    )


def _say(line: str) -> None:
    sys.stderr.write(f"{datetime.now().astimezone():%H:%M:%S}  {printable(line)}\n")


def _write(found: Texts, options: argparse.Namespace) -> None:
    """Print the page or the verdict, and write the files that the user asked for."""
    text = found.verdict if options.json == "-" else f"{found.page}\n"
    sys.stdout.write("\n".join(map(_printable, text.split("\n"))))
    if options.json not in {None, "-"}:
        files.write_named(Path(options.json), found.verdict)
    if options.html is not None:
        files.write_named(options.html, found.html)


def _printable(line: str) -> str:
    """Return a line that may be printed, in its colours."""
    return "".join(e if _COLOUR.fullmatch(e) else printable(e) for e in _COLOUR.split(line))


def _asked(worlds: LocalWorlds) -> Job | None:
    """Print the jobs of this machine; on a terminal, return the user's choice."""
    sys.stdout.write("\n".join(_listed(worlds)) + "\n")
    if not (worlds.found and sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    try:
        number = int(input(f"Which one? [1-{len(worlds.found)}] "))
    except (ValueError, EOFError):
        return None
    return worlds.found[number - 1].job if 0 < number <= len(worlds.found) else None


def _listed(worlds: LocalWorlds) -> Iterator[str]:
    """Yield the jobs of this machine, and how to attach to each."""
    count = len(worlds.found)
    yield f"{count or 'no'} job{'' if count == 1 else 's'} with ranks on this machine"
    for number, each in enumerate(worlds.found, 1):
        job, ranks = each.job, rank_numbers(each.job.pids)
        here = "" if len(job.pids) == job.size else f", of which {ranks} are here"
        age = f"started {each.age_s / 60:.0f} min ago"
        owner = owner_of(next(iter(job.pids.values())))
        whose = "" if owner == os.geteuid() else f", of {user_name(owner)}"
        size = f"{job.size} rank{'' if job.size == 1 else 's'}"
        yield f"{number:3}  {size}, {job.launcher}{here}{whose}, {age}"
        yield f"     {printable(each.command[:_MAX_COMMAND])}"
        pids = " ".join(map(str, job.pids.values()))
        is_alone = sum(each.parent == other.parent for other in worlds.found) == 1
        how = f"--children-of {each.parent}" if each.parent and is_alone else pids
        yield f"     multihost attach {how}"
    if worlds.unreadable:
        yield (
            f"{worlds.unreadable} processes of other users could not be read:"
            f" sudo {shlex.join(this_program())} attach"
        )
    if not worlds.found:
        yield "Processes that do not say their rank: multihost attach 0=PID 1=PID ..."


JOIN_S = 60.0
"""How long the processes wait for each other."""

_FAILED = 1
_REMEDY = (
    "Run the same command on every machine. Each process needs a number of its own, and must reach"
    " rank 0's."
)

Show = Callable[[Job, JobReader], int]


@dataclass(frozen=True, slots=True)
class FoundJob:
    """The part of the job on this machine.

    Attributes:
        reader: Reads the ranks; None if they may not be read.
        problem: Why they may not be read.
    """

    machine: Machine
    reader: JobReader | None
    problem: str = ""


def found_here(
    choose: Callable[[], Job | LocalWorlds], read: Callable[[Job], JobReader]
) -> FoundJob:
    """Return the part of the job on this machine.

    Args:
        choose: Returns the job, or the jobs of this machine if it is not clear which one.
        read: Returns a reader of the job's ranks.
    """
    from pytest_multihost.extensions.live.joined import this_machine

    job, why, problem, reader = None, "", "", None
    try:
        chosen = choose()
        job = chosen if isinstance(chosen, Job) else _only(chosen)
        why = "" if job is not None else "no process there says which rank of a job it is"
    except MultihostError as error:
        why = error.happened
    try:
        reader = read(job or Job({}, 0, ""))
    except MultihostError as error:
        problem = str(error)
    return FoundJob(this_machine(job, why), reader, problem)


def _only(worlds: LocalWorlds) -> Job | None:
    """Return the only job of a machine; None if it has none.

    Raises:
        MultihostError: It has several.
    """
    if len(worlds.found) > 1:
        raise MultihostError(f"{len(worlds.found)} jobs have ranks there: say which one")
    return worlds.found[0].job if worlds.found else None


def look_together(meeting: Meeting, found: FoundJob, show: Show) -> int:
    """Read a job together with the processes on other machines; return the exit code.

    Args:
        meeting: How the processes find each other.
        show: Judges and prints the job in rank 0's process, and returns the exit code.

    Raises:
        MultihostError: The processes did not find each other, a rank may not be read, or the ranks
            are not those of one job.
    """
    if meeting.membership.rank:
        return _look_for_first(meeting, found)
    code = _FAILED
    try:
        companions = meeting.await_companions(JOIN_S, remedy=_REMEDY)
        if found.problem:
            raise LaunchError("the ranks here cannot be read", seen=found.problem)
        code = show(*_joined(found, companions))
    finally:
        meeting.part(code)
    return code


def _joined(found: FoundJob, companions: Sequence[Companion]) -> tuple[Job, JobReader]:
    """Return the job of all machines, and its reader."""
    from pytest_multihost.extensions.live.joined import JoinedReader, joined_job, machine_of

    machines, readers = [found.machine], []
    for each in companions:
        machine = machine_of(each)
        if not any(machine.is_seen_by(other) for other in machines):
            machines.append(machine)
            if machine.job is not None:
                readers.append(each)
    assert found.reader is not None  # noqa: S101 - else there was a problem
    return joined_job(machines), JoinedReader(found.reader, readers)


def _look_for_first(meeting: Meeting, found: FoundJob) -> int:
    """Read the ranks of this machine for rank 0's process; return its exit code."""
    from pytest_multihost.extensions.live.joined import answer

    return meeting.answer(
        partial(answer, machine=found.machine, reader=found.reader),
        JOIN_S,
        problems=(found.problem,) if found.problem else (),
    )
