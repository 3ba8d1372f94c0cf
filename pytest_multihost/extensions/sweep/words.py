"""Describes disturbances, weaknesses and mendings in plain words, for the reports of a sweep."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pytest_multihost.core.model.fault import FIELD_ERRORS, Fault, Point
from pytest_multihost.core.model.operation import nth
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.replay import test_command
from pytest_multihost.core.model.verdict import OperationName
from pytest_multihost.extensions.sweep.families import FAMILIES
from pytest_multihost.extensions.sweep.mendings import Mending, mending_of_kind
from pytest_multihost.extensions.sweep.own_kinds import words_of
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    Disturbance,
    DisturbedRun,
    RunOutcome,
    SweepResult,
    WaitEnd,
    Weakness,
)

ShownOutcome = Literal["hangs", "wrong", "fails", "passes", "not reached"]
"""The outcome of a disturbed run as reports show it; sweep.json is more precise."""

OUTCOMES: Mapping[RunOutcome, ShownOutcome] = {
    "left waiting": "hangs",
    "hung": "hangs",
    "timed out": "hangs",
    "mismatched": "wrong",
    "wrong": "wrong",
    "split": "fails",
    "told": "fails",
    "survived": "passes",
    "not reached": "not reached",
}
"""The shown form of each outcome, the worst first."""

MEANINGS: Mapping[ShownOutcome, str] = {
    "hangs": "a rank waited in vain until the plugin or a timeout ended it",
    "wrong": "no rank noticed that something is wrong: values, collectives, or what was saved",
    "fails": "the test failed, and no rank was left waiting",
    "passes": "the test passed",
    "not reached": "the injection did not happen",
}
"""The meaning of each shown outcome, the worst first."""


_MAX_ALIKE = 6
"""The maximum of further lines in the report of a weakness."""


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 weakness" or "2 weaknesses"."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith('s') else 's'}"


def point_text(point: Point) -> str:
    """Return a point in words, such as "2nd rename of */ckpt/tmp"."""
    which = f"{nth(point.nth)} " if point.nth > 1 else ""
    match point.point:
        case "io":
            return f"{which}{point.call or 'use'} of {point.name}"
        case "collective":
            return f"{which}{point.name or 'operation'}"
        case "call":
            return f"{which}call of {point.name}"
        case "batch":
            return f"batch {point.nth} of {point.name}"
        case "sync_point":
            return f"{which}sync point {point.name!r}"
        case _:
            return "start"


def place_text(fault: Fault) -> str:
    """Return where a fault happens, in words."""
    if fault.kind == "elapsed_time":
        return f"{nth(fault.params.get('read', 1))} read of a clock"
    return point_text(fault.at)


def disturbance_text(disturbance: Disturbance) -> str:
    """Return a disturbance in words, such as "rank 0's rename of */tmp failed with EIO (once)"."""
    fault = disturbance.fault
    who = PLAIN.of(fault.ranks) if isinstance(fault.ranks, tuple) else f"rank {fault.ranks!r}"
    who = "the first rank" if fault.is_first else who
    plain = f"{who} had the fault {fault!r}"
    try:
        return words_of(disturbance).sentence.format(**_parts(fault, who)) or plain
    except (AttributeError, LookupError, TypeError, ValueError):  # of a plugin: it names more
        return plain


def stands_for_text(run: DisturbedRun) -> str:
    """Return which ranks the disturbed one stands for; empty if only for itself."""
    role, rank = run.disturbance.role, run.disturbance.passed.rank
    return f"rank {rank} stands for {PLAIN.of(role)}" if len(role) > 1 else ""


def _parts(fault: Fault, who: str) -> Mapping[str, object]:
    """Return the parts that a sentence about a fault may contain, by name."""
    is_at_start = fault.at.point == "start"
    what, params = point_text(fault.at), fault.params
    is_child = params.get("what") == "child"
    seconds = params.get("seconds") or 0
    is_operation = fault.at.point == "collective"
    usual = FIELD_ERRORS.get(fault.at.call, "EIO")
    if fault.kind == "raise_at" or is_operation:
        usual = "its own error" if fault.kind == "fails" else "RuntimeError"
    return {
        **params,
        "who": f"a process of {who}" if is_child else who,
        "what": what,
        "name": fault.at.name,
        "at": f"from its start in {what} on" if is_child else _time_text(fault.at),
        "then": "from the start" if is_at_start else f"from its {what} on",
        "error": params.get("error", usual),
        "often": "and so did each later one" if fault.at.onwards else "once",
        "path": params.get("path", "*"),
        "least": f", for {params['min_s']:g} s at least" if params.get("min_s") else "",
        "value": repr(params.get("value")),
        "seconds": str(abs(seconds)).removesuffix(".0"),
        "way": "behind" if seconds < 0 else "ahead",
        "read": nth(params.get("read", 1)),
    }


def _time_text(at: Point) -> str:
    if at.point == "start":
        return "at the start"
    if at.onwards and at.point == "collective" and not at.name:
        return f"{at.when} each collective"
    return f"{at.when} its {point_text(at)}"


def operation_text(operation: OperationName | None) -> str:
    """Return an operation with its number, such as "barrier #4"; empty without an operation."""
    if operation is None:
        return ""
    return f"{operation.name} #{operation.sequence}" if operation.sequence else operation.name


def waits_text(run: DisturbedRun) -> str:
    """Return the waiting ranks, their operation and the culprits in words, or the run's summary."""
    if run.outcome not in WEAK or run.outcome == "mismatched" or not run.waiting_ranks:
        return run.summary or run.error or MEANINGS[OUTCOMES[run.outcome]]
    is_one = len(run.waiting_ranks) == 1
    verb = "waited" if run.outcome == "timed out" else "waits" if is_one else "wait"
    inside = f" in {text}" if (text := operation_text(run.operation)) else ""
    if set(run.culprits) & set(run.waiting_ranks):
        everybody = PLAIN.of({*run.culprits, *run.waiting_ranks})
        return f"{everybody} {verb} for each other{inside}{_end(run)}"
    whom = f" for {PLAIN.of(run.culprits)}" if run.culprits else ""
    return f"{PLAIN.of(run.waiting_ranks)} {verb}{inside}{whom}{_end(run)}"


