"""Judges a run with one disturbance.

A run shows a weakness if a rank waits for something that never comes, if ranks entered collectives
that cannot match, or if something is wrong and no rank has noticed: ranks differ in a value that is
to be the same, a saved file is not what it says, or an assertion of the test itself fails although
the program raised no error. The following runs show none:

* The failure reached every rank, and all ended by themselves, whatever they raised.
* Some ranks passed and others failed, and no rank was left waiting.
* A rank was only late, others gave up after their own timeout, and all ended. That is the purpose
  of the timeout.
* More time elapsed for a rank than the test asserts, or a rank was made to look for a file that is
  not there.

The harness's own barrier and gather release the other ranks when a rank fails, so the failure
reached the ranks that they ended.
"""

from __future__ import annotations

import math
import signal
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.event import FaultChanged, HoldEnded, PointsPassed, RaisedError
from pytest_multihost.core.model.rank_names import rank_set
from pytest_multihost.core.model.stack import Frame, innermost_user_frame, inside_the_test
from pytest_multihost.core.model.verdict import OperationName, Place
from pytest_multihost.core.outcome import RankFinding, disagreements
from pytest_multihost.core.outcome.agreement import Disagreement
from pytest_multihost.core.outcome.fault_progress import firings
from pytest_multihost.core.outcome.symptoms import is_closed_connection, is_unanswered
from pytest_multihost.extensions.sweep.decisions import (
    handler_of,
    last_before,
    meetings,
    parted_s,
)
from pytest_multihost.extensions.sweep.order import Clash
from pytest_multihost.extensions.sweep.remains import Found
from pytest_multihost.extensions.sweep.result import (
    WEAK,
    Disturbance,
    DisturbedRun,
    RunOutcome,
    Sign,
)
from pytest_multihost.extensions.sweep.unreported import Unreported, injected_error

SLOWER = 5.0
"""Without a proof, a rank that has not ended counts as waiting after this many times the duration
of the undisturbed run."""

LEAST_WAIT_S = 2.0
"""The least such time, in seconds, for short tests."""

OWN_TIMEOUT_S = 60.0
"""Timeouts up to this are the program's own; a runtime's timeouts are minutes."""

NOTHING = Found()
"""Nothing is known to be wrong in what a world has left behind."""

_FAILED = ("crashed", "error", "failed", "killed_as_planned")
"""Outcomes of ranks that failed by themselves."""

_PROOFS = ("proof", "mismatch")
"""Endings of worlds that prove that no rank can go on."""

_ENDED = ("survived", "told", "split")
"""Outcomes of runs whose ranks all ended by themselves, or at least waited for nothing."""

_CLOCKS = ("clock_skew", "elapsed_time")
"""Faults whose rank decides where it reads a clock."""

_NO_RUN = ("lost", "interrupted", "startup-overrun")
"""Endings of worlds that the harness did not run to the end of the test."""


def judge_run(
    disturbance: Disturbance,
    judged: Judgement,
    *,
    usual_s: float = 0.0,
    usual_differences: Collection[str] = (),
    found: Found = NOTHING,
    token: str = "",
    directory: str | None = None,
) -> DisturbedRun:
    """Return the judged run of a disturbance.

    Args:
        disturbance: Its fault is the last equal one among the world's faults.
        judged: The world, judged like the world of any test.
        usual_s: Duration of the undisturbed run.
        usual_differences: Names of the values in which the ranks of the undisturbed run differ.
        found: What is wrong in what the world has left behind.
        directory: The run's folder, relative to the artifacts directory.
    """
    different = disagreements(judged.result)
    unknown = {each.name for each in different if not each.is_asked and not _are_all_known(each)}
    differences = tuple(
        each for each in different if each.name not in {*usual_differences, *unknown}
    )
    run = _Run(disturbance, judged, usual_s, differences, found)
    outcome, sign = run.outcome()
    is_weak = outcome in WEAK
    hangs = is_weak and outcome != "wrong"
    diagnosis = judged.diagnosis if hangs else None
    clash = run.clash() if outcome == "mismatched" else None
    if clash is not None:
        return _mismatched(run, clash, token=token, directory=directory)
    waiting = run.waiting() if hangs else ()
    culprit = run.culprit(waiting) if hangs else run.rank if is_weak else None
    decided = run.deciding_line(culprit, outcome)
    return DisturbedRun(
        disturbance=disturbance,
        outcome=outcome,
        culprit=decided or run.culprit_line(culprit, outcome),
        has_decided=decided is not None,
        library=run.library_line(culprit) if hangs and culprit is not None else None,
        waiting=run.waiting_line(waiting),
        waiting_ranks=waiting,
        culprits=run.culprits(culprit),
        kind=diagnosis.kind if diagnosis is not None else None,
        operation=run.operation(waiting) if hangs else None,
        summary=run.summary(outcome, sign),
        error=run.error_text(culprit),
        again=run.has_passed_again(),
        is_pressed=run.was_pressed(),
        detected_by=diagnosis.detected_by if diagnosis is not None else None,
        is_proven=is_weak and run.is_proven(outcome),
        seconds=round(judged.result.ended_s - judged.result.started_s, 3),
        token=token,
        directory=directory,
        wrong_by=sign,
    )


