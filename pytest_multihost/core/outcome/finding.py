"""The outcome of a world, cause first.

The rule: the first unplanned event decides. A death makes the world `crashed`, a raise `failed` (in
setup or teardown `error`); a world without such an event that did not end is `hung`. An event that
only follows from another rank's failure - a lost connection, a broken barrier, a runtime's own
timeout - is a symptom: it never decides, and its rank is `collateral`. Example: rank
2 is killed, and 0.1 s later rank 0 raises "Connection closed by peer". Rank 2 crashed, rank 0 is
collateral, the world `crashed`.

A failure of a rank is a raise, a death, a wait that did not end, a failed subtest, and a skip that
other ranks do not share. Nothing makes a world pass in which a rank has failed, except:

* an xfail mark: of the rank itself for its own raise, and of every rank for a hang or a death;
* `multihost_expect`, if the world hangs or breaks exactly as described (`plan.apply_expectation`);
* a fault that kills the rank, if at least one rank is left to show something;
* nothing in pytest's own process: a hook that fails the test there fails it (`item.finish_report`),
  and a hook that passes it does not.

A symptom is not counted, because the failure that it follows from is. A rank that the harness has
ended is not counted either if another's failure is known.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_multihost.core.model.event import (
    BROKEN,
    Exited,
    Interrupted,
    RaisedError,
    ReportMade,
    SerializedReport,
)
from pytest_multihost.core.model.operation import (
    PROGRAM_START,
    RUNTIME_SCOPE,
    STORE_CLIENT,
    STORE_KIND,
    Operation,
    Operations,
)
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.spec import Subject, phase_name
from pytest_multihost.core.model.verdict import (
    Outcome,
    RankError,
    RankOutcome,
    Status,
    outcome_word,
)
from pytest_multihost.core.outcome.rank_facts import RankFacts, describe_exit, fold_history
from pytest_multihost.core.outcome.symptoms import Symptoms, is_closed_connection

DEATH_SEEN_LATE_S = 0.05
"""How much earlier than observed a death counts when it is compared with a raise: the kernel closes
the sockets of a dying process first and reports its end last, so the exception of a rank that has
lost its connection can have an earlier time than the death that caused it."""

_DEATH_SEEN_LAST_S = 0.5
"""The same for an exception about a closed connection, on a busy machine."""

_CAUSES: Mapping[str, Outcome] = {"crashed": "crashed", "failed": "failed", "error": "error"}

_ADDRESS = re.compile(r"0x[0-9a-f]+|127\.0\.0\.1\]?:\d+")

_LAST_WORDS = re.compile(
    r"^(?: *what\(\): +|F\d{4} [^\]\n]+\] )(?:\[[^\]\n]*\] )?(.+)"  # an exception of C++, glog
    r"|^((?:corrupted|double free|free\(\)|malloc\(\)|munmap_chunk\(\)|realloc\(\)).*"  # glibc
    r"|.*: Assertion `.*' failed\.)$",
    re.MULTILINE,
)
"""The reason that native code logs when it ends its process; the first part names its source."""

_MAX_LAST_WORDS = 160

_SAME = 80
"""How many characters of two texts of an exception must agree."""


@dataclass(frozen=True, slots=True)
class RankFinding:
    """The outcome of one rank.

    Attributes:
        at_s: When, on the monotonic clock; None if nothing went wrong.
        summary: One line: its error, the reason for its skip, or its end.
        report: pytest's own report, serialised, if there is one.
        last_words: The reason that the runtime of an aborted rank has logged.
    """

    facts: RankFacts
    outcome: RankOutcome
    at_s: float | None
    summary: str
    error: RankError | None = None
    report: SerializedReport | None = None
    last_words: str = ""

    @property
    def word(self) -> str:
        """The reader's word for its outcome."""
        return outcome_word(self.outcome, [self.exit_code])

    @property
    def exit_code(self) -> int | None:
        """The exit code of its process; None if a signal ended it, or if it has not ended."""
        return self.facts.exit.code if self.facts.exit is not None else None

    @property
    def has_given_up(self) -> bool:
        """Whether the rank raised or died only because another failed or was missing."""
        return self.outcome == "collateral" and self.at_s is not None

    def is_from(self, error: str) -> bool:
        """Return whether its exception is the one, in one line, that an operation was left by."""
        return bool(error) and self.summary.startswith(error[:_SAME])

    @property
    def identity(self) -> tuple[object, ...]:
        """The key by which findings are the same for the reader: outcome, line and message.

        Addresses and ports differ between processes, so they are ignored.
        """
        line = (self.error.file, self.error.line) if self.error else None
        return (self.outcome, line, _ADDRESS.sub("…", self.summary))


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of a world.

    Attributes:
        reason: One line for the short summary: the ranks and their outcome.
        headline: The rank that decided, if one did.
        when: The phase in which pytest reports it.
        call: Status and reason of the call in pytest's report, if only the teardown failed.
        symptoms: The backend's patterns of failures that follow from another rank's.
    """

    outcome: Outcome
    status: Status
    reason: str
    headline: int | None
    when: Literal["setup", "call", "teardown"]
    call: tuple[Status, str] | None
    ranks: tuple[RankFinding, ...]
    symptoms: Symptoms = field(default_factory=Symptoms)

    @property
    def word(self) -> str:
        """The reader's word for its outcome."""
        gone = (each for each in self.ranks if each.outcome == "crashed")
        return outcome_word(self.outcome, (each.exit_code for each in gone))

    @property
    def in_harness(self) -> frozenset[int]:
        """Ranks that have left the user's code: their main stacks show only the harness."""
        return frozenset(each.facts.rank for each in self.ranks if each.facts.is_in_harness)


