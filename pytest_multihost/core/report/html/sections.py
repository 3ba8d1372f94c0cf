"""Derives the values that the sections of an attempt's page show, in the order of the page."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby
from typing import Literal, NamedTuple

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.blame.kinds import kind_of
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.own_failures import later_failures
from pytest_multihost.core.model import replay
from pytest_multihost.core.model.operation import Operation, group_by_value
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import RankSnapshot, ServiceRecord, WorldSnapshot
from pytest_multihost.core.model.spec import phase_name
from pytest_multihost.core.model.stack import (
    Dump,
    Frame,
    NativeThread,
    group_by_main_stack,
    inside_the_test,
    is_library,
)
from pytest_multihost.core.model.verdict import (
    Diagnosis,
    Evidence,
    Place,
    RankError,
    RankResult,
    Sentence,
    Verdict,
    outcome_word,
    sentence,
)
from pytest_multihost.core.outcome import RankFinding
from pytest_multihost.core.outcome.active_faults import frozen_for_good
from pytest_multihost.core.outcome.fault_progress import fault_notes
from pytest_multihost.core.report import ground as grounds
from pytest_multihost.core.report.child_lines import child_lines
from pytest_multihost.core.report.hints import hints
from pytest_multihost.core.report.layout import rank_places, rank_state, told_operations
from pytest_multihost.core.report.leftovers import leftover_texts
from pytest_multihost.core.report.lock_lines import lock_lines
from pytest_multihost.core.report.logs import LogExcerpt

Blame = Literal["culprit", "waiting", ""]
"""The blame of a rank in a diagnosis: others wait for it, or it waits for others."""

BLAME_ORDER: Mapping[Blame, int] = {"culprit": 0, "waiting": 1, "": 2}


@dataclass(frozen=True, kw_only=True)  # no slots: cached_property needs a dictionary
class PageModel:
    """The data of the page of one attempt of one test.

    Attributes:
        logs: The output of each rank, cut to a readable size.
        source_lines: Numbered lines around the culprit's place.
        files: Names of the files beside the page.
        is_of_file: Whether the world was read from a file, which may be foreign.
    """

    judged: Judgement
    verdict: Verdict
    logs: Sequence[LogExcerpt] = ()
    source_lines: Sequence[tuple[int, str]] = ()
    files: Sequence[str] = ()
    is_of_file: bool = False

    @cached_property
    def place(self) -> Callable[[Frame], Place]:
        """Convert a frame to a place; cached, because the ranks of a world share most frames."""
        return cache(self.judged.context.place)

    @cached_property
    def places(self) -> Mapping[int, Place]:
        """The place of each rank in the code."""
        return rank_places(self.judged)

    @cached_property
    def last_seen(self) -> Mapping[int, RankSnapshot]:
        """The last snapshot of each rank."""
        return self.judged.result.last_seen

    @cached_property
    def told_operations(self) -> Mapping[int, Operation]:
        """By rank, its operation as the diagnosis tells it, where a snapshot does not."""
        return told_operations(self.judged)

    @cached_property
    def parked(self) -> frozenset[int]:
        """Ranks that had returned from the test and waited in the harness, as their stacks show."""
        return self.judged.finding.in_harness

    def native_threads(self, rank: int) -> Sequence[NativeThread]:
        """Return the native stacks of a rank, if they were read."""
        return self.last_seen[rank].native if rank in self.last_seen else ()

    def blame(self, rank: int) -> Blame:
        """Return the blame of a rank in the diagnosis."""
        if self.judged.diagnosis is None:
            return ""
        if rank in self.judged.diagnosis.culprits or rank in self.judged.diagnosis.cycle:
            return "culprit"
        return "waiting" if rank in self.judged.diagnosis.waiting else ""

    def blames(self, ranks: Iterable[int]) -> set[Blame]:
        """Return the blames of some ranks."""
        return {self.blame(rank) for rank in ranks}


@dataclass(frozen=True, slots=True)
class RankGroup:
    """Ranks with the same outcome at the same place.

    Attributes:
        blame: Without a diagnosis, the headline rank counts as the culprit.
        state: A few words, such as ``waiting`` or ``killed as planned``.
    """

    ranks: tuple[int, ...]
    blame: Blame
    state: str
    doing: str
    place: Place | None
    error: RankError | None


def rank_groups(page: PageModel) -> list[RankGroup]:
    """Return the ranks grouped by their outcome: culprits first, then waiting ranks."""
    alike = group_by_value(
        (_group_of_one(each, page), each.facts.rank) for each in page.judged.finding.ranks
    )
    groups = [replace(group, ranks=tuple(ranks)) for group, ranks in alike.items()]
    return sorted(groups, key=lambda each: (BLAME_ORDER[each.blame], len(each.ranks), each.ranks))


def _group_of_one(finding: RankFinding, page: PageModel) -> RankGroup:
    """Return the group of one rank, without the rank's number so that equal groups are equal."""
    rank = finding.facts.rank
    state, details = rank_state(finding, page.judged.result, page.told_operations.get(rank))
    is_headline = page.judged.diagnosis is None and rank == page.judged.finding.headline
    return RankGroup(
        ranks=(),
        blame="culprit" if is_headline else page.blame(rank),
        state=state.replace("_", " "),
        doing=details,
        place=None if rank in page.parked or finding.error else page.places.get(rank),
        # pytest's representation of an error differs between ranks, at least in addresses.
        error=replace(finding.error, text="") if finding.error else None,
    )


