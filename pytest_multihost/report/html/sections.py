"""The values shown by the sections of an attempt's page; the templates lay them out."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from pytest_multihost.model.operation import group_by_value, group_name, rank_set
from pytest_multihost.model.result import WorldSnapshot
from pytest_multihost.model.stack import (
    Dump,
    Frame,
    group_by_main_stack,
    inside_the_test,
    is_library,
)
from pytest_multihost.model.verdict import Diagnosis, Evidence, Place, RankResult
from pytest_multihost.outcome.faults import firings, frozen_for_good
from pytest_multihost.report.html.page_model import ROLE_ORDER, PageModel, RankGroup
from pytest_multihost.report.logs import LogExcerpt

_MAX_HEADLINE = 240
_MAX_TIMES = 3
_LISTED_FILES = (".log", ".stacks", ".main", ".tasks")


# The header


def headline(page: PageModel) -> str:
    """Return the verdict in one sentence."""
    if page.judged.diagnosis is not None and page.judged.finding.outcome == "hung":
        return page.judged.diagnosis.summary
    reason = page.judged.finding.reason
    return reason if len(reason) <= _MAX_HEADLINE else f"{reason[:_MAX_HEADLINE]}…"


def headline_spans(page: PageModel) -> Iterator[tuple[str, str]]:
    """Yield the headline in pieces with their roles: ``culprit``, ``group`` or nothing."""
    diagnosis = page.judged.diagnosis
    culprits = rank_set(diagnosis.culprits) if diagnosis and diagnosis.culprits else None
    waits = diagnosis.waits_for if diagnosis else ()
    groups = {wait.operation.group for wait in waits if wait.operation is not None}
    size = page.judged.result.spec.size
    quiet = {f"({group_name(group, size, ordinal)})" for group in groups for ordinal in (0, 1)}
    patterns = [re.escape(name) for name in quiet]
    if culprits is not None:  # "rank 1" is neither in "rank 12" nor in "rank 1,2"
        patterns.append(re.escape(culprits) + r"(?![\d,-])")
    for part in (
        re.split(f"({'|'.join(patterns)})", headline(page)) if patterns else [headline(page)]
    ):
        yield part, "culprit" if part == culprits else "group" if part in quiet else ""


def ground(page: PageModel) -> str:
    """Return how the hang was detected, and how long after the world's last progress."""
    diagnosis, reason = page.judged.diagnosis, page.judged.result.reason or ""
    if diagnosis is None:
        return reason
    shown_by = DETECTED_BY[diagnosis.detected_by]
    if diagnosis.detected_by == "deadline" and reason:
        shown_by = reason[0].upper() + reason[1:]
    sentence = f"{shown_by}; judged {diagnosis.detected_after_s:.1f} s after the last progress."
    return sentence if page.judged.finding.outcome == "hung" else f"{diagnosis.summary}. {sentence}"


# What the ranks did


def raised_at(group: RankGroup, page: PageModel) -> Place | None:
    """Return where the error of a group was raised."""
    error = group.error
    if error is None or not error.file or not error.line:
        return None
    return page.place(Frame(error.file, error.line, error.function or ""))


def is_planned(page: PageModel, diagnosis: Diagnosis) -> bool:
    """Whether faults of the test keep the culprits from arriving."""
    frozen = frozen_for_good(page.judged.result.spec.faults, page.judged.result.history).keys()
    killed = {e.facts.rank for e in page.judged.finding.ranks if e.outcome == "killed_as_planned"}
    return bool(diagnosis.culprits) and frozen | killed >= set(diagnosis.culprits)


def notes(page: PageModel) -> list[str]:
    """Return the notes for the reader."""
    found = list(page.judged.diagnosis.notes) if page.judged.diagnosis else []
    return found + [f"left behind and ended: {command}" for command in page.judged.result.leftovers]


def replay_command(page: PageModel) -> str:
    """Return the shell command that runs the test again as it was."""
    command = f"pytest {shlex.quote(page.judged.result.spec.nodeid)}"
    token = page.verdict.replay
    return f"{command} --multihost-replay {token}" if token else command


# Stacks


class StackClass(NamedTuple):
    """Ranks whose main threads have equal stacks.

    Attributes:
        ranks: The members.
        frames: The stack of their main threads.
        dump: The dump of one of them.
        others: The stacks of that rank's other threads, equal ones once, with the threads' names.
    """

    ranks: tuple[int, ...]
    frames: Sequence[Frame]
    dump: Dump
    others: Mapping[Sequence[Frame], Sequence[str]]