def suspected_hang(ranks: Sequence[RankFacts], reason: str, *, summary: str = "") -> Finding:
    """Return a hang of a world known at one instant only; `blame` finds whether ranks wait.

    Args:
        reason: The facts read about the world.
    """
    return Finding(
        outcome="hung",
        status="failed",
        reason=reason,
        headline=None,
        when="call",
        call=None,
        ranks=tuple(RankFinding(each, "hung", None, summary) for each in ranks),
    )


def judge(
    result: WorldResult, symptoms: Symptoms, masked: Collection[int] = frozenset()
) -> Finding:
    """Return the outcome of a world.

    Args:
        symptoms: The backend's patterns of failures that follow from another rank's.
        masked: Ranks whose exception masks a symptom and counts as one, whatever its text.
    """
    facts = fold_history(result.history, result.spec.size)
    ranks = tuple(_judge_rank(each, result, symptoms, masked) for each in facts)
    deaths = [each for each in ranks if each.outcome == "crashed"]
    ranks = tuple(
        replace(each, outcome="collateral")
        if any(_lost_a_peer(each, dead, result) for dead in deaths)
        else replace(each, outcome="failed")
        if _lost_no_rank(each, ranks, result)
        or _asked_nobody(each, ranks, result)
        or _met_no_rank(each, ranks, result)
        else each
        for each in ranks
    )
    if not result.end.is_hang and any(each.is_killed_as_planned for each in facts):
        # The test is about the survivors: their failures decide, though the death caused them.
        ranks = tuple(
            replace(each, outcome="crashed" if each.facts.has_died else "failed")
            if each.has_given_up
            else each
            for each in ranks
        )
    first = _first(ranks, _CAUSES)
    if first is not None:  # the cause is known: ranks that had not ended were ended because of it
        ranks = tuple(
            replace(each, outcome="collateral") if each.outcome == "hung" else each
            for each in ranks
        )
    outcome = _outcome(ranks, first, result)
    status = _status(outcome, ranks)
    decisive = _decisive(status, outcome, ranks, first)
    when, call = _when(status, ranks), None
    if when == "teardown":
        bodies = {_body_status(each) for each in ranks if each.outcome not in _NEUTRAL}
        call = _worst(bodies), next((each.skip_reason for each in facts if each.is_skipped), "")
    return Finding(
        outcome=outcome,
        status=status,
        reason=_reason(outcome, status, ranks, decisive, result),
        headline=decisive.facts.rank if decisive else None,
        when=when if call is None or call[0] != "failed" else "call",  # some skipped alone
        call=call,
        ranks=ranks,
        symptoms=symptoms,
    )


def as_aborted(finding: Finding, names: Names) -> Finding:
    """Return the finding on a hung world as a crash if its runtime has ended ranks of it.

    Call it for a world in which nothing is known of a cause. If no rank is left either, then all
    have lost a service outside of it.
    """
    first = _first((each for each in finding.ranks if each.facts.has_died), {"collateral"})
    are_over = all(each.has_given_up for each in finding.ranks)
    if finding.outcome != "hung" or first is None or not are_over:
        return finding
    reason = f"{_name_all(finding.ranks, first, names)}: {first.summary}"
    return replace(finding, outcome="crashed", reason=reason, headline=first.facts.rank)