_MAX_HEADLINE = 240
_LISTED_FILES = (".log", ".stacks", ".tasks", ".locks")


def headline(page: PageModel) -> Sentence:
    """Return the verdict in one sentence."""
    if page.judged.diagnosis is not None:
        return page.judged.diagnosis.headline
    reason = page.judged.finding.reason
    return sentence(reason if len(reason) <= _MAX_HEADLINE else f"{reason[:_MAX_HEADLINE]}…")


def ground(page: PageModel) -> str:
    """Return how the hang was detected, and how long after the world's last progress."""
    diagnosis, reason = page.judged.diagnosis, page.judged.result.reason or ""
    if diagnosis is None:
        return reason
    text = grounds.ground(page.judged)
    judged = f"{text[0].upper()}{text[1:]}."
    is_reason_shown = page.judged.finding.reason in ("", diagnosis.summary)
    return judged if is_reason_shown else f"{page.judged.finding.reason}. {judged}"


def raised_at(group: RankGroup, page: PageModel) -> Place | None:
    """Return where the error of a group was raised."""
    error = group.error
    if error is None or not error.file or not error.line:
        return None
    return page.place(Frame(error.file, error.line, error.function or ""))


def kind(diagnosis: Diagnosis) -> HangKind:
    """Return the kind of hang that a diagnosis names."""
    return kind_of(diagnosis.kind)


def is_planned(page: PageModel, diagnosis: Diagnosis) -> bool:
    """Whether faults of the test keep the culprits from arriving."""
    frozen = frozen_for_good(page.judged.result.spec.faults, page.judged.result.history).keys()
    killed = {e.facts.rank for e in page.judged.finding.ranks if e.outcome == "killed_as_planned"}
    return bool(diagnosis.culprits) and frozen | killed >= set(diagnosis.culprits)


def notes(page: PageModel) -> list[str]:
    """Return the notes for the reader."""
    diagnosis, result = page.judged.diagnosis, page.judged.result
    told = diagnosis.notes if diagnosis is not None else fault_notes(result)
    return [*hints(page.judged), *told, *leftover_texts(result)]


def services(page: PageModel) -> Mapping[str, ServiceRecord]:
    """Return the records of the world's services that add lines to reports, by name."""
    return {name: each for name, each in page.judged.result.records.items() if each.lines}


def replay_command(page: PageModel) -> str:
    """Return the shell command that repeats the test with the same faults and settings."""
    return replay.replay_command(page.judged.result.spec)


class StackClass(NamedTuple):
    """Ranks whose main threads have equal stacks.

    Attributes:
        dump: The dump of one of these ranks.
        others: The distinct stacks of that rank's other threads, with the threads' names.
    """

    ranks: tuple[int, ...]
    frames: Sequence[Frame]
    dump: Dump
    others: Mapping[tuple[Frame, ...], Sequence[str]]


def stack_classes(dumps: Sequence[Dump]) -> list[StackClass]:
    """Return the classes of ranks with equal stacks, the smallest first."""
    found, by_rank = [], {dump.rank: dump for dump in dumps}
    for group in group_by_main_stack(dumps):
        dump = by_rank[group.ranks[0]]
        others = group_by_value(  # a pool has many idle threads
            (each.frames, f"{each.name}{' (held the GIL)' * each.current}")
            for each in dump.threads
            if each is not dump.main
        )
        if group.frames:
            found.append(StackClass(group.ranks, group.frames, dump, others))
    return found


