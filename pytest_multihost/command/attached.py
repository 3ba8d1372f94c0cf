"""A running job, looked at from outside."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pytest_multihost.blame import Judgement
from pytest_multihost.command.judged_page import page_of
from pytest_multihost.live import (
    PATIENCE_S,
    Job,
    Worlds,
    check_rights,
    choose,
    follow,
    judge_job,
)
from pytest_multihost.model.json_values import to_json
from pytest_multihost.model.operation import rank_numbers
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.model.verdict import Verdict
from pytest_multihost.report.artifacts import Attempt, build_verdict
from pytest_multihost.report.html import PageModel, write_page

HELP = "say which rank of a running job is waited for; reads, and disturbs nothing"
_MAX_COMMAND = 100


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `multihost attach`."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "processes",
        nargs="*",
        default=[],
        metavar="PID",
        help="a rank's process; RANK=PID if it does not say; none: list the jobs of this machine",
    )
    which.add_argument("--match", metavar="TEXT", help="the job with this in its command line")
    which.add_argument(
        "--children-of", type=int, metavar="PID", help="the job that this torchrun or mpirun runs"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--once", action="store_true", help="look once: the default")
    how.add_argument("--follow", action="store_true", help="look until the job stops moving")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        metavar="SECONDS",
        help="with --follow: a rank that is waited for so long hangs, whatever it does",
    )
    parser.add_argument(
        "--native",
        action="store_true",
        help="read native frames, too: stops each thread for a moment, with ptrace",
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict; -: print nothing else")
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page for a browser")


def attach(options: argparse.Namespace) -> int:
    """Print what a job's ranks do, and which one is waited for; return 0 if it seems to hang.

    Args:
        options: Those of the command line.

    Raises:
        MultihostError: A process cannot be read, or it is not clear which job is meant.
        OSError: A file cannot be written.
    """
    found = choose(options.processes, match=options.match, below=options.children_of)
    job = _asked(found) if isinstance(found, Worlds) else found
    if job is None:
        return 1
    for pid in job.pids.values():
        check_rights(pid)
    title = f"processes {' '.join(map(str, job.pids.values()))}"
    judge = partial(
        judge_job, job, title, SourceContext(str(Path.cwd())), reads_native=options.native
    )
    try:
        judged = (
            follow(job, judge, _say, patience_s=options.patience) if options.follow else judge()
        )
    except KeyboardInterrupt:
        return 1
    if judged is None:
        _say("the job has ended")
        return 1
    _write(judged, title, options)
    return int(judged.diagnosis is None or judged.finding.outcome != "hung")


def _say(line: str) -> None:
    sys.stderr.write(f"{datetime.now().astimezone():%H:%M:%S}  {line}\n")


def _write(judged: Judgement, title: str, options: argparse.Namespace) -> None:
    """Print the page or the verdict, and write the files that were asked for."""
    now = datetime.now(tz=UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    verdict = build_verdict(judged, Attempt(f"{now}-{os.getpid()}", "", None, {}))
    text = f"{json.dumps(to_json(verdict), indent=2)}\n"
    sys.stdout.write(text if options.json == "-" else f"{page_of(judged, title)}\n")
    if options.json not in {None, "-"}:
        Path(options.json).write_text(text, encoding="utf-8")
    if options.html is not None:
        _write_html(judged, verdict, options.html)


def _write_html(judged: Judgement, verdict: Verdict, file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="multihost-") as scratch:
        shutil.copyfile(write_page(Path(scratch), PageModel(judged=judged, verdict=verdict)), file)


# Which job


def _asked(worlds: Worlds) -> Job | None:
    """Print the jobs of this machine; return that which the user chooses, if one can be asked."""
    sys.stdout.write("\n".join(_listed(worlds)) + "\n")
    if not (worlds.found and sys.stdin.isatty() and sys.stdout.isatty()):
        return None
    try:
        number = int(input(f"Which one? [1-{len(worlds.found)}] "))
    except (ValueError, EOFError):
        return None
    return worlds.found[number - 1].job if 0 < number <= len(worlds.found) else None


def _listed(worlds: Worlds) -> Iterator[str]:
    """Yield the jobs of this machine, and how to attach to each."""
    count = len(worlds.found)
    yield f"{count or 'no'} job{'' if count == 1 else 's'} with ranks on this machine"
    for number, each in enumerate(worlds.found, 1):
        job, ranks = each.job, rank_numbers(each.job.pids)
        here = "" if len(job.pids) == job.size else f", of which {ranks} are here"
        age = f"started {each.age_s / 60:.0f} min ago"
        yield f"{number:3}  {job.size} ranks, {job.launcher}{here}, {age}"
        yield f"     {each.command[:_MAX_COMMAND]}"
        pids = " ".join(map(str, job.pids.values()))
        is_alone = sum(each.parent == other.parent for other in worlds.found) == 1
        how = f"--children-of {each.parent}" if each.parent and is_alone else pids
        yield f"     multihost attach {how}"
    if worlds.unreadable:
        yield (
            f"{worlds.unreadable} processes of other users could not be read:"
            f" sudo {shlex.quote(str(Path(sys.argv[0]).resolve()))} attach"
        )
    if not worlds.found:
        yield "Processes that do not say their rank: multihost attach 0=PID 1=PID ..."