def _judge_rank(
    facts: RankFacts, result: WorldResult, symptoms: Symptoms, masked: Collection[int]
) -> RankFinding:
    failure = facts.failure
    if failure is not None:
        found = _raised(facts, failure, symptoms)
        return replace(found, outcome="collateral") if facts.rank in masked else found
    if facts.exit is not None and facts.has_died:
        last_words = result.last_words.get(facts.rank, "")
        return _died(facts, facts.exit, last_words, symptoms, result.spec.subject)
    if facts.failed_subtests_s and (facts.waits_at_gate or not facts.was_ended):
        # In a rank that has returned from the test, they do not explain why others did not end.
        at_s = None if facts.waits_at_gate else facts.failed_subtests_s[0]
        return RankFinding(facts, "failed", at_s, describe_subtests(facts))
    if facts.is_killed_as_planned:
        return RankFinding(facts, "killed_as_planned", None, "killed as planned")
    if not facts.is_gone or facts.was_ended:
        return _unfinished(facts, result)
    if facts.is_skipped:
        return RankFinding(facts, "skipped", None, facts.skip_reason)
    return RankFinding(facts, "passed", None, "passed")


def _lost_a_peer(finding: RankFinding, dead: RankFinding, result: WorldResult) -> bool:
    """Return whether a rank raised because of a closed connection, not before another died."""
    failure = finding.facts.failure
    error = failure.error if failure is not None and finding.outcome != "collateral" else None
    if error is None or finding.at_s is None or dead.at_s is None:
        return False
    is_after = finding.at_s >= dead.at_s - _DEATH_SEEN_LAST_S
    is_later = _was_alive_after(dead.facts, finding.at_s, result)
    return is_after and not is_later and is_closed_connection(error)


def _was_alive_after(facts: RankFacts, at_s: float, result: WorldResult) -> bool:
    """Return whether a rank that died was seen alive after a time, with its connections open.

    The interpreter of another program than ours closes connections while it still ends.
    """
    return facts.can_dump and any(
        snapshot.at_s >= at_s and seen.rank == facts.rank and seen.label not in (None, "EXITED")
        for snapshot in result.snapshots
        for seen in snapshot.ranks
    )


def _lost_no_rank(finding: RankFinding, ranks: Sequence[RankFinding], result: WorldResult) -> bool:
    """Return whether a store closed a rank's connection while all other ranks were in their test.

    So no rank has taken the store with it: its host is another program.
    """
    facts, at_s = finding.facts, finding.at_s
    error = facts.failure.error if facts.failure is not None else None
    if finding.outcome != "collateral" or at_s is None or error is None or result.spec.faults:
        return False
    waits = (each for each in result.operations_of(facts.rank) if each.kind == "wait")
    is_in_wait = any(each.failed and finding.is_from(each.error) for each in waits)
    return (
        is_in_wait
        and is_closed_connection(error)
        and not any(
            _is_gone(each, at_s + _DEATH_SEEN_LAST_S) for each in ranks if each is not finding
        )
    )


def _asked_nobody(finding: RankFinding, ranks: Sequence[RankFinding], result: WorldResult) -> bool:
    """Return whether a rank gave up at a store that no other rank used or could still come to.

    All others were in operations of their own; or they had returned from the test, and the rank
    has reached no host of the store. A rank that has returned may owe a key, but hosts nothing.
    """
    rank, at_s = finding.facts.rank, finding.at_s
    if finding.outcome != "collateral" or at_s is None:
        return False
    left = [
        each
        for each in result.operations_of(rank)
        if each.scope.kind == STORE_KIND and each.failed and finding.is_from(each.error)
    ]
    others = [each for each in result.operations if each.rank != rank]
    returned = {each.facts.rank for each in ranks if _is_gone(each, at_s)}
    return any(
        not any(scope == last.scope for each in others for _, _, scope in each.entered)
        and all(
            _was_busy(each, at_s) or (last.name == STORE_CLIENT and each.rank in returned)
            for each in others
        )
        for last in left[-1:]
    )


