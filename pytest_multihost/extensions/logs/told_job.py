"""Joins the facts in the lines of a job's logs to a world, and judges it like any other.

A fact that the log lacks is unknown: a rank without a line may also have been waiting. So the
headline names the condition under which it is true, and no verdict from logs is certain.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeVar

from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.model.collectives import C10D, of_function
from pytest_multihost.core.model.event import Exited, Interrupted, RaisedError
from pytest_multihost.core.model.operation import (
    GroupKey,
    Operation,
    Operations,
    Scope,
    group_by_value,
)
from pytest_multihost.core.model.origin import Known, Origin
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.model.result import (
    Activity,
    RankSnapshot,
    WorldResult,
    WorldSnapshot,
    utc_text,
)
from pytest_multihost.core.model.setting_values import MAX_RANKS
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import (
    Dump,
    Frame,
    SourceContext,
    ThreadStack,
    innermost_user_frame,
)
from pytest_multihost.core.model.verdict import Diagnosis, Evidence, Outcome, RankError, sentence
from pytest_multihost.core.outcome import Finding, RankFacts, RankFinding, Symptoms, describe_exit
from pytest_multihost.core.outcome.finding import suspected_hang
from pytest_multihost.core.outcome.symptoms import is_closed_connection
from pytest_multihost.core.torch_private import BACKWARD
from pytest_multihost.extensions.logs.groups import Placed, groups_of, numbered, placed
from pytest_multihost.extensions.logs.readers.barriers import JAX_FATAL, MONITORED, barrier_name
from pytest_multihost.extensions.logs.readers.mismatches import MESSAGE
from pytest_multihost.extensions.logs.readers.nccl_watchdog import CALL, DEFAULT
from pytest_multihost.extensions.logs.said import (
    Absent,
    Behind,
    Counted,
    Ended,
    Raised,
    ReadStack,
    Remark,
    Restarted,
    Said,
    Waited,
)

K = TypeVar("K")
V = TypeVar("V")

_LOG = Origin(
    detected_by="log", ground=lambda _: "the log says so", is_counted=False, is_ordered=False
)

_STACKS = replace(_LOG, ground=lambda _: "by the stacks that the log has", is_proof=False)
"""Stacks alone: they are of one moment, and ranks that go on have such stacks, too."""

MAX_FACTS = 50_000
"""The most facts of one kind that are kept."""

_OF_ALL = re.compile(
    r"monitoredBarrier|Detected mismatch between collectives|Barrier timed out"
    r"|GetKeyValue\(\) timed out"
)
"""Exceptions that say that other ranks are missing or in other collectives."""

_BARRIER_ID = re.compile(r"Barrier timed out\. Id: (\S{1,200})")
_KEY = re.compile(r"GetKeyValue\(\) timed out with key: (\S{1,200})")
_DUMPS_NEXT_TIME = (
    "the log does not show the lines of code: set TORCH_FR_BUFFER_SIZE=2000"
    " (TORCH_NCCL_TRACE_BUFFER_SIZE in older versions of torch) and TORCH_NCCL_DUMP_ON_TIMEOUT=1,"
    " and next time `multihost explain` reads the dumps"
)
_ATTACH_NEXT_TIME = (
    "the log does not show what a rank does that prints nothing: run `multihost attach` on its"
    " machine while the job hangs"
)
_ALIVE = (
    "rank {0} was alive, although jax's service had missed its heartbeats ({1}): a lock or the"
    " network held them"
)
_NO_HEARTBEATS = (
    "jax's service only knows that heartbeats of rank {0} did not come ({1}): its own log shows"
    " whether it is gone"
)
_ORDERED = "the ranks failed in the order of their logs"
_TRANSFER = re.compile(r"(send|recv)(_object_list)?|batch_isend_irecv")
_BACKWARD = "of a backward pass"
_MODULE = "<module>"
_RUNTIMES = ("/torch/", "/jax/", "/jaxlib/")
_PLACE = re.compile(r":\d+$")
_SIGTERM = 15
_ABORT = 6
_MAX_PRINTED = 200
_LAUNCHERS = ("torch.distributed.elastic", "subprocess.CalledProcessError")
_MAX_PLACES = 4


@lru_cache(4)
def _everyone(size: int) -> tuple[int, ...]:
    return tuple(range(size))


@dataclass(slots=True)
class LogFacts:
    """The facts in all lines of a job, by kind; each kind is bounded."""

    waited: dict[tuple[int | None, int | None, str | None, int, str], Waited] = field(
        default_factory=dict
    )
    counted: dict[tuple[int, str, bool, int | None], Counted] = field(default_factory=dict)
    absent: dict[tuple[str, tuple[int, ...], tuple[int, ...]], Absent] = field(default_factory=dict)
    behind: dict[str, Behind] = field(default_factory=dict)
    raised: dict[str, Raised] = field(default_factory=dict)
    ended: dict[tuple[int | None, str, str], Ended] = field(default_factory=dict)
    standing: dict[tuple[str, int | None], ReadStack] = field(default_factory=dict)
    remarks: dict[str, Remark] = field(default_factory=dict)
    is_cut: bool = False

    def add(self, said: Said) -> None:
        """Keep a fact, unless there are too many of its kind, or no world has its ranks."""
        if isinstance(said, Restarted):
            self._forget(said)
        elif all(rank < MAX_RANKS for rank in _ranks_of(said)):
            self._add(said)

    def _add(self, said: Said) -> None:
        match said:
            case Waited():
                key = (said.rank, said.inner, said.group, said.sequence, said.name)
                self._keep(self.waited, key, said)
            case Counted():
                self._keep(
                    self.counted, (said.rank, said.group, said.is_asked, said.enqueued), said
                )
            case Absent():
                self._keep(self.absent, (said.barrier, said.missing, said.waiting), said)
            case Behind():
                self._keep(self.behind, said.at, said, replaces=True)
            case Raised():
                self._keep(self.raised, said.at, said, replaces=True)
            case Ended():
                self._keep(self.ended, (said.rank, said.by, said.why), said)
            case ReadStack():
                self._keep(self.standing, (said.at, said.rank), said, replaces=True)
            case Remark():
                self._keep(self.remarks, said.text, said)

    def _forget(self, restart: Restarted) -> None:
        kinds: tuple[dict[Any, Any], ...] = (
            self.waited,
            self.counted,
            self.absent,
            self.behind,
            self.raised,
            self.ended,
            self.standing,
            self.remarks,
        )
        for each in kinds:
            gone = [key for key, fact in each.items() if _is_before(fact.at, restart.failed)]
            for key in gone:
                del each[key]
        text = "torchrun has started the ranks again: what stands above is left out"
        self.remarks[text] = Remark(restart.at, text)

    def _keep(self, kept: dict[K, V], key: K, value: V, *, replaces: bool = False) -> None:
        if key in kept:
            if replaces:
                kept[key] = value
        elif len(kept) < MAX_FACTS:
            kept[key] = value
        else:
            self.is_cut = True


def _is_before(at: str, other: str | None) -> bool:
    """Return whether a line is before another one of the same input; None is behind all."""
    name, _, number = at.rpartition(":")
    of, _, limit = (other or "").rpartition(":")
    return other is None or (name == of and int(number) <= int(limit))


def _ranks_of(said: Said) -> Iterator[int]:
    """Yield the ranks that a fact names."""
    match said:
        case Absent():
            yield from (*said.missing, *said.waiting)
        case Behind():
            yield from said.listed
        case Remark() | Restarted():
            return
        case _:
            if said.rank is not None:
                yield said.rank
            if isinstance(said, Counted) and said.asked_by is not None:
                yield said.asked_by


@dataclass(slots=True)
class _Job:
    """The world that facts make: each rank's wait, entered collectives and failures.

    Attributes:
        size: How many ranks it has, as far as the log shows.
        is_size_said: Whether a line says how many there are.
        is_of_nccl: Whether NCCL's watchdog has printed lines.
        is_said: Whether anything but stacks says that a rank waits.
        places: By rank, the line that says how it has failed.
        conditions: The conditions under which the headline is true, each after "if".
        said: Ranks of which something is known that a verdict may use.
        silent: Ranks of which nothing is known, but which others may wait for.
        asked: The silent ranks that only got the signal to dump.
        moved: Ranks of which the last two stacks differ, with the line of the last one.
        asked_by: Ranks that wait in a collective of which nothing but its number is known.
    """

    size: int
    is_size_said: bool
    is_of_nccl: bool = False
    is_said: bool = True
    operations: dict[int, list[Operation]] = field(default_factory=dict)
    entered: dict[int, dict[GroupKey, int]] = field(default_factory=dict)
    activities: dict[int, Activity] = field(default_factory=dict)
    findings: dict[int, RankFinding] = field(default_factory=dict)
    dumps: dict[int, Dump] = field(default_factory=dict)
    said: set[int] = field(default_factory=set)
    silent: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    asked_by: set[int] = field(default_factory=set)
    moved: dict[int, str] = field(default_factory=dict)
    parted: tuple[tuple[Operation, tuple[int, ...]], ...] = ()
    conditions: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    places: dict[int, str] = field(default_factory=dict)

    def waits(self, rank: int, operation: Operation) -> None:
        self.operations.setdefault(rank, []).append(operation)
        self.has_entered(rank, operation.group_key, operation.sequence)

    def has_entered(self, rank: int, group: GroupKey, number: int) -> None:
        own = self.entered.setdefault(rank, {})
        own[group] = max(number, own.get(group, 0))
        self.said.add(rank)


def judge_logs(facts: LogFacts, name: str, context: SourceContext, symptoms: Symptoms) -> Judgement:
    """Return the judgement of a job from the facts in its logs.

    Args:
        name: The name of the logs in the report.
        symptoms: How exceptions look that follow from another rank's failure.
    """
    job = _job_of(facts, symptoms)
    finding = _finding(job)
    result = _result(job, name)
    if finding.outcome == "passed":
        return Judgement(result, finding, None, context)
    judged = judge_world(result, Symptoms(), context, finding=finding)
    found = judged.diagnosis
    if job.parted and not (found is not None and found.kind in ("died", "raised")):
        judged, found = _as_parted(job, judged)
    if found is None:
        return replace(judged, finding=_without_times(judged.finding, ()))
    found = _with_conditions(job, found)
    notes = [each for each in found.notes if not each.startswith("also unknown")]
    found = replace(
        found,
        evidence=tuple(_with_lines(found.evidence, job)),
        notes=(*notes, *job.notes, *_cannot_tell(job, found)),
    )
    told = judged.finding
    if told.outcome == "hung":
        told = replace(told, reason=found.summary)
    elif _ORDERED in job.conditions:
        told = replace(told, reason=f"{told.reason}; true if {_ORDERED}")
    return replace(judged, diagnosis=found, finding=_without_times(told, found.culprits))


def _without_times(finding: Finding, culprits: Sequence[int]) -> Finding:
    """Return the finding for the page: the order of lines is not a time."""
    ranks = tuple(
        replace(
            each,
            at_s=None,
            outcome="hung"
            if each.facts.rank in culprits and each.outcome == "passed"
            else each.outcome,
        )
        for each in finding.ranks
    )
    return replace(finding, ranks=ranks)


def _with_lines(evidence: Sequence[Evidence], job: _Job) -> Iterator[Evidence]:
    """Yield the evidence with the lines of the log; those of ranks with the same fact are one."""
    lines: dict[str, list[str]] = {}
    for each in evidence:
        at = each.source if _PLACE.search(each.source) else job.places.get(each.rank, "")
        lines.setdefault(each.fact, []).extend([at] if at else [])
    for each in evidence:
        own = list(dict.fromkeys(lines[each.fact]))
        more = f" and {len(own) - 1} more" if len(own) > 1 else ""
        where = f" ({own[0]}{more})" if own else ""
        yield Evidence(each.rank, f"{each.fact}{where}", "log")


def _cannot_tell(job: _Job, found: Diagnosis) -> Iterator[str]:
    """Yield the facts that the log lacks, and how to get them next time."""
    if not (job.is_size_said or job.dumps or {*found.culprits} & job.silent):
        yield f"the highest rank in the log is {job.size - 1}: the world may have more"
    if found.kind in ("died", "raised"):
        return
    has_lines = any(each.frame for own in job.operations.values() for each in own)
    if job.is_of_nccl and not has_lines:
        yield _DUMPS_NEXT_TIME
    elif not job.dumps:
        yield _ATTACH_NEXT_TIME


def _with_conditions(job: _Job, found: Diagnosis) -> Diagnosis:
    """Return a diagnosis with the conditions under which it is true; it is never certain."""
    confidence = "likely" if found.confidence == "certain" else found.confidence
    conditions = [*job.conditions]
    if asked := sorted({*found.culprits} & job.asked):
        had = "had nothing open when it" if len(asked) == 1 else "had nothing open when they"
        conditions.insert(0, f"{PLAIN.of(asked)} {had} got the signal to dump")
    silent = sorted({*found.culprits} & (job.silent - job.asked))
    if silent:
        many = len(silent) > 1
        who = f"{PLAIN.of(silent)} {'have' if many else 'has'} no line of it"
        conditions.insert(0, f"the log is whole: {who}")
        if not job.is_size_said:
            conditions.insert(0, f"the world has {job.size} ranks")
    if not conditions or found.kind == "unknown":
        return replace(found, confidence=confidence)
    text = f"; true if {' and '.join(dict.fromkeys(conditions))}"
    return replace(found, confidence=confidence, headline=sentence(found.headline, text))


def _as_parted(job: _Job, judged: Judgement) -> tuple[Judgement, Diagnosis | None]:
    """Return the judgement of ranks that wait at different numbers: they have parted earlier."""
    names = judged.result.spec.names
    found = judged.diagnosis
    if found is None:
        return judged, None
    sides = sorted(job.parted, key=lambda each: (len(each[1]), each[0].sequence))
    low = min(each.sequence for each, _ in sides if each.sequence)
    words = ", ".join(
        f"{names.of(ranks)} {'waits' if len(ranks) == 1 else 'wait'} in {each.title}"
        for each, ranks in sides
    )
    is_odd = len(sides) > 1 and len(sides[0][1]) < len(sides[-1][1])
    ranks = [rank for _, theirs in sides for rank in theirs]
    odd = sides[0][1] if is_odd else tuple(sorted(ranks))
    found = replace(
        found,
        kind="mismatch",
        confidence="likely",
        culprits=odd,
        waiting=tuple(sorted({*ranks} - {*odd})),
        operation=None,
        headline=sentence(f"ranks have parted before #{low}: {words}"),
    )
    return replace(judged, diagnosis=found), found


def _job_of(facts: LogFacts, symptoms: Symptoms) -> _Job:
    size, is_said = _size(facts)
    job = _Job(
        size,
        is_said,
        is_of_nccl=bool(
            facts.counted
            or facts.behind
            or any(not (each.group or "").startswith(MESSAGE) for each in facts.waited.values())
        ),
    )
    _add_groups(job, facts)
    barriers: dict[str, list[Absent]] = {}
    for absent in facts.absent.values():
        barriers.setdefault(absent.barrier, []).append(absent)
    for absents in barriers.values():
        _add_barrier(job, absents)
    if facts.behind:
        _add_behind(job, [*facts.behind.values()][-1])
    if not job.operations:
        _add_stacks(
            job, [each for each in facts.standing.values() if each.frames and each.tool != CALL]
        )
    for call in facts.standing.values():
        if call.tool == CALL and call.rank is not None:
            _add_call(job, call.rank, call.frames)
    _add_failures(job, facts, symptoms)
    if job.dumps and not any("imed out" in each.summary for each in job.findings.values()):
        _add_stillness(job)
    for remark in facts.remarks.values():
        job.notes.append(f"{remark.text} ({remark.at})")
    if facts.is_cut:
        job.notes.append(f"the log says more than is read: {MAX_FACTS} facts of one kind")
    return job


def _size(facts: LogFacts) -> tuple[int, bool]:
    """Return how many ranks the job has, and whether a line says so."""
    sizes = [each.size for each in facts.absent.values() if each.size]
    sizes += [sum(count for count, _ in each.counts) for each in facts.behind.values()]
    known, taken, _ = numbered(facts.waited.values())
    heard = [each.rank for each in (*known, *taken) if each.rank is not None]
    heard += [rank for rank, *_ in facts.counted]
    heard += [each.asked_by for each in facts.counted.values() if each.asked_by is not None]
    heard += [rank for each in facts.absent.values() for rank in (*each.missing, *each.waiting)]
    heard += [rank for rank, *_ in facts.ended if rank is not None]
    heard += [e.rank for e in facts.raised.values() if e.rank is not None]
    heard += [e.rank for e in facts.standing.values() if e.rank is not None]
    heard += [rank for each in facts.behind.values() for rank in each.listed]
    most = max(heard, default=0) + 1
    said = max(sizes, default=0)
    return max(1, min(MAX_RANKS, max(most, said))), said >= most


def _add_groups(job: _Job, facts: LogFacts) -> None:
    known, taken, others = numbered(facts.waited.values())
    groups = groups_of((*known, *taken), facts.counted.values())
    if taken:
        job.conditions.append("the lines number the ranks as the world does")
    for other in others[:1]:
        text = "the lines do not say which ranks of the world wait in groups"
        job.notes.append(f"{text} ({other.at} and {len(others) - 1} more)")
    waited = [each for each in groups if each.waits]
    for number, group in enumerate(waited):
        one = placed(group, job.size, number + 1)
        _add_placed(job, one, is_default=group.key == DEFAULT)
    if not waited:
        _add_asked(job, facts)
    for group in groups:
        if group.key == DEFAULT and not group.waits:
            for rank, last in group.idle.items():
                job.said.add(rank)
                text = f"it has completed all {last} collectives of the default group"
                job.activities.setdefault(rank, Activity("idle", text))
    if len(waited) > 1:
        names = ", ".join(f"{PLAIN.of(each.waits)} in {each.key}" for each in waited)
        job.notes.append(f"ranks wait in several groups at once: {names}")


def _add_placed(job: _Job, one: Placed, *, is_default: bool) -> None:
    for rank, operation in one.operations.items():
        job.waits(rank, operation)
    for rank, number in one.entered.items():
        job.has_entered(rank, one.key, number)
        if rank not in one.operations and rank not in one.held:
            text = f"it has nothing open in this group; its last one was #{number}"
            job.activities[rank] = Activity("idle", text)
    for rank in one.held:
        text = "has not completed what the others have, although it has launched what they wait in"
        job.activities[rank] = Activity("held", text)
        job.notes.append(
            f"{PLAIN.of([rank])} has launched all: its device or the transport holds it"
        )
    job.parted = job.parted or one.parted
    if is_default:
        _add_silent(job, one.silent - one.asked, len(one.operations))
    if one.asked and not one.all_joined:
        job.silent |= one.asked
        job.asked |= one.asked
        for rank in one.asked:
            job.activities[rank] = Activity("asked", "it only got the signal to dump")


def _add_silent(job: _Job, silent: frozenset[int], waiting: int) -> None:
    """Take ranks without a line as awaited ranks, if they are fewer than the others."""
    if 0 < len(silent) < waiting:
        job.silent |= silent


def _add_asked(job: _Job, facts: LogFacts) -> None:
    """Add the waits of ranks that are named only by others: they asked them to dump."""
    for each in facts.counted.values():
        if each.asked_by is None or each.group != DEFAULT or each.enqueued is None:
            continue
        if each.enqueued != each.completed:
            continue
        operation = _collective(job, "a later collective", each.enqueued + 1, each.at)
        job.waits(each.asked_by, operation)
        job.has_entered(each.rank, operation.group_key, each.enqueued)
        text = f"it has nothing open in the default group; its last one was #{each.enqueued}"
        job.activities[each.rank] = Activity("idle", text)
        job.conditions.append(f"{PLAIN.of([each.asked_by])} waits in the default group")
        job.asked_by.add(each.asked_by)


def _add_barrier(job: _Job, absents: Sequence[Absent]) -> None:
    """Add the facts in messages about one barrier."""
    missing = {rank for each in absents for rank in each.missing}
    waiting = {rank: each.at for each in absents for rank in each.waiting}
    if missing and not waiting:
        waiting = {rank: absents[0].at for rank in range(job.size) if rank not in missing}
        job.conditions.append("the barrier's message names all that did not come")
    for rank, at in waiting.items():
        job.waits(rank, _barrier(job, absents[0].barrier, at))
    for rank in missing:
        job.has_entered(rank, _barrier(job, absents[0].barrier, "").group_key, 0)


def _barrier(job: _Job, name: str, at: str) -> Operation:
    is_gloo = name == MONITORED
    found = _collective(job, MONITORED if is_gloo else "wait_at_barrier", 1, at)
    return replace(found, scope=Scope("barrier", name), detail="" if is_gloo else name)


def _collective(job: _Job, name: str, sequence: int, at: str) -> Operation:
    """Return a collective of all ranks that a line tells of."""
    return Operation(
        name=name,
        kind="collective",
        group=_everyone(job.size),
        sequence=sequence,
        since_s=0.0,
        waited_s=0.0,
        source=at,
    )


def _add_behind(job: _Job, behind: Behind) -> None:
    """Add the counts of RAS: the ranks that it lists may be ahead of all others, or behind."""
    numbers = {number for _, number in behind.counts}
    theirs = [number for count, number in behind.counts if count == len(behind.listed)]
    low, high = min(numbers, default=0), max(numbers, default=0)
    if numbers != {low, high} or low == high or len(theirs) != 1:
        return
    found = of_function("torch/distributed/distributed_c10d.py", behind.name)
    name = found.name if found is not None else _snake(behind.name)
    listed = frozenset(behind.listed)
    others = frozenset(range(job.size)) - listed
    ahead, late = (listed, others) if theirs[0] == high else (others, listed)
    operation = _collective(job, name, high, behind.at)
    for rank in ahead:
        job.waits(rank, operation)
    for rank in late:
        job.has_entered(rank, operation.group_key, low)
        job.activities[rank] = Activity("behind", f"it has launched {name} up to #{low}")
    job.conditions.append("its communicator has all ranks of the job")
    job.notes.append(
        "NCCL RAS counts at one moment: ask it again, ranks that catch up are only slow"
    )


def _add_call(job: _Job, rank: int, frames: Sequence[Frame]) -> None:
    """Add the line of a call to the only collective that its rank waits in."""
    own = job.operations.get(rank, [])
    if len(own) == 1:
        own[0] = replace(own[0], frame=innermost_user_frame(frames))


def _snake(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")


def _add_stacks(job: _Job, standing: Iterable[ReadStack]) -> None:
    """Add the stacks that a tool has read, and the operations that they show."""
    threads: dict[str, list[ReadStack]] = {}
    for each in standing:
        key = str(each.rank) if each.rank is not None else f"? {each.process}"
        threads.setdefault(key, []).append(each)
    unnamed = [key for key in threads if key.startswith("?")]
    taken = {each.rank for one in threads.values() for each in one}
    free = iter([rank for rank in range(MAX_RANKS) if rank not in taken])
    if unnamed and any(each.frames for key in unnamed for each in threads[key]):
        job.conditions.append("the processes are the ranks in this order")
    for theirs in threads.values():
        rank = theirs[0].rank if theirs[0].rank is not None else next(free)
        mains = [each for each in theirs if each.is_main] or theirs[-1:]
        main = mains[-1]
        if mains[-2:][0].frames != main.frames:  # earlier ones may be from before the hang
            job.moved[rank] = main.at
        if rank >= MAX_RANKS:
            return
        job.size = max(job.size, rank + 1)
        stacks = [ThreadStack(e.thread, e.frames) for e in theirs if e is not main]
        stacks.append(ThreadStack(main.thread, main.frames))
        job.dumps[rank] = Dump(rank, main.tool, tuple(stacks))
        job.said.add(rank)
    _add_calls(job)


def _add_stillness(job: _Job) -> None:
    """Say that the ranks must have stood still, unless several stacks show that they did not."""
    job.is_said = not job.operations
    gone_on = sorted(job.moved.keys() & job.operations.keys())
    if not gone_on:
        job.conditions.append("the ranks stood still when their stacks were taken")
        return
    for rank in gone_on:
        text = f"{PLAIN.of([rank])} went on between its stacks ({job.moved[rank]})"
        job.notes.append(text)
        job.ends.append(text)
    job.operations.clear()


def _add_calls(job: _Job) -> None:
    """Add the operations that the main threads of dumps show."""
    for rank, dump in job.dumps.items():
        frames = dump.main.frames if dump.main is not None else ()
        operation = _of_frames(frames, job.size, "python-frames")
        if operation is not None:
            job.operations.setdefault(rank, []).append(operation)
        elif frames and any(each in frames[0].file for each in _RUNTIMES):
            job.said.discard(rank)
            job.activities[rank] = Activity("unclear", "it is in a runtime's code")
        else:
            job.activities[rank] = Activity("elsewhere", "its stack shows no collective")
    if not job.operations:
        _add_common_call(job)
    if any(each.detail == _BACKWARD for own in job.operations.values() for each in own):
        job.conditions.append("a backward pass that stands still is in DDP's all_reduce")
    names = {each.name for theirs in job.operations.values() for each in theirs}
    waiting = job.dumps.keys() & job.operations.keys()
    if len(names) == 1 and waiting == job.dumps.keys():
        _add_silent(job, frozenset(range(job.size)) - waiting, len(waiting))
    if job.dumps and len(names) > 1:
        job.conditions.append("the ranks' calls are of one group")


def _add_common_call(job: _Job) -> None:
    """Take a function of the user's in which most ranks are as a meeting of all of them.

    Only stacks of three or more ranks show which one is the exception; it must not be in the
    function at all.
    """
    calls: dict[tuple[str, str], list[int]] = {}
    for rank, dump in job.dumps.items():
        frame = innermost_user_frame(dump.main.frames) if dump.main is not None else None
        if frame is not None and frame.function != _MODULE:
            calls.setdefault((frame.file, frame.function), []).append(rank)
    (file, function), inside = max(calls.items(), key=lambda e: len(e[1]), default=(("", ""), []))
    outside = [each for rank, each in job.dumps.items() if rank not in inside]
    is_apart = all(
        each.main is not None
        and not any((f.file, f.function) == (file, function) for f in each.main.frames)
        for each in outside
    )
    silent = frozenset(range(job.size)) - job.dumps.keys()
    if not is_apart or not 0 < len(outside) + len(silent) < len(inside):
        return
    _add_silent(job, silent, len(inside))
    for rank in inside:
        main = job.dumps[rank].main
        found = replace(
            _collective(job, function, 0, ""),
            group_size=None,
            frame=innermost_user_frame(main.frames) if main is not None else None,
            source="python-frames",
        )
        job.operations.setdefault(rank, []).append(found)
        job.activities.pop(rank, None)
    job.conditions.append(f"{function} waits for all ranks")


def _of_frames(frames: Sequence[Frame], size: int, source: str) -> Operation | None:
    """Return the collective or transfer whose function is on a stack, innermost frame first.

    DDP begins its all_reduce in a backward pass, in C++ code that has no frame.
    """
    base = Operation(
        name="",
        kind="collective",
        group=_everyone(size),
        group_size=None if size > 1 else 0,
        sequence=0,
        since_s=0.0,
        waited_s=0.0,
        frame=innermost_user_frame(frames),
        source=source,
    )
    for each in reversed(frames):
        if found := of_function(each.file, each.function):
            return replace(base, name=found.name)
        if each.file.endswith(C10D) and _TRANSFER.fullmatch(each.function):
            return replace(base, name=each.function, kind="transfer")
    end, function = BACKWARD
    if frames and frames[0].file.endswith(end) and frames[0].function == function:
        return replace(base, name="all_reduce", detail=_BACKWARD)
    return None


# Exceptions and ends of processes


def _add_failures(job: _Job, facts: LogFacts, symptoms: Symptoms) -> None:
    first: dict[int, Raised] = {}
    for each in facts.raised.values():
        if each.type.startswith(_LAUNCHERS):
            continue
        if each.rank is None or each.rank >= job.size or not _may_have_ended(each, facts, symptoms):
            what = f"{each.type}: {each.message}"[:_MAX_PRINTED].rstrip(": ")
            who = PLAIN.of([each.rank]) if each.rank is not None else "a process"
            job.printed.append(f"{who} printed {what} ({each.at})")
            continue
        known = first.get(each.rank)
        if known is None or (_is_symptom(known, symptoms) and not _is_symptom(each, symptoms)):
            first[each.rank] = each
    timeouts = [(each.at, each.order) for each in facts.waited.values()]
    for rank, raised in first.items():
        follows = _is_symptom(raised, symptoms) or _is_behind(raised.at, raised.order, timeouts)
        _add_raised(job, rank, raised, is_symptom=follows)
    timeouts += [(e.at, e.order) for e in first.values() if "imed out" in e.message]
    for ended in facts.ended.values():
        if ended.by == "jax" and ended.rank is not None:
            is_alive = first.get(ended.rank) is not None
            job.notes.append((_ALIVE if is_alive else _NO_HEARTBEATS).format(ended.rank, ended.at))
        if ended.rank is None:
            job.ends.append(f"{ended.by}: {ended.why} ({ended.at})")
        elif ended.rank not in job.findings and not _follows_timeout(ended, timeouts):
            _add_ended(job, ended.rank, ended)
    job.notes += [*job.printed, *job.ends]
    _add_unwaited(job)
    _part_those_who_asked(job)
    _order_failures(job, facts)


def _order_failures(job: _Job, facts: LogFacts) -> None:
    """Take torchrun's word for the first one of failures that are in several inputs.

    The inputs have no common order. Without that word, the order is a condition.
    """
    failed = [rank for rank, each in job.findings.items() if each.outcome in ("failed", "crashed")]
    inputs = {job.places[rank].rpartition(":")[0] for rank in failed if rank in job.places}
    if len(failed) < 2 or len(inputs) < 2:  # noqa: PLR2004
        return
    root = next((e.rank for e in facts.ended.values() if e.is_first and e.rank in failed), None)
    if root is None:
        job.conditions.append(_ORDERED)
        return
    known = job.findings[root]
    first = replace(known.facts, failed_s=0.0 if known.facts.failed_s is not None else None)
    job.findings[root] = replace(known, at_s=0.0, facts=first)


def _part_those_who_asked(job: _Job) -> None:
    """Let ranks have parted that wait in a collective while others wait in calls of their own."""
    calls = {rank: own[0] for rank, own in job.operations.items() if rank not in job.asked_by}
    if not job.asked_by or not calls:
        return
    sides = group_by_value((each.title, rank) for rank, each in calls.items())
    first = min(job.asked_by)
    job.parted = (
        (job.operations[first][0], tuple(sorted(job.asked_by))),
        *((calls[ranks[0]], tuple(ranks)) for ranks in sides.values()),
    )
    job.conditions.append("the ranks' calls are of one group")


def _is_behind(at: str, order: int, others: Iterable[tuple[str, int]]) -> bool:
    """Return whether a line is behind one of others in the same input; inputs have no order."""
    name = at.rpartition(":")[0]
    return any(order > other and name == place.rpartition(":")[0] for place, other in others)


def _follows_timeout(ended: Ended, timeouts: Sequence[tuple[str, int]]) -> bool:
    """Return whether a process has ended after ranks had waited for too long.

    torchrun ends all ranks soon after one of them: none times out before its summary, unless that
    came first. A process that lacked memory may have been the one the others waited for.
    """
    if ended.why == "out of memory" or ended.by == "jax":
        return False
    is_last = ended.by == "torchrun" and bool(timeouts)
    return is_last or _is_behind(ended.at, ended.order, timeouts)


def _may_have_ended(raised: Raised, facts: LogFacts, symptoms: Symptoms) -> bool:
    """Return whether an exception has ended its rank, as far as the log shows it.

    A program may print an exception that it has caught. So one counts if a launcher says that the
    rank failed, or if other ranks have lost one.
    """
    ended = _end_of(raised.rank, facts) if raised.rank is not None else None
    if ended is not None and (ended.code or ended.signal == _ABORT):
        return True
    if raised.went_on or raised.is_thread:
        return False
    if _is_symptom(raised, symptoms):
        return True
    others = (each for each in facts.raised.values() if each.rank != raised.rank)
    return any(_is_symptom(each, symptoms) for each in others) or bool(facts.waited)


def _is_symptom(raised: Raised, symptoms: Symptoms) -> bool:
    """Return whether an exception follows from other ranks, or says that they do not match."""
    if _OF_ALL.search(raised.message) or raised.type == JAX_FATAL:
        return True
    error = RaisedError(type=raised.type, message=raised.message, causes=raised.causes)
    text = f"{raised.type}: {raised.message}"
    return symptoms.is_symptom(error, text) or symptoms.is_raised_from_symptom(error)


def _end_of(rank: int, facts: LogFacts) -> Ended | None:
    return next((each for each in facts.ended.values() if each.rank == rank), None)


def _add_raised(job: _Job, rank: int, raised: Raised, *, is_symptom: bool) -> None:
    frame = innermost_user_frame(raised.frames)
    file, line = (frame.file, frame.line) if frame is not None else (None, None)
    error = RaisedError(
        type=raised.type, message=raised.message, file=file, line=line, text=raised.text
    )
    summary = f"{raised.type}: {raised.message}".rstrip(": ")
    at_s = float(raised.order)
    facts = RankFacts(rank, phase="call", failure=Interrupted(error), failed_s=at_s)
    shown = RankError(raised.type, raised.message, file, line, raised.text)
    job.findings[rank] = RankFinding(
        facts, "collateral" if is_symptom else "failed", at_s, summary, shown
    )
    job.said.add(rank)
    job.places[rank] = raised.at
    if is_symptom and rank not in job.operations:
        operation = _given_up(job, rank, raised)
        idle = job.activities.get(rank)
        if operation is not None and idle is not None:
            place = f" at {file}:{line}" if file is not None else ""
            text = f"{idle.target}; it was in {operation.title}{place}"
            job.activities[rank] = replace(idle, target=text)
        elif operation is not None:
            job.waits(rank, replace(operation, since_s=at_s, waited_s=at_s))


def _given_up(job: _Job, rank: int, raised: Raised) -> Operation | None:
    """Return the operation that a rank has left by an exception; None if it is not known."""
    if barrier := _BARRIER_ID.search(raised.message):
        operation = _barrier(job, barrier_name(barrier), raised.at)
        return None if operation.group_key in job.entered.get(rank, {}) else operation
    if key := _KEY.search(raised.message):
        return Operation(
            name="blocking_key_value_get",
            kind="wait",
            group=_everyone(job.size),
            sequence=0,
            since_s=0.0,
            scope=Scope("store", "jax"),
            detail=key[1],
            source=raised.at,
        )
    return _of_frames(raised.frames, job.size, raised.at)


def _add_ended(job: _Job, rank: int, ended: Ended) -> None:
    if ended.code == 0 or ended.signal == _SIGTERM or rank >= job.size:
        return
    if rank in job.operations and ended.signal in (None, _ABORT):
        return  # its runtime has ended it because it waited for too long
    if ended.code is None and ended.signal is None and ended.by != "jax":
        return
    status = Exited(ended.code, ended.signal, lacked_memory=ended.why == "out of memory")
    known = status if ended.by != "jax" else None
    facts = RankFacts(rank, phase="call", exit=known, exited_s=float(ended.order))
    job.places[rank] = ended.at
    summary = f"has {ended.why}" if ended.by == "jax" else describe_exit(status)
    job.findings[rank] = RankFinding(facts, "crashed", 0.0, summary)
    job.said.add(rank)


def _add_unwaited(job: _Job) -> None:
    """Take ranks as waited for that have printed nothing, where others have timed out."""
    gave_up = [each for each in job.findings.values() if each.outcome == "collateral"]
    failed = [each for each in job.findings.values() if each.outcome in ("failed", "crashed")]
    timed_out = [each for each in gave_up if "imed out" in each.summary]
    known = job.findings.keys() | job.operations.keys() | job.dumps.keys()
    quiet = frozenset(range(job.size)) - known
    if failed or not gave_up or not quiet:
        return
    if not timed_out:
        _add_lost(job, quiet, gave_up)
        return
    if len(quiet) < len(gave_up) or (len(quiet) == len(gave_up) == 1):
        job.said |= quiet
        job.silent -= quiet
        one = len(quiet) == 1
        who = PLAIN.of(quiet)
        job.conditions.append(
            f"{who}, which printed nothing, {'was' if one else 'were'} not in another collective"
        )


def _add_lost(job: _Job, quiet: frozenset[int], gave_up: Sequence[RankFinding]) -> None:
    """Take the one rank that printed nothing as the one whose connection the others have lost."""
    failures = [each.facts.failure for each in gave_up if each.facts.failure is not None]
    errors = [each.error for each in failures if each.error is not None]
    are_closed = all(map(is_closed_connection, errors))
    if len(quiet) != 1 or len(errors) != job.size - 1 or not are_closed:
        return
    (rank,) = quiet
    facts = RankFacts(rank, phase="call")
    summary = "printed nothing, and the others have lost their connection to a rank"
    job.findings[rank] = RankFinding(facts, "crashed", 0.0, summary)
    job.said.add(rank)


def _finding(job: _Job) -> Finding:
    """Return the outcome of the job: the first failure that follows from no other decides."""
    failed = [each for each in job.findings.values() if each.outcome in ("failed", "crashed")]
    first = min(failed, key=lambda each: each.at_s or 0.0, default=None)
    facts = [RankFacts(rank, phase="call") for rank in range(job.size)]
    found = suspected_hang(facts, "the log was read", summary="has a line in the log")
    is_waiting = bool(job.operations) or any(
        e.outcome == "collateral" for e in job.findings.values()
    )
    ranks = tuple(
        job.findings.get(each.facts.rank)
        or (each if each.facts.rank in job.operations else replace(each, outcome="passed"))
        for each in found.ranks
    )
    found = replace(found, ranks=ranks)
    if first is not None:
        verb = "raised " if first.outcome == "failed" else ""
        reason = f"{PLAIN.of([first.facts.rank])} {verb}{first.summary}"
        outcome: Outcome = "failed" if first.outcome == "failed" else "crashed"
        return replace(found, outcome=outcome, reason=reason, headline=first.facts.rank)
    if not is_waiting:
        printed = "; ".join(job.printed[:_MAX_PLACES])
        ends = "; ".join(job.ends[:_MAX_PLACES])
        told = f"; {printed}, and no line says that it ended the rank" if printed else ""
        told = f"; {ends}{told}" if ends else told
        reason = f"no line says that a rank waits, has raised or has died{told}"
        return replace(found, outcome="passed", status="passed", reason=reason)
    return found


def _result(job: _Job, name: str) -> WorldResult:
    heard = job.said | job.operations.keys() | job.findings.keys()
    unseen = frozenset(range(job.size)) - heard - job.silent
    ranks = tuple(_snapshot(rank, job) for rank in range(job.size))
    pages = [
        Operations(rank, tuple(job.operations.get(rank, ())), job.entered.get(rank, {}))
        for rank in range(job.size)
    ]
    return WorldResult(
        spec=WorldSpec.of_job(name, job.size, "log"),
        launch="log",
        started_at=utc_text(),
        started_s=0.0,
        ended_s=0.0,
        history=(),
        ending="unwatched",
        origin=_LOG if job.is_said else _STACKS,
        known=Known(unseen=unseen, silent=frozenset(job.silent)),
        dumps=tuple(job.dumps[rank] for rank in sorted(job.dumps)),
        snapshots=(WorldSnapshot(at_s=0.0, reason="end", ranks=ranks),),
        operations=tuple(pages),
    )


def _snapshot(rank: int, job: _Job) -> RankSnapshot:
    activity = job.activities.get(rank)
    if activity is None and rank not in job.operations and rank not in job.findings:
        activity = Activity("no line", "the log does not say what it does")
    return RankSnapshot(
        rank=rank,
        activity=activity,
        operations=tuple(job.operations.get(rank, ())),
        entered=tuple(job.entered.get(rank, {}).items()),
    )
