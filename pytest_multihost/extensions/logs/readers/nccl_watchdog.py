"""Lines of torch's watchdog of NCCL, of torch 2.1 to 2.13.

A rank's line says in which collective it waits, and another one how far it has come in the group. A
rank that only got the signal to dump says the same, and waits in nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.readers.reader import of_single_lines
from pytest_multihost.extensions.logs.said import Counted, Remark, Said, Waited

DEFAULT = "default"
"""The key of the group of all ranks."""

_WORK = re.compile(
    r"(?:\[Rank (\d{1,7})\][^\[\]]{0,200})?WorkNCCL\(SeqNum=(\d{1,18}), OpType=(\w{1,60})"
    r"(?:, NumelIn=(\d{1,18}), NumelOut=(\d{1,18}))?"
)
_GROUP = re.compile(
    r"\[PG(?: ID)? (\d{1,9})(?: PG GUID ([^\s(\]]{1,60}))? ?(?:\(([^)\]]{0,60})\))? ?"
    r"Rank (\d{1,7})\]"
)
_LASTS = re.compile(
    r"last enqueued(?: NCCL)? work: (-?\d{1,18})(?:, last started(?: NCCL)? work: -?\d{1,18})?"
    r",? last completed(?: NCCL)? work: (-?\d{1,18})",
    re.IGNORECASE,
)
_SEQUENCES = re.compile(
    r"lastEnqueuedSeq:? ?(-?\d{1,18}).{0,80}?lastCompletedSeq:? ?(-?\d{1,18})", re.IGNORECASE
)
_WORKING = re.compile(r"(?:at(?: NCCL)? work|sequence id): (\d{1,18})", re.IGNORECASE)
_ASKED = re.compile(
    r"Received a dump signal|Observed flight recorder dump signal from another rank", re.IGNORECASE
)
_ASKED_BY = re.compile(r"timeout from\s{1,4}rank (\d{1,7})", re.IGNORECASE)
_HEARTBEAT = re.compile(
    r"Heartbeat monitor timed out|monitor's heartbeat|watchdog .{0,40}got stuck"
)


def _key(number: str, guid: str | None, title: str | None) -> str:
    if title == "default_pg" or guid == "0" or (guid is None and not title and number == "0"):
        return DEFAULT
    return f"{'GUID' if guid else 'PG'} {guid or title or number}"


def _read(line: Line) -> Iterator[Said]:
    text = line.text
    group, key = _GROUP.search(text), None
    own = line.rank if line.is_sure else None
    if group is not None:
        key = _key(group[1], group[2], group[3])
        own = own if own is not None else int(group[4])
    if work := _WORK.search(text):
        inner = int(work[1]) if work[1] else int(group[4]) if group else None
        yield Waited(
            line.at,
            own if own is not None else inner,
            work[3],
            inner=inner,
            group=key,
            sequence=int(work[2]),
            sent=int(work[4]) if work[4] else None,
            received=int(work[5]) if work[5] else None,
        )
    if own is None or key is None:
        return
    lasts, working = _LASTS.search(text) or _SEQUENCES.search(text), _WORKING.search(text)
    is_asked = _ASKED.search(text) is not None
    if lasts is not None or is_asked:
        by = _ASKED_BY.search(text)
        yield Counted(
            line.at,
            own,
            key,
            int(lasts[1]) if lasts is not None else None,
            int(lasts[2]) if lasts is not None else None,
            int(working[1]) if working is not None else None,
            int(by[1]) if by is not None else None,
            is_asked,
        )
    elif _HEARTBEAT.search(text):
        yield Remark(
            line.at,
            f"rank {own}'s watchdog thread itself stood still: native code holds the GIL or a CUDA"
            " call does not return",
        )


NCCL_WATCHDOG = of_single_lines(
    "NCCL watchdog", (b"WorkNCCL(", b"ProcessGroupNCCL.cpp", b"last enqueued"), _read
)