def folded(frames: Sequence[Frame]) -> tuple[Sequence[Frame], list[tuple[bool, list[Frame]]]]:
    """Return the frames that run the test, then those inside it, outermost first.

    The frames inside are grouped into runs of library frames and runs of other frames.
    """
    inside = inside_the_test(frames)
    runs = groupby(reversed(inside), key=lambda frame: is_library(frame.file))
    return frames[len(inside) :][::-1], [(is_lib, list(run)) for is_lib, run in runs]


def failures(page: PageModel) -> list[tuple[list[int], str, str]]:
    """Return each distinct exception as (ranks, title, pytest's representation)."""
    finding = page.judged.finding
    errors = [(each.error.text, each.facts.rank) for each in finding.ranks if each.error]
    errors += [
        (error.text, each.facts.rank)
        for each in finding.ranks
        for _, error in later_failures(each, finding.symptoms)
    ]
    alike = group_by_value((text, rank) for text, rank in errors if text)
    found = []
    for text, ranks in alike.items():
        # The title is the first line that pytest marks with an E, else the last line.
        marked = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
        title = [*marked[:1], *text.strip().splitlines()[-1:], ""][0]
        found.append((ranks, title[:160], text))
    return found


def claims(diagnosis: Diagnosis) -> Mapping[tuple[str, str], list[Evidence]]:
    """Return the evidence grouped by fact and source."""
    return group_by_value(((each.fact, each.source), each) for each in diagnosis.evidence)


def ranks_by_blame(page: PageModel) -> list[RankResult]:
    """Return the verdict's ranks, the culprits first, then the waiting ranks."""
    return sorted(page.verdict.rank_results, key=lambda each: BLAME_ORDER[page.blame(each.rank)])


def open_operations(rank: int, page: PageModel) -> list[str]:
    """Return up to two operations of a rank's last snapshot, its waits if any."""
    seen = page.last_seen.get(rank)
    operations = seen.operations if seen else ()
    waited = [each for each in operations if each.waited_s is not None] or list(operations)
    return [each.describe(page.judged.result.spec.names) for each in waited[:2]]


def phase_words(rank: RankResult, page: PageModel) -> str:
    """Return the last phase of a rank as readers know it."""
    return phase_name(rank.phase, page.judged.result.spec.subject)


def outcome_words(rank: RankResult) -> str:
    """Return the outcome of a rank in the words of readers."""
    return outcome_word(rank.outcome, [rank.exit_code]).replace("_", " ")


def exit_words(rank: RankResult, page: PageModel) -> str:
    """Return how the process of a rank ended; empty if it did not."""
    if rank.signal is None:
        return "" if rank.exit_code is None else f"code {rank.exit_code}"
    names = {each.value: each.name for each in signal.Signals}  # not of all real-time signals
    name = names.get(rank.signal, f"signal {rank.signal}")
    facts = page.judged.finding.ranks[rank.rank].facts
    return f"ended by the harness ({name})" if facts.was_ended else name


def lock_texts(page: PageModel) -> list[str]:
    """Return the waits of the threads of a rank to blame, and the holders."""
    return list(lock_lines(page.judged))


def child_texts(page: PageModel) -> list[str]:
    """Return where the child processes of a rank to blame are."""
    return list(child_lines(page.judged))


def snapshot_rows(page: PageModel) -> Mapping[tuple[str, ...], list[int]]:
    """Return the main threads' labels in all snapshots, grouped by ranks with equal labels."""
    result = page.judged.result
    snapshots, names = result.snapshots, result.spec.names
    return group_by_value(
        (tuple(_label(each, rank, names) for each in snapshots), rank) for rank in range(names.size)
    )


def _label(snapshot: WorldSnapshot, rank: int, names: Names) -> str:
    seen = next((each for each in snapshot.ranks if each.rank == rank), None)
    if seen is None or seen.label is None:
        return "?"
    moved = " moved" if seen.has_run else ""
    gil = " holds the GIL" if seen.holds_gil else ""
    locks = f" lock of {names.of(seen.lock_holders)}" if seen.lock_holders else ""
    locks += "".join(f" / {child.title}" for _, child in seen.lock_children)
    return f"{seen.label.lower()}{moved}{gil}{locks}"


def log_groups(page: PageModel) -> tuple[list[tuple[list[int], LogExcerpt]], list[int]]:
    """Return each distinct log with its ranks, and the ranks that printed nothing."""
    alike = group_by_value(((log.head, log.tail), rank) for rank, log in enumerate(page.logs))
    silent = alike.pop(("", ""), [])
    return [(ranks, page.logs[ranks[0]]) for ranks in alike.values()], silent


def rank_files(page: PageModel) -> list[str]:
    """Return the names of the ranks' logs and stacks."""
    return [name for name in page.files if name.endswith(_LISTED_FILES)]