def _met_no_rank(finding: RankFinding, ranks: Sequence[RankFinding], result: WorldResult) -> bool:
    """Return whether a rank failed in a group whose other members are not ranks.

    They may be processes of another rank, which are not recorded. So no other rank must have failed
    before it, and every other one must run the plugin's code, which records its groups.
    """
    at_s = finding.at_s
    if finding.outcome != "collateral" or at_s is None or result.spec.faults:
        return False
    known = result.operations_of(finding.facts.rank)
    left = [each for each in known if each.failed and finding.is_from(each.error)]
    others = [each for each in ranks if each is not finding]
    recorded = {each.rank for each in result.operations}
    return (
        bool(left)
        and all(map(_is_alone, left))
        and all(each.facts.can_dump and each.facts.rank in recorded for each in others)
        and not any(_has_failed(each, at_s + _DEATH_SEEN_LAST_S) for each in others)
    )


def _has_failed(finding: RankFinding, until_s: float) -> bool:
    """Return whether a rank had failed before a time, for a reason of its own."""
    is_own = finding.outcome != "collateral" and finding.at_s is not None
    return is_own and (finding.at_s or 0.0) <= until_s


def _is_alone(operation: Operation) -> bool:
    """Return whether an operation of torch is in a group of its own rank only."""
    # A program of jax may raise the error of another one, whose result it takes.
    is_of_jax = operation.is_program or operation.name == PROGRAM_START
    return operation.is_of_one and operation.scope == RUNTIME_SCOPE and not is_of_jax


def _was_busy(other: Operations, at_s: float) -> bool:
    """Return whether a rank was in an operation at a time."""
    return any(e.since_s <= at_s and (e.is_open or (e.ended_s or 0) >= at_s) for e in other.recent)


def _is_gone(finding: RankFinding, until_s: float) -> bool:
    """Return whether a rank had left its test, for a reason of its own, before a time."""
    facts = finding.facts
    own_s = finding.at_s if finding.outcome != "collateral" else None
    left_s = (facts.parked_s, None if facts.was_ended else facts.exited_s, own_s)
    return any(each is not None and each <= until_s for each in left_s)


def _raised(facts: RankFacts, failure: ReportMade | Interrupted, symptoms: Symptoms) -> RankFinding:
    error = failure.error
    text = _one_text(error) if error else ""
    is_follow_up = error is not None and symptoms.is_symptom(error, text)
    outcome: RankOutcome = "failed"
    match failure:
        case Interrupted(error=raised) if facts.ready_s is None or raised.is_harness_error:
            outcome = "error"
        case ReportMade(when="setup" | "teardown"):
            outcome = "error"
    own_report = failure.report if isinstance(failure, ReportMade) else None
    longrepr = own_report.get("longrepr") if own_report is not None else None
    return RankFinding(
        facts=facts,
        outcome="collateral" if is_follow_up else outcome,
        at_s=facts.failed_s,
        summary=first_line(text) or first_line(longrepr if isinstance(longrepr, str) else "failed"),
        error=error.rank_error if error is not None else None,
        report=own_report,
    )


def _one_text(error: RaisedError) -> str:
    """Return the name and the message of an exception; the message may be empty."""
    name = error.type.rpartition(".")[2]
    message = error.message.lstrip()  # torch's wrappers begin with a newline
    return f"{name}: {message}" if message else name


def _died(
    facts: RankFacts, status: Exited, last_words: str, symptoms: Symptoms, subject: Subject
) -> RankFinding:
    phase = phase_name(facts.phase, subject)
    summary, said = f"{describe_exit(status)} in {phase}", ""
    if status.code == 0 and facts.done_s is None:
        summary += ", before it had reported"
    if status.code == BROKEN:
        controller = "pytest" if subject == "test" else "multihost"
        summary = f"lost its connection to {controller} in {phase}, exit code {BROKEN}"
    elif status.signal == signal.SIGABRT and (found := _LAST_WORDS.findall(last_words)):
        said = _short("".join(found[-1]).strip())
        summary += f": {said}"
    if status.full:
        summary += f"; {status.full} was full"
    if status.lacked_memory:
        peak = f"{status.peak_rss_bytes / 1e9:.1f} GB"
        summary += f"; the kernel ran out of memory (this rank's peak was {peak})"
    is_follow_up = symptoms.is_in_log(last_words)
    outcome: RankOutcome = "collateral" if is_follow_up else "crashed"
    return RankFinding(facts, outcome, facts.exited_s, summary, last_words=said)