def dumps(page: PageModel) -> list[Dump]:
    """Return the dumps of the ranks that were still in the test."""
    return [each for each in page.judged.result.dumps if each.rank not in page.parked]


def stack_classes(page: PageModel) -> list[StackClass]:
    """Return the classes of ranks with equal stacks, the smallest first."""
    by_rank = {dump.rank: dump for dump in dumps(page)}
    return [
        StackClass(group.ranks, group.frames, dump, _other_threads(dump))
        for group in group_by_main_stack(by_rank.values())
        if group.frames
        for dump in [by_rank[group.ranks[0]]]
    ]


def _other_threads(dump: Dump) -> Mapping[Sequence[Frame], Sequence[str]]:
    others = (each for each in dump.threads if each is not dump.main)
    names = ((each.frames, f"{each.name}{' (held the GIL)' * each.current}") for each in others)
    return group_by_value(names)  # a pool has many idle threads


def folded(frames: Sequence[Frame]) -> tuple[Sequence[Frame], list[tuple[bool, list[Frame]]]]:
    """Return the frames that run the test, then those inside it, outermost first.

    The frames inside are grouped into runs of library frames and runs of other frames.
    """
    inside = inside_the_test(frames)
    runs = groupby(reversed(inside), key=lambda frame: is_library(frame.file))
    return frames[len(inside) :][::-1], [(is_lib, list(run)) for is_lib, run in runs]


# Exceptions


def failures(page: PageModel) -> list[tuple[list[int], str, str]]:
    """Return every exception, equal ones once: ranks, title, pytest's representation."""
    errors = (
        (each.error.text, each.facts.rank) for each in page.judged.finding.ranks if each.error
    )
    alike = group_by_value((text, rank) for text, rank in errors if text)
    return [(ranks, _failure_title(text), text) for text, ranks in alike.items()]


def _failure_title(text: str) -> str:
    """Return the line that pytest marks with an E, else the last one."""
    marked = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    lines = marked[:1] or text.strip().splitlines()[-1:]
    return lines[0][:160] if lines else ""


# Evidence


class Claim(NamedTuple):
    """A fact with the ranks that it holds for, and since when."""

    ranks: list[int]
    fact: str
    times: str
    source: str


def claims(diagnosis: Diagnosis) -> list[Claim]:
    """Return the evidence, equal facts once."""
    alike = group_by_value(((each.fact, each.source), each) for each in diagnosis.evidence)
    return [
        Claim([each.rank for each in same], fact, _times(same), source)
        for (fact, source), same in alike.items()
    ]


def _times(evidence: Iterable[Evidence]) -> str:
    times = [f"+{each.at_s:.2f} s" for each in evidence if each.at_s is not None]
    return ", ".join([*times[:_MAX_TIMES], *["…"] * (len(times) > _MAX_TIMES)])


# Rank by rank


def ranks_by_role(page: PageModel) -> list[RankResult]:
    """Return the verdict's ranks, the culprits first, then the waiting ranks."""
    return sorted(page.verdict.rank_results, key=lambda each: ROLE_ORDER[page.role(each.rank)])


def open_operations(rank: int, page: PageModel) -> list[str]:
    """Return the operations in a rank's last snapshot: those that it waits in, if any."""
    seen = page.last_seen.get(rank)
    operations = seen.operations if seen else ()
    waited = [each for each in operations if each.waited_s is not None] or list(operations)
    return [each.describe(page.judged.result.spec.size) for each in waited[:2]]


def exit_words(rank: RankResult) -> str:
    """Return how the process of a rank ended; empty if it did not."""
    if rank.signal is not None:
        try:
            return signal.Signals(rank.signal).name
        except ValueError:  # a real-time signal has no name
            return f"signal {rank.signal}"
    return "" if rank.exit_code is None else f"code {rank.exit_code}"


def snapshot_rows(page: PageModel) -> Mapping[tuple[str, ...], list[int]]:
    """Return the main threads' labels in all snapshots, grouped by ranks with equal labels."""
    snapshots, ranks = page.judged.result.snapshots, range(page.judged.result.spec.size)
    return group_by_value((tuple(_label(each, rank) for each in snapshots), rank) for rank in ranks)


def _label(snapshot: WorldSnapshot, rank: int) -> str:
    seen = next((each for each in snapshot.ranks if each.rank == rank), None)
    if seen is None or seen.label is None:
        return "?"
    moved = " moved" if seen.has_run else ""
    gil = " holds the GIL" if seen.holds_gil else ""
    locks = f" lock of {rank_set(seen.lock_holders)}" if seen.lock_holders else ""
    return f"{seen.label.lower()}{moved}{gil}{locks}"


