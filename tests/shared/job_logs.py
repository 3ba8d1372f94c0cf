"""Lines of torch's watchdog of NCCL, as its versions print them, and what logs say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_multihost.core.blame import Judgement
from pytest_multihost.extensions.logs.command import judge_paths
from pytest_multihost.testing import SourceContext

CONTEXT = SourceContext("/", lambda *_: "")


def judged(*paths: Path) -> Judgement:
    """Return what logs say."""
    return judge_paths(paths, "logs", CONTEXT)


def said(text: str, folder: Path) -> Judgement:
    """Return what a text says as a log."""
    path = folder / "job.log"
    path.write_text(text)
    return judged(path)


def blamed(found: Judgement) -> tuple[str, tuple[int, ...]]:
    """Return the kind of hang and the culprits."""
    if found.diagnosis is None:
        return found.finding.outcome, ()
    return found.diagnosis.kind, found.diagnosis.culprits


def timeout(
    rank: int,
    number: int,
    name: str = "ALLREDUCE",
    sizes: tuple[int, int] = (8, 8),
    inner: int | None = None,
) -> str:
    """Return the line of a rank that has waited for too long."""
    return (
        f"[rank{rank}]:[E909 09:55:29.307 ProcessGroupNCCL.cpp:607]"
        f" [Rank {rank if inner is None else inner}] Watchdog caught"
        f" collective operation timeout: WorkNCCL(SeqNum={number}, OpType={name},"
        f" NumelIn={sizes[0]}, NumelOut={sizes[1]}, Timeout(ms)=600000) ran for 600034"
        " milliseconds before timing out.\n"
    )


def status(rank: int, number: int, launched: int, group: str = "ID 0 PG GUID 0(default_pg)") -> str:
    """Return the line that says how far a rank has come that has waited for too long."""
    return (
        f"[rank{rank}]:[E909 09:55:29.308 ProcessGroupNCCL.cpp:1785] [PG {group} Rank {rank}]"
        "  failure detected by watchdog at work sequence id:"
        f" {number} PG status: last enqueued work: {launched}, last completed work: {number - 1}\n"
    )


def signal(
    rank: int, by: str, launched: int, completed: int | None = None, group: str = "0(default_pg)"
) -> str:
    """Return the line of a rank that dumps because of a timeout, its own or another rank's."""
    return (
        f"[rank{rank}]:[E723 01:58:45.667 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID"
        f" {group} Rank {rank}] Received a dump signal due to a collective timeout from {by}"
        f" and we will try our best to dump the debug info. Last enqueued NCCL work: {launched},"
        f" last completed NCCL work: {launched if completed is None else completed}.This is most"
        " likely caused by incorrect usages of collectives, e.g., wrong sizes used across ranks\n"
    )


def observed(rank: int) -> str:
    """Return the line of a rank that has seen that another one dumps."""
    return (
        f"[rank{rank}]:[E318 03:04:11.562 ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0(default_pg)"
        f" Rank {rank}] Observed flight recorder dump signal from another rank via TCPStore.\n"
    )


def call_stack(rank: int, *frames: str) -> str:
    """Return the stack of the call that has timed out, each frame as "name from file:line"."""
    lines = "".join(f"#{number} {each}\n" for number, each in enumerate(frames))
    where = f"[rank{rank}]:[E606 09:09:08.170 ProcessGroupNCCL.cpp:801]"
    return f"{where} Stack trace of the failed collective: \n{lines}\n"


def traceback(rank: int, error: str, *frames: tuple[str, int, str]) -> str:
    """Return a traceback, outermost frame first."""
    lines = [
        "Traceback (most recent call last):",
        *(f'  File "{file}", line {line}, in {name}' for file, line, name in frames),
        error,
    ]
    return "".join(f"[rank{rank}]: {each}\n" for each in lines)


def failures(root: tuple[int, int], others: Sequence[tuple[int, int]] = ()) -> str:
    """Return torchrun's summary of ranks with their exit codes."""

    def one(number: int, rank: int, code: int) -> str:
        return (
            f"[{number}]:\n  time      : 2026-08-10_03:05:11\n  host      : node2\n"
            f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 260{rank})\n"
            "  error_file: <N/A>\n"
        )

    more = "".join(one(at + 1, *each) for at, each in enumerate(others))
    return (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain FAILED\n"
        f"----\nFailures:\n{more or '  <NO_OTHER_FAILURES>'}\n----\n"
        f"Root Cause (first observed failure):\n{one(0, *root)}====\n"
    )