def _end(run: DisturbedRun) -> str:
    if run.outcome == "timed out":
        return " until a timeout ended it"
    if run.outcome != "left waiting" or not run.culprits:
        return ""
    return f", which {'has' if len(run.culprits) == 1 else 'have'} failed"


def ranks_at_culprit(run: DisturbedRun) -> tuple[int, ...]:
    """Return the ranks to which the culprit's line belongs: the deciding rank, or the culprits."""
    return (run.disturbance.passed.rank,) if run.has_decided else run.culprits


def mending(run: DisturbedRun) -> Mending:
    """Return the pattern that removes the weakness that a run shows."""
    family = FAMILIES.get(run.disturbance.family)
    return (mending_of_kind if family is None else family.load().mend)(run)


# The whole sweep


def survived(result: SweepResult) -> int:
    """Return the number of disturbances that happened and showed no weakness."""
    return len(result.runs) - result.count("not reached", *WEAK)


def headline_text(result: SweepResult) -> str:
    """Return the first weakness and how many more there are; without one, the coverage."""
    open_ = [each for each in result.weaknesses if each.fails_test]
    if not open_:
        return survives_text(result)
    more = f" (and {len(open_) - 1} more)" if len(open_) > 1 else ""
    return f"{waits_text(open_[0].witness)}{more}"


def survives_text(result: SweepResult) -> str:
    """Return the line "survives 412 of 430 disturbances (3 weaknesses; 12 points not reached)"."""
    if result.status == "not swept":
        return f"not swept: {result.reason or 'for an unknown reason'}"
    found = len(result.weaknesses) - len(hidden(result))
    accepted = sum(each.accepted is not None for each in result.weaknesses)
    chance = len(by_chance(result))
    notes = [
        plural(found, "weakness")
        + (f", {_accepted(accepted, found)}" if accepted else "")
        + (f", {chance} not repeated" if chance else "")
    ]
    if hidden(result):
        count = len(hidden(result))
        notes.append(f"{count} more that {'is' if count == 1 else 'are'} short")
    if missed := result.count("not reached"):
        notes.append(f"{plural(missed, 'point')} not reached")
    what = plural(len(result.runs), "injection")
    return f"survives {survived(result)} of {what} ({'; '.join(notes)})"


def _accepted(count: int, found: int) -> str:
    """Return how many weaknesses are accepted: "accepted" if it is the only one."""
    return "accepted" if count == found == 1 else f"{count} accepted"