# Logs, faults, environment, files


def log_groups(page: PageModel) -> tuple[list[tuple[list[int], LogExcerpt]], list[int]]:
    """Return the logs with their ranks, equal ones once, and the ranks that printed nothing."""
    alike = group_by_value(((log.head, log.tail), rank) for rank, log in enumerate(page.logs))
    silent = alike.pop(("", ""), [])
    return [(ranks, page.logs[ranks[0]]) for ranks in alike.values()], silent


def fault_firings(page: PageModel) -> Iterator[tuple[str, str]]:
    """Yield each fault of the test, and when it fired in which rank."""
    for index, fault in enumerate(page.judged.result.spec.faults):
        yield repr(fault), ", ".join(_fired(page, index)) or "never fired"


def _fired(page: PageModel, index: int) -> Iterator[str]:
    for rank, found in firings(page.judged.result, index).items():
        again = f" and {len(found) - 1} times more" if len(found) > 1 else ""
        yield f"rank {rank} at +{found[0] - page.judged.result.started_s:.2f} s{again}"


def rank_files(page: PageModel) -> list[str]:
    """Return the names of the ranks' logs and stacks."""
    return [name for name in page.files if name.endswith(_LISTED_FILES)]


# The fixed texts: what each kind of hang means, and what to do next

DETECTED_BY: Mapping[str, str] = {
    "proof": "Nothing could move before the deadline",
    "mismatch": "Ranks are in operations that can never match",
    "stopped": "A rank is stopped",
    "exit": "A rank died",
    "raise": "A rank raised",
    "deadline": "The test's time was up",
}
"""How a hang was detected."""

MEANINGS: Mapping[str, str] = {
    "straggler": (
        "The others wait for it, and it is in no operation with them: one long wait, "
        "sleep, read or lock of its own."
    ),
    "livelock": "The others wait for it while it computes, or wakes up again and again.",
    "finished": "It returned from the test while others still wait for it.",
    "raised": "Its own exception took it out of the test while others still wait for it.",
    "died": "Its process ended unexpectedly.",
    "stopped": "Something has stopped its process: SIGSTOP, or a debugger.",
    "gil_held": "Native code holds the GIL, so no Python of this rank can run.",
    "mismatch": (
        "At the same position in their group's sequence, ranks are in operations that can "
        "never match."
    ),
    "deadlock": "Ranks wait for each other in a cycle, so none of them can continue.",
    "transport": (
        "All ranks have entered the same operation and nothing moves: the network, or the way "
        "to it."
    ),
    "stuck": "A rank is blocked by itself, and no other rank waits for it.",
    "unknown": "The evidence does not show which rank is waited for.",
}

NEXT_STEPS: Mapping[str, str] = {
    "straggler": (
        "Ask why it does not get past this line; the waiting ranks are where they should be."
    ),
    "livelock": "Ask what this loop waits for, and which rank should provide it.",
    "finished": "Look for a branch, a loop count or an early return that depends on the rank.",
    "raised": "Fix the exception, and ask whether the other ranks should have been told of it.",
    "died": (
        "Read the end of its log below; a signal shows who ended it (SIGKILL: often the "
        "kernel, for memory)."
    ),
    "stopped": "Look for what stops it: a debugger, a job's suspension, a frozen container.",
    "gil_held": "Look for a native call that waits without releasing the GIL.",
    "mismatch": (
        "Compare the branches that led the ranks here: one calls something else, or in "
        "another order."
    ),
    "deadlock": (
        "Compare the order in which the ranks enter these operations; one order for all ends it."
    ),
    "transport": (
        "Look at addresses, interfaces and ports: the ranks agree, the bytes do not arrive."
    ),
    "stuck": "Ask what this line waits for; no other rank takes part in it.",
    "unknown": (
        "Compare where the ranks are below. A custom transport can report its waits with "
        "pytest_multihost.operation()."
    ),
}

PLANNED = (
    "Here one of the test's own faults keeps it away: what is tested is how the other ranks react."
)

FILES: Mapping[str, str] = {
    "verdict.json": "the result, for programs",
    "facts.json": "what the verdict was derived from; multihost explain derives it again",
    "history.jsonl": "every event, in the order of arrival",
    "trace.json": "all operations as tracks, to be opened in ui.perfetto.dev",
}
