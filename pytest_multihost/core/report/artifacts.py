"""The artifacts directory: one folder per run, and in it one folder per attempt with its records.

The records are the verdict, the history, and `facts.json`, which has all the data from which
`rejudge` can derive the verdict again.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import re
import secrets
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pytest_multihost.core import files
from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.model.errors import MultihostError, shown
from pytest_multihost.core.model.event import Event
from pytest_multihost.core.model.json_values import (
    Json,
    JsonError,
    JsonObject,
    finite,
    from_json,
    parse_foreign,
    to_json,
)
from pytest_multihost.core.model.regular_file import read_regular
from pytest_multihost.core.model.replay import replay_command, token
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.verdict import LARGE, JsonVerdict, RankResult, Verdict
from pytest_multihost.core.outcome import RankFinding, Symptoms
from pytest_multihost.core.outcome.fault_progress import (
    fault_note,
    firings,
    releases,
)

_MAX_NAME = 120
T = TypeVar("T")
_MAX_BYTES, _MAX_WHY = 1 << 26, 300
_RUN_ID = re.compile(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\dZ-\d+(-[0-9a-f]{4})?")
_STACKS = re.compile(r"rank-.*\.stacks")
_NOTED = re.compile(r"rank-.*\.(keys|threads)")
"""The files that ranks write for the case that the world hangs; the facts have their content."""


@dataclass(frozen=True, slots=True)
class _Summary:
    """The part of a diagnosis that the page of a run shows."""

    kind: str
    summary: str


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run of pytest.

    Attributes:
        run_id: UTC time, process id of the controller, and four random digits.
    """

    base: Path
    run_id: str

    @classmethod
    def open(cls, base: Path, run_id: str, mode: int = 0o700) -> RunFolder:
        """Make a run's folder, link `latest` and `verdicts.jsonl` to it, and delete old runs.

        All processes of a run may call this; the first one makes the folder. The last three runs
        and those still in progress are kept.

        Args:
            mode: The mode of the directories: see `artifacts_access.ACCESS`.

        Raises:
            SettingError: The directory belongs to something other than this plugin.
            OSError: The directory cannot be written.
        """
        folder = cls(base, run_id)
        files.claim(base, mode)
        files.hold(folder.path, mode)
        files.append(folder.path / "verdicts.jsonl", "")
        files.link(base / "latest", run_id)
        files.link(base / "verdicts.jsonl", "latest/verdicts.jsonl")
        for old in sorted(path for path in base.iterdir() if _RUN_ID.fullmatch(path.name))[:-3]:
            files.remove_unheld(old)
        return folder

    @property
    def path(self) -> Path:
        """The path of the run's folder."""
        return self.base / self.run_id

    def attempt(self, nodeid: str, attempt: int) -> Path:
        """Make and return the folder of one attempt of one test."""
        path = plain = self.path / attempt_name(nodeid, attempt)
        while True:
            try:
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                path.mkdir(mode=0o700)
                files.make_directory(path, stat.S_IMODE(self.path.stat().st_mode))
            except FileExistsError:  # another process has run the same test, as with --dist=each
                path = plain.with_name(f"{plain.name}-{secrets.token_hex(2)}")
            else:
                return path

    def verdicts(self) -> tuple[list[JsonVerdict], list[str]]:
        """Return the verdicts that the run's processes have written, and a text for each bad line.

        A killed process may leave half a line.

        Raises:
            OSError: The file cannot be read.
        """
        found: list[JsonVerdict] = []
        problems = []
        data = read_regular(self.path / "verdicts.jsonl", max_bytes=_MAX_BYTES)
        lines = data.splitlines()
        for number, line in enumerate(lines, 1):
            try:
                verdict = from_json(JsonObject, parse_foreign(line))
                _check_line(verdict)
                found.append(verdict)
            except JsonError as error:
                problems.append(f"line {number}: {error}")
        return found, problems

    def append_verdict(self, verdict: Mapping[str, object]) -> None:
        """Append a line to the run's verdicts.jsonl; several processes may do so at once."""
        files.append(self.path / "verdicts.jsonl", json.dumps(verdict, allow_nan=False) + "\n")


