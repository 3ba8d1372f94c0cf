"""Lines of torch's watchdog of NCCL, of torch 2.1 to 2.13, and of backends that print the same.

A rank's line says in which collective it waits, and another one how far it has come in the group. A
rank that only got the signal to dump says the same, and waits in nothing. With
TORCH_NCCL_DESYNC_DEBUG a rank prints how far all have come, and with the flight recorder the stack
of the call that timed out.

A line names a rank in up to two ways: its prefix the one in the world, and the text the one in its
group. Without a prefix, only a rank of the default group is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.stack import Frame
from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.readers.reader import Parse, Reader
from pytest_multihost.extensions.logs.said import Counted, ReadStack, Remark, Said, Waited

DEFAULT = "default"
"""The key of the group of all ranks."""

CALL = "flight recorder"
"""The tool of a stack that shows a call, not where a rank stood."""

_WORK = re.compile(
    r"(?:\[Rank (\d{1,7})\][^\[\]]{0,200})?Work\w{1,3}CCL\(SeqNum=(\d{1,18}), OpType=(\w{1,60})"
    r"(?=[,)])(?:, NumelIn=(\d{1,18}), NumelOut=(\d{1,18})(?=[,)]))?"
)
_GROUP = re.compile(
    r"\[PG(?: ID)? (\d{1,9})(?: PG GUID ([^\s(\]]{1,60}))? ?(?:\(([^)\]]{0,60})\))? ?"
    r"Rank (\d{1,7})\]"
)
_LASTS = re.compile(
    r"last enqueued(?: \w{1,3}CCL)? work: (-?\d{1,18})"
    r"(?:, last started(?: \w{1,3}CCL)? work: -?\d{1,18}(?: \(\w{0,60}\))?)?"
    r",? last completed(?: \w{1,3}CCL)? work: (-?\d{1,18})",
    re.IGNORECASE,
)
_SEQUENCES = re.compile(
    r"lastEnqueuedSeq:? ?(-?\d{1,18}).{0,80}?lastCompletedSeq:? ?(-?\d{1,18})", re.IGNORECASE
)
_WORKING = re.compile(r"(?:at(?: \w{1,3}CCL)? work|sequence id): (\d{1,18})", re.IGNORECASE)
_ASKED = re.compile(
    r"Received a (?:global )?(?:dump|timeout)(?! .{0,50}from\s{1,4}this local rank)"
    r"|Observed flight recorder dump signal from another rank|detecting the dump signal",
    re.IGNORECASE,
)
_ASKED_BY = re.compile(r"(?:timeout|signal) from\s{1,4}rank (\d{1,7})", re.IGNORECASE)
_HEARTBEAT = re.compile(
    r"Heartbeat monitor timed out|monitor's heartbeat|watchdog .{0,40}got stuck"
)
_OF_A_MOMENT = "Work update periodically"
_HEADER = re.compile(r"ProcessGroup\w{1,3}CCL\w{0,3}\.cpp:\d")
_CUT = re.compile(
    r"(?:Watchdog caught|operation timeout:)(?!.*Timeout\(ms\)=\d{1,18}\))"
    r"|(?:detected|PG status|Timeout at \w{1,3}CCL)(?!.*completed(?: \w{1,3}CCL)? work: -?\d)"
    r"|\[(?:Rank|PG )[^\]]{0,200}\][^.()]{0,40}$"
)
"""A message whose end is on the next line, as terminals break lines that people copy from them."""

_MOST_CUT = 1500
_STACK = re.compile(r"Stack trace of the failed collective:\s{0,4}$")
_CALL_FRAME = re.compile(r"^#(\d{1,5}) (.{1,200}?) from (.{1,500}):(\d{1,9})$")
_TIMED_OUT_AT = "Timeout at collective: "
_RANKS = r"\[([\d, ]{1,20000})\]"
_BEHIND = re.compile(rf"{_RANKS} finished collective #(\d{{1,18}}), but didn't join")
_NEVER = re.compile(rf"ranks {_RANKS} are the lagging ranks that caused this timeout")
_NUMBER = re.compile(r"^\s{0,9}#(\d{1,18}) (?:started|finished) ranks:")
_STATE = re.compile(rf"^\s{{0,9}}{_RANKS} (started|finished) (\w{{1,60}})$")
_REPORT_LINES = 60
_MOST_FRAMES = 400
_MOST_RANKS = 5000


@dataclass(slots=True)
class _ReaderState:
    """The state that earlier lines have left.

    Attributes:
        cut: A line whose message goes on.
        key: The group in the last line that names a group.
        left: How many more lines a report about all ranks may have.
        number: The collective that the last lines of the report are about.
        stack: The stack of a call that goes on, without its frames.
    """

    cut: Line | None = None
    key: str | None = None
    left: int = 0
    number: int = 0
    stack: ReadStack | None = None
    frames: list[Frame] = field(default_factory=list)


def _key(number: str, guid: str | None, title: str | None) -> str:
    if title == "default_pg" or guid == "0" or (guid is None and not title and number == "0"):
        return DEFAULT
    return f"{'GUID' if guid else 'PG'} {guid or title or number}"


def _read(line: Line, state: _ReaderState) -> Iterator[Said]:
    """Yield the facts in one whole message."""
    text = line.text
    group, key = _GROUP.search(text), None
    own = line.rank if line.is_sure else None
    if group is not None:
        state.key = key = _key(group[1], group[2], group[3])
        if own is None and key == DEFAULT:
            own = int(group[4])
    if work := _WORK.search(text):
        inner = int(work[1]) if work[1] else int(group[4]) if group else None
        yield Waited(
            line.at,
            own,
            work[3],
            inner=inner,
            group=key,
            sequence=int(work[2]),
            sent=int(work[4]) if work[4] else None,
            received=int(work[5]) if work[5] else None,
            order=line.order,
        )
    if own is None or key is None or _OF_A_MOMENT in text:
        return
    lasts, working = _LASTS.search(text) or _SEQUENCES.search(text), _WORKING.search(text)
    is_asked = _ASKED.search(text) is not None
    if lasts is not None or is_asked:
        by = _ASKED_BY.search(text)
        enqueued = int(lasts[1]) if lasts is not None else None
        completed = int(lasts[2]) if lasts is not None else None
        if enqueued is not None and completed is not None and completed > enqueued:
            completed = None  # some versions print a number that was never set
        yield Counted(
            line.at,
            own,
            key,
            enqueued,
            completed,
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


def _report(line: Line, state: _ReaderState) -> Iterator[Said]:
    """Yield the facts in a line of a report about all ranks of a group."""
    text, key = line.text, state.key or DEFAULT
    if number := _NUMBER.match(text):
        state.number = int(number[1])
        return
    behind, never, at = _BEHIND.search(text), _NEVER.search(text), _STATE.match(text)
    found = behind or never or at
    if found is None:
        return
    if key != DEFAULT:
        yield Remark(line.at, f"torch says of {key}: {text.strip(' -')}")
        return
    for rank in [int(each) for each in found[1].split(",") if each.strip().isdigit()][:_MOST_RANKS]:
        if at is not None and at[2] == "started":
            yield Waited(line.at, rank, at[3], rank, key, state.number, order=line.order)
        else:
            last = int(behind[2]) if behind is not None else state.number if at is not None else 0
            yield Counted(line.at, rank, key, last, last)


def _call(line: Line, state: _ReaderState) -> ReadStack | None:
    """Return the stack of a call as far as it has been read, if a line goes on with it."""
    stack, frame = state.stack, _CALL_FRAME.match(line.text.rstrip())
    is_next = frame is not None and int(frame[1]) == len(state.frames) < _MOST_FRAMES
    if stack is None or frame is None or not is_next:
        state.stack = None
        return None
    state.frames.append(Frame(frame[3], int(frame[4]), frame[2]))
    return replace(stack, frames=tuple(state.frames))


def _message(line: Line, state: _ReaderState) -> Iterator[Said]:
    """Yield the facts in a line that may be a message, its start or its rest."""
    is_header = _HEADER.search(line.text) is not None
    if state.cut is not None:
        cut, state.cut = state.cut, None
        if is_header:
            yield from _read(cut, state)
        else:
            line = replace(cut, text=cut.text + line.text)
    if not (is_header or "CCL(" in line.text or _HEADER.search(line.text)):
        return
    if _CUT.search(line.text) and len(line.text) < _MOST_CUT:
        state.cut = line
    else:
        yield from _read(line, state)


def _begins(line: Line, state: _ReaderState) -> None:
    """Note that a report or a stack begins, or that a report has ended."""
    if _TIMED_OUT_AT in line.text:
        state.left = _REPORT_LINES
    elif state.left:
        state.left = 0 if _HEADER.search(line.text) else state.left - 1
    if _STACK.search(line.text) and line.rank is not None and line.is_sure:
        state.frames = []
        state.stack = ReadStack(line.at, line.rank, None, CALL, CALL, is_main=True, frames=())


def _begin() -> Parse:
    state = _ReaderState()

    def parse(line: Line, say: Callable[[Said], None]) -> int:
        for each in _message(line, state):
            say(each)
        if state.stack is not None and (call := _call(line, state)):
            say(call)
        _begins(line, state)
        if state.left or _BEHIND.search(line.text):
            for each in _report(line, state):
                say(each)
        return max(state.left, int(state.stack is not None or state.cut is not None))

    return parse


NCCL_WATCHDOG = Reader("NCCL watchdog", (b"CCL(SeqNum", b"CCL.cpp:"), _begin)
