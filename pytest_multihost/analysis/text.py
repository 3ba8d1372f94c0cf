"""What a failed world looks like in words. No colour, no I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.analysis.fired import fault_lines
from pytest_multihost.analysis.frames import (
    innermost_user_frame,
    inside_the_test,
    is_library,
    short_path,
)
from pytest_multihost.analysis.merge import StackGroup, group_by_main_stack
from pytest_multihost.analysis.outcome import Finding, RankFinding, identity
from pytest_multihost.analysis.page import hang_lines
from pytest_multihost.analysis.ranks import rank_set
from pytest_multihost.analysis.telling import Telling
from pytest_multihost.model.diagnosis import Diagnosis
from pytest_multihost.model.replay import token
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.stack import Dump, Frame

_WIDTH = 160
_MAX_FRAMES = 12
_MAX_LIBRARY_FRAMES = 6
_WRAPPERS = frozenset(
    {"wrapper", "wrapped", "inner", "decorate_context", "reraise_with_filtered_traceback"}
)


@dataclass(frozen=True, slots=True)
class Section:
    """A titled part of the report."""

    title: str
    text: str


def sections(
    result: WorldResult,
    finding: Finding,
    diagnosis: Diagnosis | None,
    *,
    telling: Telling,
    files: str,
) -> list[Section]:
    """Return what is to be read under the headline rank's own traceback.

    Args:
        result: What was observed.
        finding: What was found.
        diagnosis: Why it hung or broke, where that is to be told.
        telling: What the words need besides.
        files: Where the artifacts are.
    """
    root = telling.root
    if diagnosis is not None and finding.outcome == "hung":
        lines = [f"  {line}" for line in hang_lines(result, finding, diagnosis, telling)]
        lines += [*_leftovers(result), *_fault_lines(result), f"  files     {files}"]
        text = "\n".join(line if "--multihost-replay" in line else _clipped(line) for line in lines)
        return [Section(_title(result), text), *_other_failures(finding)]
    places = _places(result.dumps, root)
    parts = [Section(_title(result), "\n".join(_table(result, finding, places, files)))]
    parts += _other_failures(finding)
    if result.dumps:
        parked = {each.facts.rank for each in finding.ranks if each.facts.waits_at_gate}
        running = [dump for dump in result.dumps if dump.rank not in parked]
        text = "\n".join(_stacks(group_by_main_stack(running), parked, root))
        parts.append(Section("stacks when the world was ended, main threads", text))
    return parts


def _title(result: WorldResult) -> str:
    size, backend = result.spec.size, result.spec.backend
    return f"world of {size} rank{'s' if size > 1 else ''}, {backend}"


def _places(dumps: Iterable[Dump], root: str) -> dict[int, str]:
    """Return where each rank was in the user's code, as far as the dumps tell."""
    places = {}
    for dump in dumps:
        frame = innermost_user_frame(inside_the_test(dump.main.frames if dump.main else ()))
        if frame is not None:
            places[dump.rank] = f"{short_path(root, frame.file)}:{frame.line} {frame.function}"
    return places


def _table(
    result: WorldResult, finding: Finding, places: Mapping[int, str], files: str
) -> Iterator[str]:
    """One line for each group of ranks to which the same happened, the headline first."""
    if result.reason != finding.reason:  # else it stands in the headline
        for line in (result.reason or "").splitlines():
            yield f"  {line}"
    groups = _groups(finding, places)
    names = [rank_set(each.facts.rank for each in group) for group in groups]
    width = max(len(name) for name in names)
    for name, group in zip(names, groups, strict=True):
        first = group[0]
        mark = "►" if finding.headline in {each.facts.rank for each in group} else " "
        yield _clipped(
            f"{mark} {name:<{width}}  {first.outcome:<10}  {_story(first, result, places)}".rstrip()
        )
    yield from map(_clipped, _leftovers(result))
    yield f"  files  {files}"
    yield from _fault_lines(result)


def _fault_lines(result: WorldResult) -> list[str]:
    """Return what became of the world's faults, and how to repeat them; not to be clipped."""
    if not result.spec.faults:
        return []
    replay = f"replay  pytest '{result.spec.nodeid}' --multihost-replay {token(result.spec)}"
    return [f"  {line}" for line in (*fault_lines(result), replay)]


def _leftovers(result: WorldResult) -> list[str]:
    return [f"  left behind and ended: {command}" for command in result.leftovers]


def _groups(finding: Finding, places: Mapping[int, str]) -> list[list[RankFinding]]:
    groups: dict[tuple[object, ...], list[RankFinding]] = {}
    for each in finding.ranks:
        place = places.get(each.facts.rank) if each.at_s is None else None
        groups.setdefault((*identity(each), place), []).append(each)
    ordered = sorted(groups.values(), key=lambda group: (len(group), group[0].facts.rank))
    return sorted(ordered, key=lambda group: finding.headline not in {e.facts.rank for e in group})


def _story(finding: RankFinding, result: WorldResult, places: Mapping[int, str]) -> str:
    """When, where, what: the words come last because they alone may be cut."""
    if finding.at_s is None:
        summary = "" if finding.summary == finding.outcome else finding.summary
        return "  ".join(part for part in (places.get(finding.facts.rank, ""), summary) if part)
    error = finding.error
    place = f"{error.file}:{error.line}" if error is not None and error.file else ""
    when = f"+{finding.at_s - result.started_s:.2f} s"
    return "  ".join(part for part in (when, place, finding.summary) if part)


def _other_failures(finding: Finding) -> list[Section]:
    """Return the full text of failures that are neither the headline's nor a symptom."""
    parts = []
    for group in _groups(finding, {}):
        first = group[0]
        ranks = {each.facts.rank for each in group}
        if finding.headline in ranks or first.error is None or first.outcome == "collateral":
            continue
        title = f"{rank_set(ranks)}: {first.error.type}"
        parts.append(Section(title, first.error.text))
    return parts


def _stacks(groups: Sequence[StackGroup], parked: Collection[int], root: str) -> Iterator[str]:
    for group in groups:
        name = rank_set(group.ranks)
        if not group.frames:
            yield f"{name}  gave no stack: it ignores the signal, or waits inside the kernel"
            continue
        yield f"{name}  (innermost last)"
        yield from _frames(group.frames, root)
    if parked:
        yield f"{rank_set(parked)}  had left the test"


def _frames(frames: Sequence[Frame], root: str) -> Iterator[str]:
    """Return the frames of the test outermost first.

    Of the library frames further in than the user's, one tells what was called; the rest is folded.
    Without a frame of the user's the innermost ones tell most.
    """
    inside = list(reversed(inside_the_test(frames)))
    if innermost_user_frame(inside) is None:
        shown, folded = inside[-_MAX_LIBRARY_FRAMES:], 0
    else:
        shown, folded = _fold_library(inside)
    for frame in shown[-_MAX_FRAMES:]:
        yield f"    {short_path(root, frame.file)}:{frame.line}  {frame.function}"
    if folded:
        yield f"    … {folded} more library frame{'s' if folded > 1 else ''}"


def _fold_library(frames: list[Frame]) -> tuple[list[Frame], int]:
    """Keep, of the library frames inside the user's last one, the one that names the operation.

    That is the outermost which is no decorator's wrapper.
    """
    last_user = max((i for i, frame in enumerate(frames) if not is_library(frame.file)), default=-1)
    inside = frames[last_user + 1 :]
    called = next((frame for frame in inside if frame.function not in _WRAPPERS), None)
    shown = frames[: last_user + 1] + ([called] if called else [])
    return shown, len(frames) - len(shown)


def _clipped(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