def by_chance(result: SweepResult) -> list[Weakness]:
    """Return the weaknesses that no repeat showed again, except accepted ones."""
    return [
        each
        for each in result.weaknesses
        if each.accepted is None and not each.is_hidden and not each.fails_test
    ]


def hidden(result: SweepResult) -> list[Weakness]:
    """Return the weaknesses that reports only count, except accepted ones."""
    return [each for each in result.weaknesses if each.is_hidden and each.accepted is None]


def hidden_text(result: SweepResult) -> str:
    """Return how many weaknesses reports only count, and why; empty if there are none."""
    count = len(hidden(result))
    if not count:
        return ""
    return (
        f"{plural(count, 'more weakness')}: an error is logged, and then a launcher ends all"
        " ranks within a minute; --multihost-sweep-show=all shows them"
    )


def why_passed_text(result: SweepResult) -> str:
    """Return why a test passes although runs of its sweep are weak, in one sentence.

    It is empty if the test does not pass, or no run is weak.
    """
    if result.status != "passed" or not result.weaknesses:
        return ""
    accepted = sum(each.accepted is not None for each in result.weaknesses)
    counts = (
        (accepted, "is accepted", "are accepted"),
        (len(hidden(result)), "is short", "are short"),
        (len(by_chance(result)), "was not seen again", "were not seen again"),
    )
    parts = [f"{count} {one if count == 1 else more}" for count, one, more in counts if count]
    runs = plural(result.count(*WEAK), "injection")
    weak = plural(len(result.weaknesses), "weakness")
    return f"The test passes although {runs} showed {weak}: {', '.join(parts)}."


def rating_text(weakness: Weakness) -> str:
    """Return the lasting error, its mention in a log, and the end of the wait."""
    rating = weakness.rating
    if rating is None:
        return ""
    stays = "something wrong stays" if rating.stays else "nothing wrong is known to stay"
    is_error = rating.says == weakness.witness.error
    says = "the error is logged" if is_error else f"a log says: {rating.says}"
    says = says if rating.says else "no log says anything"
    return "; ".join(filter(None, (stays, says, _end_text(rating.end))))


def _end_text(end: WaitEnd | None) -> str:
    if end is None:
        return ""
    after = "" if end.after_s is None else f" after {_seconds_text(end.after_s)}"
    match end.by:
        case "launcher":
            return f"the launcher ends all ranks{after}"
        case "timeout":
            return f"{end.name} ends the wait{after}"
        case "runtime":
            return f"all processes end by themselves{after}"
        case "nothing":
            return f"nothing ends the wait within {_seconds_text(end.after_s or 0.0)}"
    return f"the end of the wait was not measured: {end.name}"


def _seconds_text(seconds: float) -> str:
    """Return a duration in its usual unit, such as "0.3 s", "30 minutes" or "2 hours"."""
    least = ((2 * 3600.0, 3600, "hours"), (120.0, 60, "minutes"), (10.0, 1, "s"))
    for at_least, unit, name in least:
        if seconds >= at_least:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.1f} s"


def chance_text(weakness: Weakness) -> str:
    """Return how often a weakness was seen that no repeat showed again."""
    count = len(weakness.shown_by)
    return f"seen {'once' if count == 1 else f'in {count} runs'}, not repeated"


def unsteady_texts(result: SweepResult, weakness: Weakness) -> list[str]:
    """Return the other repeated runs that did not show a weakness each time, in words."""
    return [
        f"{disturbance_text(result.runs[each.run].disturbance)}: {repeats_text(each.repeated)}"
        for each in weakness.unsteady
    ]


def alike_texts(result: SweepResult, weakness: Weakness) -> list[str]:
    """Return the lines that likely have the same weakness, except lines of reported weaknesses.

    A failure at these lines meets the same handlers, and the same operation follows. Lines that
    were tried are skipped.
    """
    disturbance = weakness.witness.disturbance
    told = [each.witness.culprit for each in result.weaknesses]
    tried = [each.disturbance.passed.where for each in result.runs]
    known = {(each.file, each.line) for each in (*told, *tried) if each is not None}
    found = [each for each in disturbance.alike if (each.file, each.line) not in known]
    lines = [f"{each.file}:{each.line} {each.source}".rstrip() for each in found[:_MAX_ALIKE]]
    more = [f"and {plural(len(found) - _MAX_ALIKE, 'more line')}"]
    return [*lines, *(more if len(found) > _MAX_ALIKE else ())]


