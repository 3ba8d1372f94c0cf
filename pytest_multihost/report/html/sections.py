"""The values that the sections of an attempt's page show; the templates lay them out."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from pytest_multihost.model.diagnosis import Diagnosis, Evidence, Place
from pytest_multihost.model.rank_set import rank_set
from pytest_multihost.model.snapshot import WorldSnapshot
from pytest_multihost.model.stack import Dump, Frame, NativeThread, ThreadStack, group_by_main_stack
from pytest_multihost.model.user_code import inside_the_test, is_library
from pytest_multihost.model.verdict import RankResult
from pytest_multihost.outcome.faults import firings, frozen_for_good
from pytest_multihost.report.html.explanations import DETECTED_BY
from pytest_multihost.report.html.page_model import ROLE_ORDER, LogExcerpt, PageModel, RankGroup

_MAX_HEADLINE = 240
_MAX_TIMES = 3
_MAX_STACK_CLASSES = 16
_MAX_THREADS = 24
_LISTED_FILES = (".log", ".stacks", ".main", ".tasks")


# The header


def headline(page: PageModel) -> str:
    """Return the verdict in one sentence."""
    if page.diagnosis is not None and page.finding.outcome == "hung":
        return page.diagnosis.summary
    reason = page.finding.reason
    return reason if len(reason) <= _MAX_HEADLINE else f"{reason[:_MAX_HEADLINE]}…"


def headline_spans(page: PageModel) -> Iterator[tuple[str, str]]:
    """Yield the headline in pieces with their roles: ``culprit``, ``group`` or nothing."""
    diagnosis = page.diagnosis
    who = rank_set(diagnosis.culprits) if diagnosis and diagnosis.culprits else None
    # "rank 1" must not be found in "rank 12" or "ranks 1-3".
    patterns = [re.escape(who) + r"(?![\d,-])"] if who else []
    for part in re.split(
        "(" + "|".join([*patterns, r"\((?:world )?group[^)]*\)"]) + ")", headline(page)
    ):
        is_group = part.startswith(("(world group", "(group"))
        yield part, "culprit" if part == who else "group" if is_group else ""


def ground(page: PageModel) -> str:
    """Return what showed that the world hangs, and how long after its last progress."""
    diagnosis, reason = page.diagnosis, page.result.reason or ""
    if diagnosis is None:
        return reason
    shown_by = DETECTED_BY[diagnosis.detected_by]
    if diagnosis.detected_by == "deadline" and reason:
        shown_by = reason[0].upper() + reason[1:]
    sentence = f"{shown_by}; told {diagnosis.detected_after_s:.1f} s after the last progress."
    return sentence if page.finding.outcome == "hung" else f"{diagnosis.summary}. {sentence}"


def world_facts(page: PageModel) -> list[str]:
    """Return size, backend, start and number of the attempt."""
    spec = page.result.spec
    started = page.result.started_at.replace("T", " ").replace("Z", " UTC")
    attempt = [f"attempt {spec.attempt}"] if spec.attempt > 1 else []
    return [f"{spec.size} rank{'s' if spec.size > 1 else ''}", spec.backend, started, *attempt]


# Who did what


def raised_at(group: RankGroup, page: PageModel) -> Place | None:
    """Return where the error of a group was raised."""
    error = group.error
    if error is None or not error.file or not error.line:
        return None
    return page.place(Frame(error.file, error.line, error.function or ""))


def is_planned(page: PageModel, diagnosis: Diagnosis) -> bool:
    """Whether it is faults of the test's own that keep the culprits away."""
    frozen = frozen_for_good(page.result.spec.faults, page.result.history).keys()
    killed = {e.facts.rank for e in page.finding.ranks if e.outcome == "killed_as_planned"}
    return bool(diagnosis.culprits) and frozen | killed >= set(diagnosis.culprits)


def notes(page: PageModel) -> list[str]:
    """Return what else the reader should know."""
    found = list(page.diagnosis.notes) if page.diagnosis else []
    return found + [f"left behind and ended: {command}" for command in page.result.leftovers]


def replay_command(page: PageModel) -> str:
    """Return the shell command that runs the test again as it was."""
    command = f"pytest {shlex.quote(page.result.spec.nodeid)}"
    token = page.verdict.replay
    return f"{command} --multihost-replay {token}" if token else command


def legend(page: PageModel) -> Iterator[tuple[str, str]]:
    """Yield the sorts of marks on the timeline that this world has, with their names."""
    diagnosis = page.diagnosis
    yield "done", "operation"
    yield "open", "waiting in one"
    if diagnosis is not None and (diagnosis.culprits or diagnosis.cycle):
        yield "late", "the culprit" if diagnosis.culprits else "in the circle"
    if page.result.spec.faults:
        yield "fault", "fault"
    if page.result.detected_s is not None:
        yield "moment", "last progress, verdict"


