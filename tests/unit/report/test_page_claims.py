"""What a page says of ranks and operations agrees with verdict.json: a check of all recorded hangs.

The sentences are taken apart by the patterns in `SENTENCES`. One that fits none is an error: a new
sentence needs a pattern, which says what is claimed by it.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from builders import ended, history_of_a_hang, in_tests, operation, page, seen, world

from pytest_multihost.core.attempt import rejudge
from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.report import Attempt, build_verdict
from pytest_multihost.core.report.text import page_sections
from pytest_multihost.testing import (
    Event,
    Label,
    Operation,
    Scope,
    SourceContext,
    WorldResult,
    WorldSnapshot,
    exited,
    files_below,
    make_event,
)

RECORDED = sorted(Path(__file__).parents[2].joinpath("recorded").glob("*.json.gz"))

Json = Mapping[str, Any]

NUMBERS = r"\d+(?:-\d+)?(?:,(?:\d+(?:-\d+)?|…))*(?: and \d+ more)?"
RANKS = rf"ranks? {NUMBERS}"
GROUP = re.compile(r" \(([^()]*group[^()]*)\)(?= |$)")
WHOSE = r"(?: (?:from|to) rank \d+)?(?: at \S+:\d+)?"

NO_END = "the world did not end"

TOKENS = {
    "C": f"(?P<culprits>{RANKS})(?: / .+?)?",
    "W": f"(?P<waiting>{RANKS})",
    "IN": "(?: in (?P<in_one>.+?)|: (?P<in_several>.+?))?",
    "WAITERS": f"(?:; (?P<waiting>{RANKS}) (?P<verb>waits?|waited) for (?P<them>it|them)"
    "(?: in (?P<in_one>.+?)|: (?P<in_several>.+?))?)?(?: at \\S+:\\d+)?",
    "OTHERS": f"(?:; (?P<others>{RANKS})(?: now)? (?P<verb>waits?)(?: for rank \\d+)?"
    "(?: in (?P<in_one>.+)|: (?P<in_several>.+))?)?",
    "LEFT": f"(?P<left>{RANKS}) (?:has|have) left",
    "BUSY": "(?:: (?:it is busy, or waits|they are busy, or wait) again and again)?",
    "LOST": "(?:: its child .+)?",
}
"""Parts of sentences: the culprits, who waits, and in which operations."""

FROZEN = "<C> (?:is|are) frozen by faults\\..+?<WAITERS>"
LATE = (
    "<C> never reached (?P<missed>.+?)<BUSY><LOST>",
    "<C> never did its part in (?P<missed>.+?) of (?P<waiter>rank \\d+)<BUSY><LOST>",
    f"<C> never did their part in transfers of {RANKS}<BUSY><LOST>",
    "<W> (?P<verb>waits?)<IN> for something that <C> did not provide<BUSY><LOST>",
    "<W> (?P<verb>waits?) for something that <C> did not provide<IN><BUSY><LOST>",
    "<W> (?P<verb>waits?) in (?P<in_one>.+?) for <C>, of which nothing was recorded",
    "<W> (?P<verb>waits?) for <C>, of which nothing was recorded(?:: (?P<in_several>.+?))?",
    f"(?P<lockers>{RANKS}) waits? for a lock that <C> holds?<BUSY><LOST>",
    "<C> never became ready \\(.+\\); <W> (?P<verb>waits?) for that<BUSY><LOST>",
    FROZEN,
)
SENTENCES: Mapping[str, Sequence[str]] = {
    "finished": ["<C> (?P<returned>returned) from the \\w+<WAITERS>"],
    "raised": ["<C> raised (?P<error>.+?)<WAITERS>"],
    "died": ["<C> (?P<ended>was killed by \\w+|exited with code \\d+|lost its .+?).*?<WAITERS>"],
    "stopped": [
        "<C> (?:is|are) (?P<stopped>stopped by a signal such as SIGSTOP)<WAITERS>",
        "<C> (?:is|are) (?P<stopped>held by a debugger or another tracer)<WAITERS>",
    ],
    "gil_held": [
        "native code in <C> holds the GIL(?: (?:in|at) \\S+)?(?: \\(file .+?\\))?<WAITERS>"
    ],
    "straggler": LATE,
    "livelock": LATE,
    "mismatch": [
        f"(?P<sides>{RANKS} (?:is|are) in .+)",
        f"{RANKS} names? the members .+",
        f"(?P<payloads>{RANKS} (?:pass(?:es)?|runs?) .+ (?:to|in) .+)",
        f"{RANKS} (?:sends?|receives?) .+",
        f"{RANKS} entered .+",
        "(?P<diverged>after \\d+ operations? in common .+)",
    ],
    "deadlock": [
        f"(?P<cycle>{RANKS}) wait for each other: (?P<circle>rank \\d+ waits in .+)",
        f"(?P<cycle>{RANKS}) wait for each other(?: in (?P<in_one>.+)|: (?P<in_several>.+))",
        "threads .+ of (?P<cycle>rank \\d+) wait for each other \\(locks? .+?\\)<OTHERS>",
        "processes of (?P<cycle>rank \\d+) wait for each other: .+",
    ],
    "transport": [
        f"(?P<entered>{RANKS}) (?P<has>has|have) entered (?P<operation>.+), and .+",
        f"(?P<inside>{RANKS}) waits? in (?P<operation>.+?), which <LEFT>, and nothing moves",
        f"(?P<inside>{RANKS}) waits? in (?P<operation>.+?), which <LEFT><OTHERS>",
        "<C> left (?P<missed>.+?) by .+?<WAITERS>",
        f"{RANKS} wait in .+ at different lines, of one group or of several: .+",
    ],
    "stuck": [
        "<C> (?:is|are) stuck in [\\w ]+?<IN>, and no other rank waits for (?P<them>it|them)<LOST>",
        "<C> sleeps? in [\\w ]+?<IN>, and no other rank waits for (?P<them>it|them)<LOST>",
        f"<C> (?:is|are) stuck: {RANKS} in .+, and no other rank waits for them<LOST>",
        FROZEN,
    ],
    "unknown": [
        f"{RANKS} did not end; it is unknown which rank is waited for",
        f"(?P<inside>{RANKS}) waits? in (?P<operation>.+?); it is unknown for which rank",
        f"(?P<inside>{RANKS}) waits? in (?P<operation>.+?); of the \\d+ members .+",
        f"(?P<inside>{RANKS}) waits? in (?P<operation>.+?): (?P<come>\\d+) of \\d+ members .+",
    ],
}


@dataclass(frozen=True, slots=True)
class Page:
    """A verdict, and what is said about it.

    Attributes:
        verdict: As in verdict.json.
        lines: The lines of the page on the terminal.
    """

    verdict: Json
    lines: Sequence[str]

    @property
    def diagnosis(self) -> Json:
        """The diagnosis of the verdict."""
        found: Json = self.verdict["diagnosis"]
        return found

    @property
    def waits(self) -> Mapping[int, Json | None]:
        """The operation of each rank that waits; None: a file lock, or unknown."""
        return {each["rank"]: each["operation"] for each in self.diagnosis["waits_for"]}

    def result(self, rank: int) -> Json:
        """Return the result of a rank."""
        for each in self.verdict["rank_results"]:
            spans = each.get(
                "ranks", [[each["rank"]] * 2]
            )  # of a class of ranks, if there are many
            if any(first <= rank <= last for first, last in spans):
                return dict(each, rank=rank)
        raise AssertionError(f"no result of rank {rank}")

    def is_in(self, rank: int, text: str) -> bool:
        """Return whether a rank waits in the operation with this text, and in no other one."""
        operation = self.waits.get(rank)
        if rank in self.waits:
            return operation is not None and self.has_title(operation, text, rank)
        # It waits, but not for the culprits.
        others = [each for each in self.result(rank)["operations"] if each["is_waited"]]
        return any(self.has_title(each, text, rank) for each in others)

    @property
    def ranks(self) -> Sequence[int]:
        """All ranks."""
        return range(self.verdict["world_size"])

    def has_begun(self, rank: int, text: str) -> bool:
        """Return whether a numbered operation with this text has not ended in a rank."""
        found = [e for e in self.result(rank)["operations"] if f" #{e['sequence']}" in text]
        return any(self.has_title(each, text, rank) for each in found)

    def has_title(self, operation: Json, text: str, rank: int) -> bool:
        """Return whether a text is that of an operation of a rank."""
        if not text.startswith(operation["name"]):
            return False
        rest = text.removeprefix(operation["name"])
        if group := GROUP.search(rest):
            if not self.is_group(operation["group"], group[1]):
                return False
            rest = rest[: group.start()] + rest[group.end() :]
        if number := re.match(r" #(\d+)", rest):
            if int(number[1]) != operation["sequence"]:
                return False
            rest = re.sub(r"^ \(tag \d+\)", "", rest[number.end() :])
        details = {
            each["detail"]
            for each in self.result(rank)["operations"]
            if (each["name"], each["group"]) == (operation["name"], operation["group"])
        }
        detail = rest.strip()
        return not detail or not details or bool({detail, detail.strip("'")} & details)

    def is_group(self, group: Sequence[int], text: str) -> bool:
        """Return whether a text names these ranks."""
        if text == "world group":
            return [*group] == [*range(self.verdict["world_size"])]
        if sizes := re.search(r"groups? of (\d+)$", text):
            return len(group) <= int(sizes[1])
        numbers = re.search(rf"{NUMBERS}$", text)
        return numbers is None or is_told(numbers[0], group)


def ranks_of(text: str) -> list[int]:
    """Return the ranks that a text names: "ranks 0-2,5", "ranks 0,8,…,1016"."""
    found: list[int] = []
    parts = re.sub(r"^ranks? | and \d+ more$", "", text).split(",")
    for part in parts:
        if part == "…":
            first, second = (int(each.partition("-")[0]) for each in parts[:2])
            length, last = found[-1] - second + 1, int(parts[-1].partition("-")[0])
            starts = range(2 * second - first, last, second - first)
            found += [rank for start in starts for rank in range(start, start + length)]
        else:
            start, _, end = part.partition("-")
            found += range(int(start), int(end or start) + 1)
    return found


def is_told(text: str, ranks: Collection[int]) -> bool:
    """Return whether a text names exactly these ranks, as far as it is not shortened."""
    found, more = ranks_of(text), re.search(r" and (\d+) more$", text)
    count = len(found) + (int(more[1]) if more else 0)
    return found == sorted(ranks)[: len(found)] and count == len(ranks)


def without_roles(text: str, verdict: Json, *, alone: bool = False) -> str:
    """Return a text in which ranks of roles have their numbers: "engine 0" is "rank 2".

    Args:
        alone: Whether each name is of one sort of ranks, so that a comma begins another clause.
    """
    numbers = {
        (each["role"], each["role_rank"]): each["rank"]
        for each in verdict["rank_results"]
        if each.get("role")
    }
    roles = "|".join(sorted({re.escape(role) for role, _ in numbers}, key=len, reverse=True))
    if not roles:
        return text

    def named(found: re.Match[str]) -> str:
        ranks = [
            numbers[role, own]
            for role, those in re.findall(rf"({roles}) ({NUMBERS})", found[0])
            for own in ranks_of(those)
        ]
        return f"rank{'s' if len(ranks) > 1 else ''} {','.join(map(str, sorted(ranks)))}"

    unit = rf"\b(?:{roles}) {NUMBERS}"
    return re.sub(unit if alone else rf"{unit}(?:, {unit})*", named, text)


def false_claims(page: Page) -> Iterator[str]:
    """Yield what the page says and the verdict does not."""
    kind, summary = page.diagnosis["kind"], page.diagnosis["summary"]
    said = said_in(kind, summary, page.verdict)
    if said is not None:
        yield from disagreeing_verbs(summary)
        yield from false_sentence(page, said)
    elif not (kind == "unknown" and summary in (page.verdict["reason"], NO_END)):
        yield f"no pattern for this sentence of {kind}: {summary}"
    lines = [without_roles(each, page.verdict) for each in page.lines]
    yield from false_notes(page)
    yield from false_rows(page, lines)
    yield from false_evidence(page, lines)
    yield from false_grounds(page, lines)


def said_in(kind: str, summary: str, verdict: Json) -> Mapping[str, str] | None:
    """Return the parts of a headline that was found in a pattern; None if it fits none."""
    lead, colon, circle = summary.partition(": ")
    text = without_roles(lead, verdict) + colon
    text += without_roles(circle, verdict, alone=kind == "deadlock")
    for pattern in SENTENCES[kind]:
        if found := re.fullmatch(expanded(pattern), text):
            return {name: each for name, each in found.groupdict().items() if each}
    return None


def false_notes(page: Page) -> Iterator[str]:
    """Yield which notes on further causes fit no pattern, or give a rank another operation."""
    for note in page.diagnosis["notes"]:
        found = re.fullmatch(r"also (\w+): (.+)", note)
        if found is None:
            continue
        said = said_in(found[1], found[2], page.verdict)
        if said is None:
            yield f"no pattern for this note: {note}"
        elif found[1] != "unknown":
            yield from disagreeing_verbs(found[2])
            yield from false_operations(page, ranks_that_wait(said), {**said, "verb": ""})


def ranks_that_wait(said: Mapping[str, str]) -> str:
    """Return which ranks a headline says to wait in its operations."""
    names = ("waiting", "others", "cycle", "culprits")
    return next((said[name] for name in names if name in said), "")


def expanded(pattern: str) -> str:
    """Return a pattern with its tokens replaced."""
    return re.sub(r"<([A-Z]+)>", lambda found: TOKENS[found[1]], pattern)


def disagreeing_verbs(text: str) -> Iterator[str]:
    """Yield ranks whose number does not agree with their verb."""
    for found in re.finditer(rf"(?<!of )({RANKS}) (waits?|is|are|has|have|sleeps?)\b", text):
        is_one = found[2] in ("waits", "is", "has", "sleeps")
        if is_one != found[1].startswith("rank "):
            yield f"number of {found[0]!r}"


def false_sentence(page: Page, said: Mapping[str, str]) -> Iterator[str]:
    """Yield which parts of the headline are false."""
    diagnosis = page.diagnosis
    for name, told in (
        ("culprits", diagnosis["culprits"]),
        ("waiting", diagnosis["waiting"]),
        ("cycle", diagnosis["cycle"]),
    ):
        if name in said and not is_told(said[name], told):
            yield f"{name} are {told}, not {said[name]}"
    culprits = diagnosis["culprits"]
    if "them" in said and (said["them"] == "it") != (len(culprits) == 1):
        yield f"{said['them']!r} for {culprits}"
    yield from false_operations(page, ranks_that_wait(said), said)
    for rank in ranks_of(said["lockers"]) if "lockers" in said else ():
        if page.waits.get(rank) is not None:
            yield f"rank {rank} waits in an operation, and for no lock"
    yield from false_entries(page, said)
    yield from false_ends(page, said)
    yield from false_sides(page, said)
    yield from false_circle(page, said)


def false_entries(page: Page, said: Mapping[str, str]) -> Iterator[str]:
    """Yield what is false of an operation that ranks have entered, have left, or lack."""
    culprits = page.diagnosis["culprits"]
    operation = said.get("operation", "")
    inside = [rank for rank in sorted(page.waits) if page.is_in(rank, operation)]
    begun = [rank for rank in page.ranks if page.has_begun(rank, operation)]
    if "inside" in said and not is_told(said["inside"], inside):
        yield f"{inside} wait in {operation}, not {said['inside']}"
    if "entered" in said and not is_told(said["entered"], {*inside, *begun}):
        yield f"{inside} and {begun} have entered {operation}, not {said['entered']}"
    if "come" in said and int(said["come"]) != len(inside):
        yield f"{said['come']} have come"
    for rank in ranks_of(said["left"]) if "left" in said else ():
        if page.is_in(rank, operation) or page.has_begun(rank, operation):
            yield f"rank {rank} has not left {said['operation']}"
    if "missed" in said:
        lacking = {
            each
            for wait in page.diagnosis["waits_for"]
            if page.is_in(wait["rank"], said["missed"])
            for each in (wait["for"] or culprits)
        }
        if not lacking.issuperset(culprits):
            yield f"nobody waits for {culprits} in {said['missed']}"
    if "waiter" in said and not page.is_in(ranks_of(said["waiter"])[0], said["missed"]):
        yield f"{said['waiter']} is not in {said['missed']}"


def false_operations(page: Page, ranks: str, said: Mapping[str, str]) -> Iterator[str]:
    """Yield for which ranks the operation is not the one that the sentence gives them."""
    those = ranks_of(ranks) if ranks else []
    known = [rank for rank in those if page.waits.get(rank) is not None]
    if one := said.get("in_one"):
        yield from (f"rank {rank} is not in {one}" for rank in those if not page.is_in(rank, one))
    elif several := said.get("in_several"):
        listed: list[int] = []
        for part in re.split(rf", (?={RANKS} in )", several):
            who, _, operation = part.partition(" in ")
            listed += ranks_of(who)
            for rank in ranks_of(who) if operation != "other operations" else ():
                if not page.is_in(rank, operation):
                    yield f"rank {rank} is not in {operation}"
        if sorted(listed) != known:
            yield f"{known} are in operations, not {listed}"
    elif known and said.get("verb") and "left" not in said and not said.get("missed"):
        yield f"the operations of {known} are not told"


def false_ends(page: Page, said: Mapping[str, str]) -> Iterator[str]:
    """Yield what is false of the ends of culprits."""
    for result in map(page.result, page.diagnosis["culprits"]):
        rank, code = result["rank"], result["exit_code"]
        if "returned" in said and result["error"] is not None:
            yield f"rank {rank} has raised"
        if "error" in said and result["error"] is not None:
            name = result["error"]["type"].rpartition(".")[2]
            if not said["error"].startswith(name):
                yield f"rank {rank} has raised {name}"
        if "stopped" in said and result["label"] != "STOPPED":
            yield f"rank {rank} is not stopped"
        ended = said.get("ended", "")
        if ended.startswith("exited") and ended != f"exited with code {code}":
            yield f"rank {rank} has the exit code {code}"
        if ended.startswith("was killed") and result["signal"] is None:
            yield f"rank {rank} was not killed"


def false_sides(page: Page, said: Mapping[str, str]) -> Iterator[str]:
    """Yield what is false of the sides of a mismatch."""
    if "sides" in said:
        for part in re.split(rf", (?={RANKS} (?:is|are) in )", said["sides"]):
            who, _, operation = re.sub(f"{WHOSE}$", "", part).partition(" in ")
            for rank in ranks_of(re.sub(" (?:is|are)$", "", who)):
                if not page.is_in(rank, operation):
                    yield f"rank {rank} is not in {operation}"
    if "diverged" in said and said["diverged"] != page.diagnosis["divergence"]["summary"]:
        yield "another parting"


def false_circle(page: Page, said: Mapping[str, str]) -> Iterator[str]:
    """Yield what is false of the ranks that wait for each other."""
    if "circle" in said:
        parts = re.split(r", (?=rank \d+ waits in )", said["circle"])
        for part in parts:
            who, _, rest = part.partition(" waits in ")
            operation, _, whom = rest.rpartition(" for ")
            (rank,), ahead = ranks_of(who), ranks_of(whom)
            is_lock = operation == "the lock of a file" and page.waits.get(rank) is None
            if not is_lock and not page.is_in(rank, operation):
                yield f"rank {rank} is not in {operation}"
            lacks = [e["for"] for e in page.diagnosis["waits_for"] if e["rank"] == rank]
            if not any({*ahead} <= {*each} for each in lacks):
                yield f"rank {rank} does not wait for {whom}"
        if len(parts) != len(page.diagnosis["cycle"]):
            yield f"{len(parts)} of a circle of {len(page.diagnosis['cycle'])}"


ROW = re.compile(rf"  ([► ]) ({RANKS}) {{2,}}(\S+)(?: \+[\d.]+ s)?(?: {{2,}}(.*))?")


def false_rows(page: Page, lines: Sequence[str]) -> Iterator[str]:
    """Yield what is false in the table of ranks."""
    shown: list[int] = []
    marked: list[int] = []
    for mark, who, state, details in (m.groups() for line in lines if (m := ROW.fullmatch(line))):
        shown += ranks_of(who)
        marked += ranks_of(who) if mark == "►" else []
        for result in map(page.result, ranks_of(who)):
            if not is_state(page, result, state, re.split(" {2,}", details or "")[0]):
                yield f"rank {result['rank']} is not {state} {details}"
    is_whole = not any("more groups of ranks" in each for each in lines)
    if is_whole and sorted(shown) != [*range(page.verdict["world_size"])]:
        yield f"the table has {sorted(shown)}"
    diagnosis = page.diagnosis
    cycle = diagnosis["cycle"]
    blamed = diagnosis["culprits"] or (cycle if len(cycle) == 1 else [])
    if is_whole and blamed and sorted(marked) != blamed:
        yield f"{blamed} are to blame, not {marked}"


def is_state(page: Page, result: Json, state: str, details: str) -> bool:
    """Return whether a row shows what a rank did."""
    rank, outcome = result["rank"], result["outcome"]
    if state in ("crashed", "exited"):
        return outcome == "crashed" and (state == "exited") == (result["exit_code"] == 0)
    if state == "waiting" and details.startswith("in "):
        text = re.sub(" of its child .*", "", details.removeprefix("in "))
        waits = page.waits.get(rank)
        if waits is not None and page.has_title(waits, text, rank):
            return True
        others = (each for each in result["operations"] if each["is_waited"])
        return any(
            page.has_title(each, text, rank)
            for each in others
            if waits is None or (each["name"], each["group"]) != (waits["name"], waits["group"])
        )
    return state in (outcome, (result["label"] or "").lower(), "serving")


def false_evidence(page: Page, lines: Sequence[str]) -> Iterator[str]:
    """Yield which evidence has other ranks in the verdict, or is of an operation of no rank."""
    begin = next((n for n, each in enumerate(lines) if each.startswith("  evidence  ")), len(lines))
    for line in lines[begin:]:
        found = re.match(rf"  (?:evidence| {{8}})  ({RANKS}): (.*)", line)
        if found is None and not line.startswith(" " * 12):
            return
        if found is None:
            continue  # a line that was folded
        facts = page.diagnosis["evidence"]
        exact = [each for each in facts if each["fact"] == found[2]]  # else the line was folded
        facts = exact or [each for each in facts if each["fact"].startswith(found[2])]
        ranks = {each["rank"] for each in facts}
        if not is_told(found[1], ranks):
            yield f"evidence of {sorted(ranks)}: {line}"
        entered = re.fullmatch(r"entered (.+)", found[2])
        for rank in ranks_of(found[1]) if entered else ():
            operations = [*page.result(rank)["operations"], page.waits.get(rank)]
            is_known = any(each and page.has_title(each, entered[1], rank) for each in operations)
            is_there = page.result(rank)["outcome"] == "hung" and rank in page.waits
            if is_there and not is_known and not entered[1].startswith("no operation"):
                yield f"rank {rank} has not entered {entered[1]}"


def false_grounds(page: Page, lines: Sequence[str]) -> Iterator[str]:
    """Yield what is false in the sentences that say why the world was ended."""
    text = " ".join(each.strip() for each in lines)
    for found in re.finditer(rf"({RANKS}) still in the", text):
        for result in map(page.result, ranks_of(found[1])):
            if result["outcome"] not in ("hung", "collateral", "failed", "error", "crashed"):
                yield f"rank {result['rank']} is not still in the test"
    for found in re.finditer(rf"({RANKS}) sleeps? for another", text):
        for rank in ranks_of(found[1]):
            if page.waits.get(rank) is not None or page.result(rank)["label"] != "SLEEPING":
                yield f"rank {rank} does not only sleep"


def page_of(judged: Judgement, record: Json) -> Page:
    """Return the page of a judged world."""
    (section, *_) = page_sections(judged, files="-")
    lines = (f"{judged.finding.word}: {judged.finding.reason}", *section.text.splitlines())
    return Page(json.loads(json.dumps(record)), lines)


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.partition(".")[0])
def test_all_that_a_page_says_is_in_the_verdict(path: Path, tmp_path: Path) -> None:
    """Ranks, operations, numbers and ends: no sentence adds to what was seen."""
    record: Json = json.loads(gzip.decompress(path.read_bytes()))
    for name in ("facts", "verdict"):
        (tmp_path / f"{name}.json").write_text(json.dumps(record[name]))
    again = rejudge(tmp_path, files_below([tmp_path]))
    assert [*false_claims(page_of(again.judged, again.verdict.record()))] == []


ALL = (0, 1, 2, 3)
MADE = operation("init_process_group", group=ALL, scope=Scope("creation"), sequence=2)
GATHER = operation("all_gather", group=ALL, ordinal=1, payload=(("Long", 1),))
REDUCE = operation("all_reduce", group=ALL)
OF_PAIR = operation("all_reduce", group=(0, 3), since_s=2.0)


def key(name: str) -> Operation:
    """Return a wait for a key of the store."""
    return operation("store.wait", kind="wait", group=ALL, detail=name)


def inside(*operations: Operation | None, label: Label = "SLEEPING", **more: Any) -> WorldResult:  # noqa: ANN401
    """Return a hang whose ranks wait in these operations; one without has another label."""
    ranks = tuple(
        seen(rank, each) if each is not None else seen(rank, label=label)
        for rank, each in enumerate(operations)
    )
    given = {"history": history_of_a_hang(len(ranks)), **more}
    return world(
        len(ranks),
        **given,
        snapshots=(WorldSnapshot(at_s=9.0, reason="end", ranks=ranks),),
        operations=tuple(page(rank, each) for rank, each in enumerate(operations) if each),
    )


def left_by_0() -> WorldResult:
    """Return ranks in a rendezvous that rank 0 has left."""
    result = inside(GATHER, MADE, MADE, MADE)
    before = page(0, replace(MADE, ended_s=1.5, waited_s=None), GATHER)
    return replace(result, operations=(before, *result.operations[1:]))


def exits(rank: int, code: int) -> list[Event]:
    """Return the events of four ranks, of which one exits in its test."""
    return [
        *in_tests(ALL),
        make_event(5.0, rank, "exited", exited(code)),
        *ended([each for each in ALL if each != rank], 9.0),
    ]


WORLDS: Mapping[str, tuple[WorldResult, str]] = {
    "keys": (
        inside(key("a"), key("b"), key("b"), None),
        (
            "ranks 0-2 wait for something that rank 3 did not provide: rank 0 in store.wait a,"
            " ranks 1,2 in store.wait b"
        ),
    ),
    "exit 0": (
        inside(REDUCE, OF_PAIR, None, None, history=exits(3, 0), ending="settled"),
        (
            "rank 3 exited with code 0 in the test, before it had reported; ranks 0,1 wait for it:"
            " rank 0 in all_reduce #1 (world group), rank 1 in all_reduce #1 (group 0,3)"
        ),
    ),
    "stopped": (
        inside(REDUCE, REDUCE, REDUCE, None, label="STOPPED", ending="stopped"),
        (
            "rank 3 is stopped by a signal such as SIGSTOP; ranks 0-2 wait for it in all_reduce #1"
            " (world group)"
        ),
    ),
    "left": (
        left_by_0(),
        (
            "ranks 1-3 wait in init_process_group, which rank 0 has left; rank 0 now waits in"
            " all_gather #1 (2nd group 0,1,2,3)"
        ),
    ),
}


def judged_page(result: WorldResult) -> Page:
    """Return the page of a world that was made by hand."""
    judged = judge_world(result, Symptoms(), SourceContext(""))
    return page_of(judged, build_verdict(judged, Attempt("run", "folder", None, {})).record())


@pytest.mark.parametrize("name", WORLDS)
def test_headlines_that_were_once_false_are_true(name: str) -> None:
    """One operation for all, a crash with 0, who stopped a rank, and an operation that is left."""
    result, summary = WORLDS[name]
    found = judged_page(result)
    assert found.diagnosis["summary"] == summary
    assert [*false_claims(found)] == []
    assert not re.search(r"crashed.* code 0\b", "\n".join(found.lines))


FALSE = {
    "keys": "ranks 0-2 wait in store.wait a for something that rank 3 did not provide",
    "exit 0": "rank 3 exited with code 1 in the test; ranks 0,1 wait for it",
    "stopped": "rank 3 is stopped from outside the test; ranks 0-2 wait for it in all_reduce #1",
    "left": "ranks 0-3 have entered init_process_group, and nothing moves",
}


@pytest.mark.parametrize("name", FALSE)
def test_a_false_headline_is_noticed(name: str) -> None:
    """That of the same world, as it was once."""
    found = judged_page(WORLDS[name][0])
    diagnosis = {**found.diagnosis, "summary": FALSE[name]}
    assert [*false_claims(replace(found, verdict={**found.verdict, "diagnosis": diagnosis}))]