def repeats_text(repeated: tuple[int, int]) -> str:
    """Return how many repeats showed the weakness again, such as "4 of 5 repeats"."""
    times, shown = repeated
    return f"{shown} of {plural(times, 'repeat')}"


def shown_by_text(result: SweepResult, weakness: Weakness) -> str:
    """Return how many runs showed a weakness: "2 of 9 injections (2 late), and 4 of 5 repeats"."""
    families = [result.runs[index].disturbance.family for index in weakness.shown_by]
    text = f"{len(families)} of {plural(len(result.runs), 'injection')}"
    text += f" ({families_text(families)})" if families else ""
    return f"{text}, and {repeats_text(weakness.repeated)}" if weakness.repeated[0] else text


def outcomes_text(runs: Iterable[DisturbedRun]) -> str:
    """Return the number of runs by outcome, the worst first, such as "hangs 2, passes 400"."""
    return ", ".join(f"{name} {count}" for name, count in outcome_counts(runs))


def outcome_counts(runs: Iterable[DisturbedRun]) -> list[tuple[ShownOutcome, int]]:
    """Return the number of runs for each shown outcome that occurs, the worst first."""
    counts = Counter(OUTCOMES[each.outcome] for each in runs)
    return [(name, counts[name]) for name in MEANINGS if counts[name]]


def families_text(families: Iterable[str]) -> str:
    """Return the number of disturbances by family, such as "8 fails, 4 late"."""
    return ", ".join(f"{count} {name}" for name, count in Counter(families).most_common())


_LEFT_OUT = {
    "budget": "for lack of time",
    "interrupted": "because the sweep was interrupted",
    "known": "because other runs show that they would find nothing new",
    "lost": "because the plugin failed in them twice",
    "machine": "because this machine cannot do that",
    "rare": "because their kind has found nothing yet; naming the fault class runs them",
    "doubtful": "because no hang was proven, and a repeat with nothing beside it found none",
}


def left_out_texts(result: SweepResult) -> list[str]:
    """Return one sentence for each reason why planned disturbances were not run."""
    counts: Counter[str] = Counter()
    by_reason: dict[str, list[str]] = {}
    for each in result.left_out:
        counts[each.reason] += each.count
        by_reason.setdefault(each.reason, []).append(f"{each.count} {each.family}")
    return [
        f"{plural(counts[reason], 'injection')} ({', '.join(parts)})"
        f" {_LEFT_OUT.get(reason, f'because of: {reason}')}"
        + (_budget_for(result, counts[reason]) if reason == "budget" else "")
        for reason, parts in by_reason.items()
    ]


def _budget_for(result: SweepResult, count: int) -> str:
    """Return how long so many more disturbances would take, and the budget for all."""
    each_s = result.duration_s / max(1, len(result.runs))
    more_s = max(1.0, count * each_s)
    budget_s = math.ceil((result.budget_s + more_s) / 10) * 10
    return (
        f", which would take about {_seconds_text(more_s)};"
        f" --multihost-sweep-budget={budget_s} has room for all"
    )


def budget_text(result: SweepResult) -> str:
    """Return how long a sweep took, such as "58.2 s of 60 s"."""
    took = f"{result.duration_s:.1f} s"
    if result.duration_s <= result.budget_s:
        return f"{took} of {result.budget_s:g} s"
    return f"{took} with a budget of {result.budget_s:g} s"


def unmet_texts(result: SweepResult) -> list[str]:
    """Return one sentence for each accepted weakness that was not found.

    A sweep that has left out disturbances may not have come to it.
    """
    cut = ("budget", "interrupted", "lost", "doubtful")
    is_whole = not any(each.reason in cut for each in result.left_out)
    if is_whole:
        why = "was accepted and no longer occurs: remove it from the acceptance file"
    else:
        why = "was accepted and was not found; the sweep has left out injections"
    return [f"{each} {why}" for each in result.unmet_acceptances]


def roles_text(roles: Sequence[tuple[int, ...]]) -> str:
    """Return the roles in words, such as "rank 0; ranks 1-3"."""
    return "; ".join(PLAIN.of(role) for role in roles)


def replay_command(result: SweepResult, run: DisturbedRun) -> str:
    """Return the shell command that repeats a run."""
    return test_command(result.selected_by or (result.nodeid,), run.token)