def _mismatched(run: _Run, clash: Clash, *, token: str, directory: str | None) -> DisturbedRun:
    """Return a run whose ranks entered collectives that cannot match, as `judge_run` does."""
    result = run.judged.result
    culprits = clash.side_of(run.rank) or clash.sides[0]
    others = next(each for each in reversed(clash.sides) if each is not culprits)
    decided = run.deciding_line(run.rank, "mismatched")
    return DisturbedRun(
        disturbance=run.disturbance,
        outcome="mismatched",
        culprit=decided or run.place(culprits.frame) or run.disturbance.passed.where,
        has_decided=decided is not None,
        waiting=run.place(others.frame),
        waiting_ranks=others.ranks,
        culprits=culprits.ranks,
        operation=clash.operation(others),
        kind="mismatch",
        summary=clash.text(result.spec.size),
        error=run.error_text(culprits.ranks[0]),
        again=run.has_passed_again(),
        is_pressed=run.was_pressed(),
        is_proven=True,
        seconds=round(result.ended_s - result.started_s, 3),
        token=token,
        directory=directory,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """A disturbed run while it is judged.

    Attributes:
        differences: The values in which the ranks differ that have passed, except those in which
            the ranks of the undisturbed run differ too.
        found: What is wrong in what the world has left behind.
    """

    disturbance: Disturbance
    judged: Judgement
    usual_s: float
    differences: Sequence[Disagreement]
    found: Found

    @property
    def rank(self) -> int:
        """The disturbed rank; for a fault of the first rank at a point, the rank that was first."""
        index = self.index()
        if not self.disturbance.fault.is_first or index is None:
            return self.disturbance.passed.rank
        return next(iter(firings(self.judged.result, index)), self.disturbance.passed.rank)

    @property
    def ranks(self) -> Sequence[RankFinding]:
        """The findings of all ranks."""
        return self.judged.finding.ranks

    # The outcome

    def outcome(self) -> tuple[RunOutcome, Sign | None]:
        """Return the outcome of the disturbance, and what has shown that it is wrong."""
        outcome = self.outcome_of_ranks()
        if outcome == "survived" and self.differences:
            return "wrong", "values"
        if outcome in _ENDED and self.clash() is not None:
            return "mismatched", None
        if outcome in _ENDED and self.unreported(outcome).damage():
            return "wrong", "files"
        if outcome in ("told", "split") and self.unreported(outcome).assertions():
            return "wrong", "test"
        return outcome, None

    def unreported(self, outcome: RunOutcome) -> Unreported:
        """Return what may be wrong although no rank has reported it.

        Args:
            outcome: The outcome by what ranks raised.
        """
        return Unreported(
            fault=self.disturbance.fault,
            index=self.index(),
            rank=self.rank,
            judged=self.judged,
            found=self.found,
            has_passed=outcome == "survived",
            was_pressed=bool(self.was_pressed()),
        )

    def outcome_of_ranks(self) -> RunOutcome:
        """Return the outcome by what ranks raised, and whether any waited in vain."""
        result, finding = self.judged.result, self.judged.finding
        if result.ending in _NO_RUN or not self.has_happened() or self.is_still_held():
            return "not reached"
        if finding.outcome in ("passed", "skipped"):
            return "survived"
        unfinished = self.unfinished()
        if self.is_of_the_fault():
            return "split"
        if unfinished and not self.someone_waits(unfinished):
            return "split"
        if unfinished and any(each.outcome in _FAILED for each in self.ranks):
            return "left waiting"
        if unfinished and not self.has_timed_out():
            return "hung"
        if self.has_timed_out():
            return "timed out"
        if any(each.outcome in ("passed", "skipped") for each in self.ranks):
            return "split"
        return "told"

    def clash(self) -> Clash | None:
        """Return the first collectives that cannot match, unless a rank had failed before.

        A rank that raises an error of its own may enter a collective on its way out of the test. So
        all ranks there must have ended well, or with the error of a collective.
        """
        found = next(iter(self.found.clashes), None)
        is_clear = found is not None and not any(map(self.has_own_error, found.ranks))
        return found if is_clear else None

    def has_own_error(self, rank: int) -> bool:
        """Return whether a rank failed, and not because an operation of the runtime did.

        gloo ends the process of a rank that receives more than it has room for.
        """
        found = self.ranks[rank]
        if found.outcome not in _FAILED:
            return False
        error = _raised(found)
        if error is None:
            is_abort = found.facts.exit is not None and found.facts.exit.signal == signal.SIGABRT
            return not (is_abort and self.judged.result.last_operations(rank).open)
        texts = [f"{error.type.rpartition('.')[2]}: {error.message}", *error.causes]
        recent = self.judged.result.last_operations(rank).recent
        errors = [each.error for each in recent if each.failed and each.error]
        return not any(text.startswith(each) for text in texts for each in errors)

    def is_of_the_fault(self) -> bool:
        """Return whether the rank failed in a way in which it fails only under the fault itself.

        The test asserts how much time elapses, or a function said that there is a file, and the
        file was not there.
        """
        fault, error = self.disturbance.fault, _raised(self.ranks[self.rank])
        if error is None:
            return False
        if fault.kind == "elapsed_time":
            return error.type == "AssertionError"
        is_found = fault.kind == "returns" and fault.params.get("value") is True
        return is_found and error.type == "FileNotFoundError"

    def is_proven(self, outcome: RunOutcome) -> bool:
        """Return whether the run proves that no rank could go on, or that something is wrong."""
        result = self.judged.result
        if outcome == "wrong":
            return True
        return result.ending in _PROOFS or (result.ending == "settled" and result.is_quiescent)

    def index(self) -> int | None:
        """Return the index of the disturbance's fault among the world's; the test may have some."""
        fault = self.disturbance.fault
        found = [
            index
            for index, each in enumerate(self.judged.result.spec.faults)
            if (each.kind, each.at, each.ranks) == (fault.kind, fault.at, fault.ranks)
        ]
        return found[-1] if found else None

    def has_happened(self) -> bool:
        """Return whether the fault has happened."""
        index = self.index()
        return index is not None and bool(firings(self.judged.result, index))

    def is_still_held(self) -> bool:
        """Return whether the fault itself still stops the rank."""
        if self.disturbance.fault.kind != "hold" or self.judged.result.ending != "overrun":
            return False
        return self.held_until_s() is None

    def held_until_s(self) -> float | None:
        """Return when the rank was last released; None if it was not, or was never held."""
        index = self.index()
        changes = [
            event
            for event in self.judged.result.history
            if isinstance(event.body, FaultChanged) and event.body.index == index
        ]
        last = changes[-1] if changes else None
        ended = (
            isinstance(last.body, FaultChanged) and last.body.phase == "ended" if last else False
        )
        return last.at_s if last is not None and ended else None

    def has_passed_again(self) -> bool | None:
        """Return whether the rank passed the point again after the fault; None if unknown."""
        at = self.disturbance.fault.at
        for event in self.judged.result.history:
            if event.rank == self.rank and isinstance(event.body, PointsPassed):
                counts = {each[:3]: each[3] for each in event.body.passed}
                count = counts.get((at.point, at.name, at.call))
                return None if count is None else count > at.nth
        return None

    def was_pressed(self) -> bool | None:
        """Return whether others polled while the rank was held, or had timeouts of seconds.

        None if the rank was not held.
        """
        index = self.index()
        ends = [
            event.body
            for event in self.judged.result.history
            if isinstance(event.body, HoldEnded) and event.body.index == index
        ]
        if not ends:
            return None
        return any(each.is_pressed or each.reason in ("others poll", "max_s") for each in ends)

    def unfinished(self) -> tuple[int, ...]:
        """Return the ranks that did not end by themselves."""
        return tuple(
            each.facts.rank
            for each in self.ranks
            if each.outcome in ("hung", "collateral") and each.at_s is None
        )

    def gave_up(self) -> tuple[int, ...]:
        """Return the ranks that ended because they waited for a rank in vain, or lost it."""
        return tuple(each.facts.rank for each in self.ranks if each.has_given_up)

    def someone_waits(self, unfinished: Sequence[int]) -> bool:
        """Return whether ranks that have not ended wait, and are not only slow.

        A proof or a diagnosis shows it. Without either, as for ranks that poll, the time since the
        first end of a rank must be much longer than the whole test takes.
        """
        result, diagnosis = self.judged.result, self.judged.diagnosis
        if result.ending in _PROOFS:
            return True
        if diagnosis is not None and {*diagnosis.waiting, *diagnosis.cycle} & {*unfinished}:
            # Ranks that sleep again and again after a failure only probably wait for that rank.
            # A rank that stays in one operation, such as a wait for a key of the store, does wait.
            in_operations = {each.rank for each in diagnosis.waits_for if each.operation}
            is_guess = diagnosis.confidence == "likely" and diagnosis.kind in ("died", "raised")
            is_stuck = in_operations.issuperset(unfinished) and all(map(self.is_stuck, unfinished))
            if not is_guess or is_stuck:
                return True
        failed_s = [each.at_s for each in self.ranks if each.at_s is not None]
        ended_s = result.detected_s or result.ended_s
        since_s = min(failed_s, default=result.go_s or result.started_s)
        return ended_s - since_s >= max(LEAST_WAIT_S, SLOWER * self.usual_s)

    def is_stuck(self, rank: int) -> bool:
        """Return whether a rank has been in one operation for most of the time since a failure.

        An operation with a timeout of seconds does not count, because the rank may handle that. Nor
        do many short operations, because ranks that go on without the failed one also spend most of
        the time in operations.
        """
        result = self.judged.result
        failed_s = [each.at_s for each in self.ranks if each.at_s is not None]
        ended_s = result.detected_s or result.ended_s
        since_s = (min(failed_s, default=result.started_s) + ended_s) / 2
        return any(
            each.waited_s is not None
            and each.waited_s <= since_s
            and (each.timeout_s is None or each.timeout_s > OWN_TIMEOUT_S)
            for each in result.last_operations(rank).open
        )

    def has_timed_out(self) -> bool:
        """Return whether a timeout ended a wait for something that would never have come.

        A wait for a rank that was held at that time does not count: that rank would have come.
        """
        at_s = [each.at_s for each in self.ranks if each.at_s is not None and self.timed_out(each)]
        if not at_s:
            return False
        if self.disturbance.fault.kind != "hold":
            return True
        released_s = self.held_until_s()
        return released_s is not None and min(at_s) > released_s

    def timed_out(self, found: RankFinding) -> bool:
        """Return whether a rank failed because it waited for another rank in vain.

        A closed connection or the harness's own barrier does not count: either reports the failure
        to the rank.
        """
        error = _raised(found)
        if error is None or error.is_harness_symptom or is_closed_connection(error):
            return False
        if found.outcome == "collateral":
            return True
        return found.facts.rank != self.rank and is_unanswered(error)

    # Ranks and lines

    def waiting(self) -> tuple[int, ...]:
        """Return the ranks that wait."""
        diagnosis = self.judged.diagnosis
        unfinished = self.unfinished()
        if diagnosis is not None and diagnosis.waiting:
            found = diagnosis.waiting
            is_tie = not diagnosis.culprits and self.rank in found and len(found) > 1
            return tuple(each for each in found if each != self.rank) if is_tie else found
        gave_up = tuple(each.facts.rank for each in self.ranks if self.timed_out(each))
        found = unfinished or gave_up
        others = tuple(each for each in found if each != self.rank)
        return others or found

    def culprit(self, waiting: Sequence[int]) -> int:
        """Return the rank that the others wait for; usually the disturbed one."""
        diagnosis = self.judged.diagnosis
        if diagnosis is not None and not {*diagnosis.culprits} <= {*waiting}:
            return self.rank if self.rank in diagnosis.culprits else diagnosis.culprits[0]
        if self.rank not in waiting:
            return self.rank
        others = [each for each in self.ranks if each.facts.rank not in waiting]
        failed = [each for each in others if each.outcome in _FAILED]
        # Otherwise ranks that left the test: a polling rank waits for something they did not do.
        first = min(failed or others, key=lambda each: each.at_s or 0.0, default=None)
        return first.facts.rank if first is not None else self.rank

    def culprits(self, culprit: int | None) -> tuple[int, ...]:
        """Return all ranks that the others wait for, including the reported culprit."""
        diagnosis = self.judged.diagnosis
        if culprit is None:
            return ()
        found = diagnosis.culprits if diagnosis is not None else ()
        return found if culprit in found else (culprit,)

    def deciding_line(self, culprit: int | None, outcome: RunOutcome) -> Place | None:
        """Return the line at which the disturbed rank decided.

        None if there is no such line, or it is unknown, or if another rank failed instead. A rank
        that failed has not gone on, except if only an assertion of the test failed.
        """
        index, fault = self.index(), self.disturbance.fault
        if culprit is None or index is None:
            return None
        if culprit != self.rank and self.error_line(culprit) is not None:
            return None
        result = self.judged.result
        found = meetings(result, index, self.rank)
        if fault.kind in _CLOCKS:
            met = last_before(found, self.parted_s(self.rank))
            return self.place(met.frames[0]) if met is not None else None
        error = injected_error(fault)
        has_failed = outcome != "wrong" and self.has_own_error(self.rank)
        if error is None or not found or has_failed:
            return None
        met = last_before(found, self.parted_s(self.rank))
        frames = met.frames if met is not None else ()
        return self.place(handler_of(frames, error, self.judged.context.lines_of))

    def parted_s(self, rank: int) -> float:
        """Return when a rank parted from the others, or else when it failed or left the test."""
        sides = (each.side_of(rank) for each in self.found.clashes)
        clashed_s = min((each.at_s for each in sides if each is not None), default=math.inf)
        facts = self.ranks[rank].facts
        ends = (facts.failed_s, facts.parked_s, self.judged.result.ended_s)
        ended_s = min(each for each in ends if each is not None)
        return min(clashed_s, parted_s(self.judged.result, rank), ended_s)

    def culprit_line(self, culprit: int | None, outcome: RunOutcome) -> Place | None:
        """Return the line at which the culprit failed or is, otherwise the disturbed line.

        A rank that left the test is at no line; its behaviour changed at the disturbed line. So did
        that of a rank whose run is wrong, even if an assertion of the test failed at the end.
        """
        if culprit is None:
            return None
        found = self.error_line(culprit) or self.line_of(culprit)
        if found is not None and (outcome != "wrong" or self.disturbance.passed.where is None):
            return found
        parting, disturbed = self.parting_line(culprit), self.disturbance.passed.where
        return disturbed or parting if culprit == self.rank else parting or disturbed

    def library_line(self, culprit: int) -> Place | None:
        """Return the line of an installed package at which the culprit raised."""
        error = _raised(self.ranks[culprit])
        found = error.library if error is not None else None
        return self.place(Frame(found.file, found.line, found.function)) if found else None

    def waiting_line(self, waiting: Sequence[int]) -> Place | None:
        """Return the line at which most of the waiting ranks are."""
        lines = [each for each in map(self._waiting_line_of, waiting) if each is not None]
        return Counter(lines).most_common(1)[0][0] if lines else None

    def _waiting_line_of(self, rank: int) -> Place | None:
        return self.line_of(rank) or self.error_line(rank)

    def operation(self, waiting: Sequence[int]) -> OperationName | None:
        """Return the operation in which the waiting ranks wait."""
        diagnosis = self.judged.diagnosis
        if diagnosis is not None:
            theirs = (each for each in diagnosis.waits_for if each.rank in waiting)
            first = next((each.operation for each in theirs if each.operation is not None), None)
            return first or diagnosis.operation
        for rank in waiting:
            recent = self.judged.result.last_operations(rank).recent
            for each in reversed(recent):
                if each.failed or each.is_open:
                    return OperationName(each.name, each.sequence, each.group)
        return None

    def line_of(self, rank: int) -> Place | None:
        """Return the user's line at which a rank was when the world was judged."""
        diagnosis = self.judged.diagnosis
        for each in diagnosis.places if diagnosis is not None else ():
            if each.rank == rank:
                return Place(each.file, each.line, each.function, each.source)
        if self.ranks[rank].facts.parked_s is not None:
            return None
        dump = next((each for each in self.judged.result.dumps if each.rank == rank), None)
        frames = inside_the_test(dump.main.frames) if dump is not None and dump.main else ()
        return self.place(innermost_user_frame(frames))

    def error_line(self, rank: int) -> Place | None:
        """Return the user's line at which a rank raised."""
        error = self.ranks[rank].error
        if error is None or error.file is None or error.line is None:
            return None
        return self.place(Frame(error.file, error.line, error.function or ""))

    def parting_line(self, rank: int) -> Place | None:
        """Return the line at which a rank diverged from the others, if known."""
        diagnosis = self.judged.diagnosis
        divergence = diagnosis.divergence if diagnosis is not None else None
        for side in divergence.sides if divergence is not None else ():
            if rank in side.ranks and side.file is not None and side.line is not None:
                return Place(side.file, side.line, side.function or "", side.source or "")
        return None

    def place(self, frame: Frame | None) -> Place | None:
        """Return the place of a frame; None without one."""
        return self.judged.context.place(frame) if frame is not None else None

    # Texts

    def wrong_texts(self, sign: Sign | None) -> Iterator[str]:
        """Yield what is wrong, a sentence each."""
        root = self.judged.context.root
        if sign == "values":
            yield from (each.words(root) for each in self.differences)
        if sign == "files":
            yield from map(str, self.unreported(self.outcome_of_ranks()).damage())
        if sign == "test":
            yield from (each.words(root) for each in self.unreported("told").assertions())

    def summary(self, outcome: RunOutcome, sign: Sign | None) -> str:
        """Return one sentence that describes the run."""
        if outcome == "not reached":
            return self.judged.result.reason or "the fault did not happen"
        if outcome == "wrong":
            return "; ".join(self.wrong_texts(sign))
        diagnosis = self.judged.diagnosis
        if diagnosis is not None and diagnosis.kind != "unknown":
            return diagnosis.summary
        if outcome in WEAK and (unfinished := self.unfinished()):
            text = f"{rank_set(unfinished)} did not end"
            return f"{text}; {self.judged.finding.reason}"
        return self.judged.finding.reason

    def error_text(self, culprit: int | None) -> str | None:
        """Return the error of the disturbed rank, otherwise of the culprit, as one line."""
        for rank in dict.fromkeys((self.rank, *(() if culprit is None else (culprit,)))):
            error = self.ranks[rank].error
            if error is not None:
                first, *_ = error.message.splitlines() or [""]
                return f"{error.type}: {first}" if first else error.type
        return None


def _are_all_known(difference: Disagreement) -> bool:
    """Return whether all ranks have stated a value, so that the nth of each may be the same."""
    return all(side.text for side in difference.sides)


def _raised(found: RankFinding) -> RaisedError | None:
    failure = found.facts.failure
    return failure.error if failure is not None else None