def _short(last_words: str) -> str:
    """Return the reason of a runtime in fewer words: jax's has its error behind much advice."""
    advice, _, status = last_words.partition(" absl::Status: ")
    last_words = f"{advice.partition('. ')[0]}: {status}" if status else last_words
    return last_words[:_MAX_LAST_WORDS]


def _unfinished(facts: RankFacts, result: WorldResult) -> RankFinding:
    """Return the outcome of a rank that the harness ended, or that never ran.

    A rank that ran is hung if the world ended as a hang or had settled, else it is collateral.
    """
    if facts.waits_at_gate:
        outcome: RankOutcome = "skipped" if facts.is_skipped else "passed"
        return RankFinding(facts, outcome, None, f"returned from the {result.spec.subject}")
    if facts.pid is None:
        return RankFinding(facts, "error", None, "was not started")
    # `judge` makes this collateral if a cause is known; else the others raised only symptoms.
    is_hung = result.end.is_hang or result.ending == "settled"
    phase = phase_name(facts.phase, result.spec.subject)
    return RankFinding(facts, "hung" if is_hung else "collateral", None, f"was in {phase}")


def _first(ranks: Iterable[RankFinding], outcomes: Collection[str]) -> RankFinding | None:
    """Return the earliest finding with one of `outcomes`."""
    found = [each for each in ranks if each.outcome in outcomes and each.at_s is not None]
    late_s = {"crashed": DEATH_SEEN_LATE_S}
    return min(
        found, key=lambda each: (each.at_s or 0.0) - late_s.get(each.outcome, 0.0), default=None
    )


def _outcome(
    ranks: Iterable[RankFinding], first: RankFinding | None, result: WorldResult
) -> Outcome:
    outcomes = {each.outcome for each in ranks} - {"killed_as_planned"}
    if result.end.is_lost:
        return "error"
    if first is not None:
        return _CAUSES[first.outcome]
    if result.end.is_hang or outcomes & {"hung", "collateral"}:
        return "hung"
    if not outcomes:
        return "failed"  # all are killed as planned
    if outcomes == {"skipped"}:
        return "skipped"
    return "failed" if "skipped" in outcomes else "passed"


def _decisive(
    status: Status, outcome: Outcome, ranks: Iterable[RankFinding], first: RankFinding | None
) -> RankFinding | None:
    """Return the finding whose text is shown: the cause's, else a symptom's, else a lone skip's.

    A failure that xfail expects is never the reason why a test failed.
    """
    if outcome == "hung":
        return _first(ranks, {"collateral"})
    if status in ("failed", "error") and first is not None:
        unexpected = [each for each in ranks if rank_status(each) != "xfailed"]
        first = _first(unexpected, _CAUSES)
    if first is None and status == "failed":
        return next((each for each in ranks if each.outcome == "skipped"), None)
    return first


def _status(outcome: Outcome, ranks: Iterable[RankFinding]) -> Status:
    """Return pytest's status for an outcome: xfail applied, then the worst rank's."""
    ranks = list(ranks)
    if outcome in ("hung", "crashed") or _are_all_killed(ranks):
        # Expected only if each rank that has begun the test has a mark that expects any failure.
        begun = [each.facts for each in ranks if each.facts.reports or each.facts.has_begun]
        marks = [each.xfail for each in begun]
        is_expected = bool(marks) and all(mark is not None and mark.is_plain for mark in marks)
        return "xfailed" if is_expected else "failed"
    if outcome == "error" and not any(each.outcome == "error" for each in ranks):
        return "error"  # the harness's own
    return _worst({rank_status(each) for each in ranks if each.outcome not in _NEUTRAL})


def _are_all_killed(ranks: Iterable[RankFinding]) -> bool:
    """Return whether faults have killed every rank, so that none has shown anything."""
    return all(each.outcome == "killed_as_planned" for each in ranks)


def _worst(statuses: set[str]) -> Status:
    """Return pytest's status for the statuses of the ranks."""
    return next(status for status, applies in _WORST_FIRST if applies(statuses))


_NEUTRAL = ("collateral", "killed_as_planned")
"""Outcomes of ranks that do not count for the test's status."""