def _check_line(verdict: JsonVerdict) -> None:
    """Check that a line of verdicts.jsonl is a verdict, and that its folder is one of the run.

    Raises:
        JsonError: It is none.
    """
    read = from_json(Verdict, verdict)
    if "/" in read.dir or read.dir in {".", ".."}:
        raise JsonError(f"dir: {shown(read.dir)} is not the name of a folder")
    if read.diagnosis is not None:
        from_json(_Summary, verdict["diagnosis"])


def new_run_id() -> str:
    """Return a name for a run that starts now in this process."""
    started = datetime.datetime.now(datetime.UTC)
    # Random digits: containers that share a directory may start at once, with equal process ids.
    return f"{started:%Y-%m-%dT%H-%M-%SZ}-{os.getpid()}-{secrets.token_hex(2)}"


def attempt_name(nodeid: str, attempt: int) -> str:
    """Return a folder name for an attempt: readable, unique, and valid on every file system."""
    words = re.sub(r"[^\w.-]+", "-", nodeid, flags=re.ASCII).strip("-")[:_MAX_NAME]
    return f"{words}-{zlib.crc32(nodeid.encode('utf-8', 'surrogatepass')):08x}-{attempt}"


def write_attempt(
    directory: Path, verdict: Mapping[str, object], history: Iterable[Event], *, origin_s: float
) -> None:
    """Write one attempt's verdict and history, and remove empty stack files and ranks' notes."""
    text = json.dumps(verdict, indent=1, allow_nan=False)
    files.write(directory / "verdict.json", text + "\n")
    encode = json.JSONEncoder(default=repr).encode
    lines = [encode(event.record(origin_s=origin_s)) + "\n" for event in history]
    files.write(directory / "history.jsonl", "".join(lines))
    for path in directory.iterdir():
        is_empty = _STACKS.fullmatch(path.name) and path.stat().st_size == 0
        if is_empty or _NOTED.fullmatch(path.name):
            with contextlib.suppress(OSError):
                path.unlink()


@dataclass(frozen=True, slots=True)
class Attempt:
    """The attempt that a verdict belongs to.

    Attributes:
        directory: Name of the attempt's folder within the run's.
        environment: Versions by package name; None for packages that are not installed.
    """

    run_id: str
    directory: str
    worker: str | None
    environment: Mapping[str, str | None]