# Stacks


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack, outermost frame first.

    Attributes:
        outside: Frames of what runs the test; folded on the page.
        runs: The frames inside the test in runs that are, or are not, of libraries.
    """

    outside: list[Frame]
    runs: list[tuple[bool, list[Frame]]]


@dataclass(frozen=True, slots=True)
class StackClass:
    """Ranks whose main threads have equal stacks.

    Attributes:
        ranks: The members.
        example: The rank whose other threads are shown.
        main: The stack of the main thread.
        length: Number of its frames.
        native: Native frames of the example, where they were read.
        others: Number of the example's other threads.
        other_stacks: Their stacks, equal ones once, each with the threads' names.
        left_out: Number of those stacks that are too many to be shown.
    """

    ranks: tuple[int, ...]
    example: int
    main: Stack
    length: int
    native: Sequence[NativeThread]
    others: int
    other_stacks: Sequence[tuple[Sequence[str], Stack]]
    left_out: int


def dumps(page: PageModel) -> list[Dump]:
    """Return the dumps of the ranks that were still in the test."""
    return [each for each in page.result.dumps if each.rank not in page.parked]


def stack_classes(page: PageModel) -> tuple[list[StackClass], int]:
    """Return the classes of ranks with equal stacks, and the number of those left out."""
    shown = dumps(page)
    by_rank = {dump.rank: dump for dump in shown}
    groups = [group for group in group_by_main_stack(shown) if group.frames]
    classes = [
        _stack_class(group.ranks, by_rank[group.ranks[0]], group.frames, page)
        for group in groups[:_MAX_STACK_CLASSES]
    ]
    return classes, len(groups) - len(classes)


def _stack_class(
    ranks: tuple[int, ...], dump: Dump, frames: Sequence[Frame], page: PageModel
) -> StackClass:
    others = [thread for thread in dump.threads if thread is not dump.main]
    alike: dict[tuple[Frame, ...], list[ThreadStack]] = {}  # a pool has many threads that wait
    for each in others:
        alike.setdefault(each.frames, []).append(each)
    shown = list(alike.items())[:_MAX_THREADS]
    seen = page.last_seen.get(dump.rank)
    return StackClass(
        ranks=ranks,
        example=dump.rank,
        main=_stack(frames),
        length=len(frames),
        native=seen.native if seen is not None else (),
        others=len(others),
        other_stacks=[(_thread_names(threads), _stack(same)) for same, threads in shown],
        left_out=len(alike) - len(shown),
    )


def _thread_names(threads: Iterable[ThreadStack]) -> list[str]:
    return [f"{each.name}{' (held the GIL)' * each.current}" for each in threads]


def _stack(frames: Sequence[Frame]) -> Stack:
    inside = inside_the_test(frames)
    runs = groupby(reversed(inside), key=lambda frame: is_library(frame.file))
    return Stack(
        outside=list(reversed(frames[len(inside) :])),
        runs=[(is_lib, list(run)) for is_lib, run in runs],
    )


# Exceptions


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as pytest represents it, with the ranks that raised it."""

    ranks: list[int]
    title: str
    text: str


def failures(page: PageModel) -> list[Failure]:
    """Return every exception, those with equal representations once."""
    alike: dict[str, list[int]] = {}
    for each in page.finding.ranks:
        if each.error is not None and each.error.text:
            alike.setdefault(each.error.text, []).append(each.facts.rank)
    return [Failure(ranks, _failure_title(text), text) for text, ranks in alike.items()]


def _failure_title(text: str) -> str:
    """Return the line that pytest marks with an E, else the last one."""
    marked = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    lines = marked[:1] or text.strip().splitlines()[-1:]
    return lines[0][:160] if lines else ""


# Evidence


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim with the ranks that it holds for, and when it began to hold."""

    ranks: list[int]
    text: str
    times: str
    source: str


def claims(diagnosis: Diagnosis) -> list[Claim]:
    """Return the evidence, equal claims once."""
    alike: dict[tuple[str, str], list[Evidence]] = {}
    for each in diagnosis.evidence:
        alike.setdefault((each.fact, each.source), []).append(each)
    return [
        Claim([each.rank for each in same], fact, _times(same), source)
        for (fact, source), same in alike.items()
    ]


def _times(evidence: Iterable[Evidence]) -> str:
    times = [f"+{each.at_s:.2f} s" for each in evidence if each.at_s is not None]
    return ", ".join([*times[:_MAX_TIMES], *["…"] * (len(times) > _MAX_TIMES)])


# Rank by rank


def ranks_by_role(page: PageModel) -> list[RankResult]:
    """Return the verdict's ranks, the culprits first, then who waits."""
    return sorted(page.verdict.rank_results, key=lambda each: ROLE_ORDER[page.role(each.rank)])


