"""Who is named? Eight ways in which one rank goes wrong, told by us and by what people use.

Rank 1 of three is the culprit each time (worlds/hangs.py). A harness is right if its run fails and
names rank 1 and no other.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import peers
import projects
from figures import Section
from projects import Ended

CULPRIT = 1
CASES: Mapping[str, str] = {
    "killed_when_others_are_done": "killed, the others pass",
    "exits_with_3": "`sys.exit(3)`, the others pass",
    "skips_alone": "skips alone",
    "holds_the_gil": "native code holds the GIL",
    "is_stopped": "SIGSTOP",
    "reads_slowly": "a read that does not return, before a collective",
    "raises_before_a_collective": "raises before a collective",
    "teardown_hangs": "hangs in its teardown",
}
HANGS = ("holds_the_gil", "is_stopped", "reads_slowly", "teardown_hangs")
"""The cases that only a timeout ends, where nothing better is known."""

LIMIT_S, AMPLE_S = 15, 90
"""The timeout that peers are given; their ranks take some seconds to import torch. It is ample
where nothing hangs, and where it was over before rank 1 did what it was to do: a busy machine."""

PATIENCE_S = 10.0
"""How long after it a run may take to end."""

_PYTEST = (sys.executable, "-m", "pytest", "-q", "--basetemp=scratch", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True)
class Told:
    """What a harness has made of a case.

    Attributes:
        outcome: What pytest reported of the test, "-" if nothing.
        named: The ranks that were named.
        told_s: Seconds from the deed to the report; None where there was none.
        does_exit: Whether pytest ended by itself in time.
        kind: What the plugin called it.
        was_done: Whether rank 1 has done what it was to do before the report.
    """

    outcome: str
    named: tuple[int, ...]
    told_s: float | None
    does_exit: bool
    kind: str = ""
    was_done: bool = True

    @property
    def is_right(self) -> bool:
        """Whether the run fails and the culprit alone is named."""
        return self.was_done and self.outcome == "failed" and self.named == (CULPRIT,)

    @property
    def text(self) -> str:
        """What the reader sees of it."""
        if not self.was_done:
            return "the machine was too busy to tell"
        names = f"rank {', '.join(map(str, self.named))}" if self.named else "nobody"
        kind = f" ({self.kind})" if self.kind else ""
        after = f", {self.told_s:.1f} s" if self.told_s is not None else ""
        stays = "" if self.does_exit else "; never exits"
        return (
            f"{'right' if self.is_right else 'WRONG'}: {self.outcome}, {names}{kind}{after}{stays}"
        )


@dataclass(frozen=True, slots=True)
class Harness:
    """One that is asked: how it is run, and how its output names ranks."""

    label: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]
    named: Callable[[Ended], tuple[tuple[int, ...], str]]


def named_by_us(ended: Ended) -> tuple[tuple[int, ...], str]:
    """Return whom the verdict names, and its kind."""
    verdicts = ended.verdicts()
    return named_in(verdicts[-1]) if verdicts else ((), "")


def named_in(verdict: Mapping[str, Any]) -> tuple[tuple[int, ...], str]:
    """Return the culprits of a verdict; without a diagnosis the ranks that stand out."""
    diagnosis = verdict["diagnosis"]
    if diagnosis is not None:
        return tuple(diagnosis["culprits"]), diagnosis["kind"]
    ends = [each["outcome"] for each in verdict["rank_results"]]
    odd = tuple(rank for rank, end in enumerate(ends) if end != "passed")
    return odd, verdict["outcome"]


def named_in_text(pattern: str) -> Callable[[Ended], tuple[tuple[int, ...], str]]:
    """Return what finds the ranks that a harness's output names."""

    def find(ended: Ended) -> tuple[tuple[int, ...], str]:
        return tuple(sorted({int(rank) for rank in re.findall(pattern, ended.output)})), ""

    return find


HARNESSES: Sequence[Harness] = (
    Harness(
        peers.OURS_LABEL,
        ("-p", "multihost_hangs", "test_hangs_ours.py"),
        {},
        named_by_us,
    ),
    Harness(
        "torch `MultiProcessTestCase`",
        ("test_hangs_multi_process.py",),
        {"PYTHONPATH": str(peers.PEERS_SITE)},
        named_in_text(r"Process (\d+) (?:terminated or timed out|exited with error code)"),
    ),
    Harness(
        "pytest-timeout over `torch.multiprocessing.spawn`",
        ("-p", "timeout", "--timeout", "LIMIT_S", "test_hangs_timeout.py"),
        {},
        named_in_text(r"[Pp]rocess (\d+) terminated with"),
    ),
)


def ask(harness: Harness, case: str) -> Told:
    """Run one case under one harness."""
    told = _ask(harness, case, LIMIT_S if case in HANGS else AMPLE_S)
    return told if told.was_done else _ask(harness, case, AMPLE_S)


def _ask(harness: Harness, case: str, limit_s: int) -> Told:
    limit = str(limit_s)
    variables = {**harness.variables, "CASE": case, "LIMIT_S": limit}
    arguments = [part.replace("LIMIT_S", limit) for part in harness.arguments]
    variables |= {"DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": limit}
    with projects.ran([*_PYTEST, *arguments], variables, limit_s=limit_s + PATIENCE_S) as ended:
        named, kind = harness.named(ended)
        outcome, told_s = _outcome(ended)
        was_done = (ended.place / "moment").exists() and (told_s is None or told_s > 0)
        return Told(outcome, named, told_s, ended.code is not None, kind, was_done=was_done)


def _outcome(ended: Ended) -> tuple[str, float | None]:
    """Return what was reported of the test, worst first, and how long after the deed."""
    if not (ended.place / "reports.json").exists():
        return "-", None
    reports = ended.read_json("reports.json")
    calls = [
        (outcome, at) for when, outcome, at in reports if when == "call" or outcome != "passed"
    ]
    outcome, at = next(
        (one for one in calls if one[0] == "failed"), calls[0] if calls else ("-", 0)
    )
    moment = ended.place / "moment"
    return outcome, at - float(moment.read_text()) if moment.exists() and at else None


def truth_table(cases: Sequence[str] = tuple(CASES)) -> Section:
    """Ask all harnesses; peers at once, since they mostly wait."""
    told: dict[str, list[Told]] = {}
    for case in cases:
        ours, *others = HARNESSES
        with ThreadPoolExecutor() as pool:
            answers = [ask(ours, case), *pool.map(partial(ask, case=case), others)]
        told[case] = answers
    return truth_section(told)


def truth_section(told: Mapping[str, Sequence[Told]]) -> Section:
    """Return the table: what each harness made of each case, and how often it was right."""
    rows = [[CASES[case], *(each.text for each in found)] for case, found in told.items()]
    right = [sum(found[n].is_right for found in told.values()) for n in range(len(HARNESSES))]
    rows.append(["right", *(f"{count} of {len(told)}" for count in right)])
    labels = [harness.label for harness in HARNESSES]
    figures = {
        case: {label: asdict(each) for label, each in zip(labels, found, strict=True)}
        for case, found in told.items()
    }
    return Section(
        "Who is named: rank 1 of three goes wrong",
        ("rank 1", *labels),
        rows,
        figures,
        notes=(
            (
                f"Seconds from the deed to the report. The peers' timeout is {LIMIT_S} s here;"
                " torch's own is 300 s, pytest-timeout has none. Peers ran at once."
            ),
        ),
    )