@cache
def package_versions() -> Mapping[str, str | None]:
    """Return the versions that a verdict depends on; None for a package that is not installed."""
    import importlib.metadata  # 20 ms, and `multihost attach` does not need it

    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "platform": sys.platform,
        **dict.fromkeys(("pytest", "torch", "jax")),
    }
    for name in ("pytest", "torch", "jax"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def build_verdict(judged: Judgement, attempt: Attempt) -> Verdict:
    """Return the verdict on a world."""
    result, finding, diagnosis = judged.result, judged.finding, judged.diagnosis
    spec = result.spec
    verdict = Verdict(
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
        replay_command=replay_command(spec),
        status=finding.status,
        expected=None,
        outcome=finding.outcome,
        ended_by="self" if result.ending == "self" else "harness",
        reason=_reason(judged),
        started_at=result.started_at,
        startup_s=None if result.go_s is None else round(result.go_s - result.started_s, 4),
        duration_s=round(result.ended_s - result.started_s, 4),
        environment=attempt.environment,
        faults=tuple(_fault_records(result)),
        rank_results=tuple(_rank_result(each, result) for each in finding.ranks),
        compact=result.spec.backend_facts.tells_classes and result.spec.size > LARGE,
        diagnosis=diagnosis.record() if diagnosis is not None else None,
    )
    known = {each.name for each in fields(Verdict)}
    of_services: dict[str, Any] = {}
    for each in result.records.values():
        of_services |= {key: value for key, value in each.verdict.items() if key in known}
    return replace(verdict, **of_services)


def _reason(judged: Judgement) -> str | None:
    """Return why the world ended as it did, if no exception and no diagnosis says it."""
    result, finding = judged.result, judged.finding
    if result.ending == "settled":  # the engine knows only that it ended ranks after a grace period
        return finding.reason
    is_lone_skip = finding.status == "failed" and not any(each.error for each in finding.ranks)
    return result.reason or (finding.reason if is_lone_skip else None)


def _fault_records(result: WorldResult) -> Iterator[dict[str, Json]]:
    """Yield each fault with the times at which it fired, by rank."""
    for index, fault in enumerate(result.spec.faults):
        fired = {
            str(rank): [round(at_s - result.started_s, 4) for at_s in times]
            for rank, times in firings(result, index).items()
        }
        note = fault_note(result.history, index)
        released = {
            str(rank): [each.reason for each in found]
            for rank, found in releases(result, index).items()
        }
        params = {name: finite(value) for name, value in fault.params.items()}
        yield {
            **to_json(fault),
            "params": params,
            "fired": fired,
            **({"released": released} if released else {}),
            **({"note": note} if note else {}),
        }


def _rank_result(finding: RankFinding, result: WorldResult) -> RankResult:
    facts = finding.facts
    seen = result.last_seen_of(facts.rank)
    ended_s = facts.exited_s if facts.exited_s is not None else result.ended_s
    role = result.spec.role_of(facts.rank)
    return RankResult(
        rank=facts.rank,
        role=None if role is None else role.name,
        role_rank=None if role is None else facts.rank - role.ranks.start,
        host=result.spec.host_of(facts.rank).name,
        pid=facts.pid,
        phase=facts.phase,
        outcome=finding.outcome,
        exit_code=facts.exit.code if facts.exit else None,
        signal=facts.exit.signal if facts.exit else None,
        duration_s=round(ended_s - result.started_s, 4),
        cpu_s=round(facts.exit.cpu_s, 4) if facts.exit else 0.0,
        peak_rss_bytes=facts.exit.peak_rss_bytes if facts.exit else 0,
        label="EXITED" if facts.has_died else seen.label if seen is not None else None,
        operations=tuple(
            {
                "name": each.name,
                "sequence": each.sequence,
                "group": list(each.group),
                "since_s": round(each.since_s - result.started_s, 4),
                "is_waited": each.waited_s is not None,
                "detail": each.detail,
                "source": each.source,
            }
            for each in (seen.operations if seen else ())
        ),
        log=f"rank-{facts.rank}.log",
        error=finding.error,
    )


@dataclass(frozen=True, slots=True)
class Facts:
    """The content of facts.json.

    Attributes:
        symptoms: Patterns of failures that follow from another rank's failure.
        root: The directory that source paths are relative to.
    """

    result: WorldResult
    symptoms: Symptoms
    attempt: Attempt
    root: str


def write_facts(
    directory: Path, result: WorldResult, symptoms: Symptoms, attempt: Attempt, *, root: str
) -> None:
    """Write the data from which `rejudge` can derive the verdict again."""
    # A test may have put values into pytest's report that are not JSON.
    text = json.dumps(to_json(Facts(result, symptoms, attempt, root)), default=repr)
    files.write(directory / "facts.json", text + "\n")


def read_artifact(path: Path, convert: Callable[[Json], T]) -> T:
    """Return the converted content of a JSON file of an attempt.

    Raises:
        MultihostError: The file is missing, or its content is not as expected.
    """
    try:
        return convert(parse_foreign(read_regular(path, max_bytes=_MAX_BYTES)))
    except OSError as error:
        raise MultihostError(
            f"{path.parent} is not the folder of an attempt that can be explained",
            seen=f"{path.name}: {error}",
            remedy="Name a folder such as .pytest_multihost/latest/NAME of a test that failed.",
        ) from error
    except JsonError as error:
        raise unusable(path, str(error)) from error


def last_attempts(verdicts: Iterable[JsonVerdict]) -> list[JsonVerdict]:
    """Return the last verdict of each test: a rerun replaces the attempt that it repeats."""
    found: dict[str, JsonVerdict] = {}
    for each in verdicts:
        if each["nodeid"] not in found or found[each["nodeid"]]["attempt"] <= each["attempt"]:
            found[each["nodeid"]] = each
    return list(found.values())


def unusable(path: Path, why: str) -> MultihostError:
    """Return the error for an artifact whose content this version would not write."""
    return MultihostError(
        f"{path} cannot be used",
        seen=why if len(why) <= _MAX_WHY else f"{why[:_MAX_WHY]} ...",
        remedy="It is damaged, or another version has written it: use that one.",
    )
