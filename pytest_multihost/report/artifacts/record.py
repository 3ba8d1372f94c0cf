"""An attempt's records: the verdict, and `facts.json` with all data that it is derived from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.blame import Judgement, judge_world
from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.json_values import (
    Json,
    JsonError,
    JsonObject,
    from_json,
    parse_json,
    to_json,
)
from pytest_multihost.model.operation import Operation
from pytest_multihost.model.result import WorldResult
from pytest_multihost.model.spec import token
from pytest_multihost.model.stack import SourceContext
from pytest_multihost.model.verdict import RankResult, Verdict
from pytest_multihost.outcome import RankFinding, Symptoms
from pytest_multihost.outcome.faults import fault_note, firings


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt that a verdict belongs to.

    Attributes:
        run_id: The run of pytest.
        directory: Name of the attempt's folder within the run's.
        worker: The xdist worker, if any.
        environment: Versions by package name; None for packages that are not installed.
    """

    run_id: str
    directory: str
    worker: str | None
    environment: Mapping[str, str | None]


def build_verdict(judged: Judgement, attempt: Attempt) -> Verdict:
    """Return the verdict on a world."""
    result, finding, diagnosis = judged.result, judged.finding, judged.diagnosis
    spec = result.spec
    return Verdict(
        run_id=attempt.run_id,
        nodeid=spec.nodeid,
        attempt=spec.attempt,
        worker=attempt.worker,
        dir=attempt.directory,
        backend=spec.backend,
        world_size=spec.size,
        launch=result.launch,
        seed=spec.seed,
        replay=token(spec),
        status=finding.status,
        expected=None,
        outcome=finding.outcome,
        ended_by="self" if result.ending == "self" else "harness",
        # After a grace period the engine only knows that it ended ranks; the finding has the cause.
        reason=finding.reason if result.ending == "settled" else result.reason,
        started_at=result.started_at,
        startup_s=None if result.go_s is None else _rounded(result.go_s - result.started_s),
        duration_s=_rounded(result.ended_s - result.started_s),
        environment=attempt.environment,
        faults=_fault_records(result),
        rank_results=tuple(_rank_result(each, result) for each in finding.ranks),
        diagnosis=diagnosis.record() if diagnosis is not None else None,
    )


def _fault_records(result: WorldResult) -> tuple[dict[str, Json], ...]:
    """Return each fault with the times at which it fired, by rank."""
    records = []
    for index, fault in enumerate(result.spec.faults):
        fired = {
            str(rank): [_rounded(at_s - result.started_s) for at_s in times]
            for rank, times in firings(result, index).items()
        }
        note = fault_note(result.history, index)
        records.append({**to_json(fault), "fired": fired, **({"note": note} if note else {})})
    return tuple(records)


def _rank_result(finding: RankFinding, result: WorldResult) -> RankResult:
    facts = finding.facts
    seen = result.last_seen.get(facts.rank)
    ended_s = facts.exited_s if facts.exited_s is not None else result.ended_s
    return RankResult(
        rank=facts.rank,
        host=result.spec.host_of(facts.rank).name,
        pid=facts.pid,
        phase=facts.phase,
        outcome=finding.outcome,
        exit_code=facts.exit.code if facts.exit else None,
        signal=facts.exit.signal if facts.exit else None,
        duration_s=_rounded(ended_s - result.started_s),
        cpu_s=_rounded(facts.exit.cpu_s) if facts.exit else 0.0,
        peak_rss_bytes=facts.exit.peak_rss_bytes if facts.exit else 0,
        label="EXITED" if facts.has_died else seen.label if seen is not None else None,
        operations=tuple(_operation(each, result) for each in (seen.operations if seen else ())),
        log=f"rank-{facts.rank}.log",
        error=finding.error,
    )


def _operation(operation: Operation, result: WorldResult) -> dict[str, Json]:
    """Describe an open operation, with its time counted from the world's start."""
    return {
        "name": operation.name,
        "sequence": operation.sequence,
        "group": list(operation.group),
        "since_s": _rounded(operation.since_s - result.started_s),
        "is_waited": operation.waited_s is not None,
        "detail": operation.detail,
        "source": operation.source,
    }


def _rounded(seconds: float) -> float:
    return round(seconds, 4)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What facts.json holds.

    Attributes:
        result: What was observed.
        symptoms: Patterns of failures that follow from another rank's.
        attempt: The attempt that the verdict belongs to.
        root: pytest's rootdir.
    """

    result: WorldResult
    symptoms: Symptoms
    attempt: Attempt
    root: str


def write_facts(
    directory: Path, result: WorldResult, symptoms: Symptoms, attempt: Attempt, *, root: str
) -> None:
    """Write the data that the verdict was derived from, so that it can be derived again."""
    # A test may have put values into pytest's report that are not JSON.
    text = json.dumps(to_json(_Facts(result, symptoms, attempt, root)), default=repr)
    (directory / "facts.json").write_text(text + "\n", encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Rejudged:
    """A world judged a second time, from its artifacts.

    Attributes:
        judged: The judged world.
        verdict: The verdict that follows.
        written: The verdict that was written at the time.
    """

    judged: Judgement
    verdict: Verdict
    written: JsonObject


def rejudge(directory: Path) -> Rejudged:
    """Judge a world from its artifacts alone.

    Args:
        directory: The attempt's folder.

    Raises:
        MultihostError: The folder lacks a file that is needed.
    """
    data, written = _read(directory / "facts.json"), _read(directory / "verdict.json")
    try:
        facts = from_json(_Facts, data)
    except JsonError as error:
        raise MultihostError(
            f"{directory}: its facts cannot be read",
            seen=str(error),
            remedy="They were written by another version: use that one.",
        ) from error
    judged = judge_world(facts.result, facts.symptoms, SourceContext(facts.root))
    verdict = build_verdict(judged, facts.attempt)
    return Rejudged(judged, verdict, from_json(JsonObject, written))


def _read(path: Path) -> Json:
    try:
        return parse_json(path.read_bytes())
    except (OSError, JsonError) as error:
        raise MultihostError(
            f"{path.parent} is not the folder of an attempt that can be explained",
            seen=f"{path.name}: {error}",
            remedy="Name a folder such as .pytest_multihost/latest/NAME of a test that failed.",
        ) from error
