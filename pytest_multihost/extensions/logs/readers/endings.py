"""How processes have ended, as torchrun, Slurm, the kernel and the shell say it."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pytest_multihost.extensions.logs.lines import Line
from pytest_multihost.extensions.logs.readers.reader import Parse, Reader
from pytest_multihost.extensions.logs.said import Ended, Restarted, Said

_ROOT = re.compile(r"Root Cause \(first observed failure\)")
_OTHERS = re.compile(r"^\s{0,8}(?:Other Failures|Failures):?$")
_RANK = re.compile(r"^\s{0,8}rank\s{0,8}: (\d{1,7})")
_EXIT = re.compile(r"^\s{0,8}exitcode\s{0,8}: (-?\d{1,9})")
_SRUN = re.compile(
    r"srun: error: \S{1,200}: tasks? ([\d,-]{1,2000}): "
    r"(?:Exited with exit code (\d{1,9})|(Killed|Terminated|Out Of Memory|Segmentation fault"
    r"|Aborted|Bus error))",
    re.IGNORECASE,
)
_SLURM = re.compile(
    r"(?:slurmstepd(?:-[\w.-]{1,80})?|srun): error: .{0,200}?"
    r"(CANCELLED AT \S{1,40}(?: DUE TO [A-Z ]{1,40})?|oom.kill event|Detected \d{1,9} oom.kill)",
    re.IGNORECASE,
)
_KERNEL = re.compile(r"Out of memory: Killed process (\d{1,9}) \(([^)]{1,60})\)", re.IGNORECASE)
_SIGNALS = {
    "killed": 9,
    "terminated": 15,
    "out of memory": 9,
    "segmentation fault": 11,
    "aborted": 6,
    "bus error": 7,
}
_RESTART = "will restart worker group"
_FAILED = re.compile(r"\b(\d{1,9}) torch/\S{1,80}\] failed \(exitcode: -?\d{1,9}\) local_rank: ")
_MOST_AGENTS = 5000
_GOES_ON = 12
"""Ranks that print more lines than this behind the failure of one have been started again."""

_WATCHED = 400
_BEHIND = 8
_MOST_RANKS = 512


def _ranks(text: str) -> Iterator[int]:
    """Yield the numbers of a list like "0,3-5", at most some thousands."""
    count = 0
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdigit():
            continue
        for each in range(int(first), int(last if last.isdigit() else first) + 1):
            if count >= _MOST_RANKS:
                return
            count += 1
            yield each


def _one(line: Line) -> Iterator[Said]:
    text = line.text
    if _RESTART in text:
        yield Restarted(line.at)
    if tasks := _SRUN.search(text):
        number = _SIGNALS[tasks[3].lower()] if tasks[3] else None
        why = "out of memory" if tasks[3] and tasks[3].lower() == "out of memory" else ""
        for rank in _ranks(tasks[1]):
            code = int(tasks[2]) if tasks[2] else None
            yield Ended(line.at, rank, "Slurm", code, number, why, order=line.order)
    elif job := _SLURM.search(text):
        why = "out of memory" if "oom" in job[1].lower() else job[1]
        yield Ended(line.at, None, "Slurm", why=why, order=line.order)
    elif victim := _KERNEL.search(text):
        why = f"out of memory: process {victim[1]} ({victim[2]})"
        yield Ended(line.at, None, "the kernel", signal=9, why=why, order=line.order)


@dataclass(slots=True)
class _Restarts:
    """The signs that torchrun has started the ranks again, although it may not say so.

    Attributes:
        failed: By agent, the line that says that a rank has failed.
        last: The last one of them, while it is open whether the ranks go on behind it.
        lines: How many lines ranks have printed behind it.
        left: How many lines behind it are still read.
    """

    failed: dict[str, str] = field(default_factory=dict)
    last: str = ""
    lines: int = 0
    left: int = 0

    def look(self, line: Line) -> Iterator[Said]:
        """Yield that the ranks were started again, if a line shows it."""
        text = line.text
        if found := _FAILED.search(text):
            earlier = self.failed.get(found[1])
            if earlier is not None:
                yield Restarted(line.at, earlier)
            if len(self.failed) < _MOST_AGENTS:
                self.failed[found[1]] = line.at
            self.last, self.lines, self.left = line.at, 0, _WATCHED
        elif "ChildFailedError" in text:
            self.left = 0
        elif self.left:
            self.left -= 1
            is_failure = text.startswith((" ", "Traceback", "[")) or "Error" in text
            self.lines += line.rank is not None and not is_failure
            if self.lines >= _GOES_ON:
                self.left = 0
                yield Restarted(line.at, self.last)


def _begin() -> Parse:
    summary: dict[str, tuple[str, bool, int | None]] = {}
    restarts = _Restarts()

    def parse(line: Line, say: Callable[[Said], None]) -> int:
        for each in (*_one(line), *restarts.look(line)):
            say(each)
        return max(restarts.left, summarised(line, say))

    def summarised(line: Line, say: Callable[[Said], None]) -> int:
        text = line.text
        if _ROOT.search(text):
            summary.clear()
            summary[line.stream] = ("torchrun", True, None)
            return _BEHIND
        if _OTHERS.match(text) or (text.startswith("Failures:") and line.stream not in summary):
            summary.clear()
            summary[line.stream] = ("torchrun", False, None)
            return _BEHIND
        if line.stream not in summary:
            return 0
        by, is_first, known = summary[line.stream]
        if rank := _RANK.match(text):
            summary[line.stream] = (by, is_first, int(rank[1]))
        elif known is not None and (code := _EXIT.match(text)):
            number = int(code[1])
            by_signal = -number if number < 0 and -number < signal.NSIG else None
            plain = number if by_signal is None else None
            say(Ended(line.at, known, by, plain, by_signal, is_first=is_first, order=line.order))
            summary[line.stream] = (by, is_first, None)
        return _BEHIND

    return parse


ENDINGS = Reader(
    "endings",
    (
        b"Root Cause (first observed failure)",
        b"Failures:",
        b"srun: error",
        b"slurmstepd",
        _RESTART.encode(),
        b"failed (exitcode: ",
        b"ut of memory: Killed",
    ),
    _begin,
)