_WORST_FIRST: tuple[tuple[Status, Callable[[set[str]], bool]], ...] = (
    ("failed", lambda found: "crashed" in found),
    ("error", lambda found: "error" in found),
    ("failed", lambda found: "failed" in found),
    ("skipped", lambda found: found == {"skipped"}),
    ("failed", lambda found: "skipped" in found),
    ("failed", lambda found: "strict-xpassed" in found and "xfailed" not in found),
    ("passed", lambda found: not found),
    ("xpassed", lambda found: found <= {"xpassed", "strict-xpassed"}),
    ("xfailed", lambda found: "xfailed" in found),
    ("passed", lambda _: True),
)
"""pytest's status for a set of rank statuses: the first that applies."""


def rank_status(finding: RankFinding) -> str:
    """Return a rank's part in pytest's status: its outcome, with xfail applied."""
    reports = finding.facts.reports
    if any(each.outcome == "failed" and not each.is_strict_xpass for each in reports):
        return finding.outcome
    return _body_status(finding)


def _body_status(finding: RankFinding) -> str:
    """Return the status of a rank's setup and call, whatever its teardown did."""
    for report in finding.facts.reports:
        if report.is_strict_xpass:
            return "strict-xpassed"
        if report.wasxfail is not None:
            return "xfailed" if report.outcome == "skipped" else "xpassed"
    interrupted = finding.facts.interrupted
    if interrupted is not None and interrupted.is_expected:
        return "xfailed"
    match finding.facts.failure:
        case ReportMade(when="teardown", outcome="failed"):
            return "skipped" if finding.facts.is_skipped else "passed"
    return finding.outcome


def _when(status: Status, ranks: Iterable[RankFinding]) -> Literal["setup", "call", "teardown"]:
    """Return the phase of pytest's report: a failure only in teardown is an error at teardown."""
    if status != "error":
        return "call"
    ranks = list(ranks)
    if any(each.outcome == "failed" and rank_status(each) != "xfailed" for each in ranks):
        return "call"  # it failed as well
    failures = [each.facts.failure for each in ranks if each.outcome == "error"]
    phases = {each.when if isinstance(each, ReportMade) else "setup" for each in failures}
    return "teardown" if phases == {"teardown"} else "setup"


def _reason(
    outcome: Outcome,
    status: Status,
    ranks: tuple[RankFinding, ...],
    decisive: RankFinding | None,
    result: WorldResult,
) -> str:
    names = result.spec.names
    if result.end.is_lost:
        return first_line(result.reason or "the harness failed")
    if outcome in ("passed", "skipped") and status not in ("failed", "xpassed"):
        return ranks[0].summary
    if outcome == "passed":
        return next((each.facts.xfail.reason for each in ranks if each.facts.xfail), "")
    if outcome == "hung" and result.ending == "settled":
        late = [each.facts for each in ranks if each.outcome == "hung"]
        if late:
            who = names.of(each.rank for each in late)
            phase = phase_name(late[0].phase, result.spec.subject)
            return f"{who} still in {phase}, the others gave up waiting"
    if _are_all_killed(ranks):
        return "faults have killed every rank: none is left that could show anything"
    if outcome == "hung" or decisive is None:
        hit = _first(ranks, {"collateral"})
        lost = f"{_name_all(ranks, hit, names)} lost the others: {hit.summary}" if hit else ""
        return result.reason or lost or "the world did not end"
    if decisive.outcome == "skipped":
        others = names.of(each.facts.rank for each in ranks if each.outcome != "skipped")
        who = _name_all(ranks, decisive, names)
        return f"{who} skipped alone, {others} did not; reason: {decisive.summary}"
    return f"{_name_all(ranks, decisive, names)}: {decisive.summary}"


def _name_all(ranks: Iterable[RankFinding], finding: RankFinding, names: Names) -> str:
    """Return the names of all ranks with the same finding."""
    same = (finding.identity, rank_status(finding))
    return names.of(each.facts.rank for each in ranks if (each.identity, rank_status(each)) == same)


def first_line(text: str) -> str:
    """Return the first line of a text that is not blank, cut to a readable length."""
    return next((line for line in text.splitlines() if line.strip()), "")[:300]


def describe_subtests(facts: RankFacts) -> str:
    """Return how many of a rank's subtests failed, in pytest's words."""
    count = len(facts.failed_subtests_s)
    return f"contains {count} failed subtest{'s' * (count > 1)}"