def open_operations(rank: int, page: PageModel) -> list[str]:
    """Return the operations in which a rank was seen last: those that it waits in, if any."""
    seen = page.last_seen.get(rank)
    operations = seen.operations if seen else ()
    waited = [each for each in operations if each.waited_s is not None] or list(operations)
    return [each.describe(page.result.spec.size) for each in waited[:2]]


def exit_words(rank: RankResult) -> str:
    """Return how the process of a rank ended; nothing if it did not."""
    if rank.signal is not None:
        try:
            return signal.Signals(rank.signal).name
        except ValueError:  # a real-time signal has no name
            return f"signal {rank.signal}"
    return "" if rank.exit_code is None else f"code {rank.exit_code}"


def snapshot_rows(page: PageModel) -> Mapping[tuple[str, ...], list[int]]:
    """Return the main threads' labels in all snapshots, with the ranks that have the same."""
    rows: dict[tuple[str, ...], list[int]] = {}
    for rank in range(page.result.spec.size):
        labels = tuple(_label(snapshot, rank) for snapshot in page.result.snapshots)
        rows.setdefault(labels, []).append(rank)
    return rows


def _label(snapshot: WorldSnapshot, rank: int) -> str:
    seen = next((each for each in snapshot.ranks if each.rank == rank), None)
    if seen is None or seen.label is None:
        return "?"
    moved = " moved" if seen.has_run else ""
    gil = " holds the GIL" if seen.holds_gil else ""
    locks = f" lock of {rank_set(seen.lock_holders)}" if seen.lock_holders else ""
    return f"{seen.label.lower()}{moved}{gil}{locks}"


# Logs, faults, environment, files


def log_groups(page: PageModel) -> tuple[list[tuple[list[int], LogExcerpt, bool]], list[int]]:
    """Return the logs that are not empty, equal ones once, and the ranks that printed nothing.

    Each with its ranks, and whether a culprit is among them.
    """
    alike: dict[tuple[str, str], list[LogExcerpt]] = {}
    for log in page.logs:
        alike.setdefault((log.head, log.tail), []).append(log)
    empty = alike.pop(("", ""), [])
    ranks = [[log.rank for log in logs] for logs in alike.values()]
    blamed = [any(page.role(rank) == "culprit" for rank in each) for each in ranks]
    firsts = [logs[0] for logs in alike.values()]
    return list(zip(ranks, firsts, blamed, strict=True)), [log.rank for log in empty]


def log_size(log: LogExcerpt) -> str:
    """Return the number of lines that are shown, and whether there are more."""
    lines = log.head.count("\n") + log.tail.count("\n")
    return f"{lines} lines, cut" if log.tail else f"{lines} line{'' if lines == 1 else 's'}"


def fault_firings(page: PageModel) -> Iterator[tuple[str, str]]:
    """Yield each fault of the test, and when it fired in which rank."""
    for index, fault in enumerate(page.result.spec.faults):
        yield repr(fault), ", ".join(_fired(page, index)) or "never fired"


def _fired(page: PageModel, index: int) -> Iterator[str]:
    for rank, found in firings(page.result, index).items():
        again = f" and {len(found) - 1} times more" if len(found) > 1 else ""
        yield f"rank {rank} at +{found[0] - page.result.started_s:.2f} s{again}"


def environment(page: PageModel) -> dict[str, object]:
    """Return what the test ran with, by name."""
    verdict, spec = page.verdict, page.result.spec
    startup = f"{verdict.startup_s:.2f} s" if verdict.startup_s is not None else None
    facts = {
        "backend": spec.backend,
        "launch": verdict.launch,
        "seed": verdict.seed,
        "started": verdict.started_at,
        "start-up": startup or "not all ranks got ready",
        "duration": f"{verdict.duration_s:.2f} s",
        "timeout": f"{spec.timeout_s:g} s",
        "worker": verdict.worker,
        **verdict.environment,
    }
    return {name: value for name, value in facts.items() if value is not None}


def rank_files(page: PageModel) -> list[str]:
    """Return the names of the ranks' logs and stacks."""
    return [name for name in page.files if name.endswith(_LISTED_FILES)]
