"""How soon is a hang told, and what does telling it take?"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import figures
import projects
from figures import FailedError, Section, Turns, spread_text
from projects import Ended

from pytest_multihost.core.attempt import rejudge
from pytest_multihost.core.model.source import ANY_SOURCE
from pytest_multihost.core.report.layout import merge_stacks

WORLDS: Sequence[tuple[str, int]] = (
    ("none", 4),
    ("gloo", 4),
    ("none", 16),
    ("gloo", 16),
    ("none", 64),
)
_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "multihost_hangs")


@dataclass(frozen=True, slots=True)
class Telling:
    """What it took to tell one hang.

    Attributes:
        verdict_s: From the last progress of any rank to the verdict.
        dump_s: To have all ranks write their stacks, twice, and read them.
        merge_s: To merge the stacks of all ranks into one tree.
        judge_s: To derive everything again from the artifacts.
        is_right: Whether rank 0 is named, and no other.
    """

    verdict_s: float
    dump_s: float
    merge_s: float
    judge_s: float
    is_right: bool


@contextlib.contextmanager
def late(
    backend: str, ranks: int, *options: str, variables: Mapping[str, str]
) -> Iterator[tuple[Ended, Mapping[str, Any]]]:
    """Have rank 0 be late for ever; the run and its verdict can be read within the block.

    Args:
        options: Of pytest, beside its usual ones.
        variables: Of the run, beside its usual ones.

    Raises:
        FailedError: There was no verdict.
    """
    usual = {"BACKEND": backend, "RANKS": str(ranks)}
    with projects.ran([*_PYTEST, *options, "test_late.py"], {**usual, **variables}) as ended:
        verdicts = ended.required(1).verdicts()
        if not verdicts or verdicts[-1]["diagnosis"] is None:
            raise FailedError(f"no diagnosis: {ended.output[-500:]}")
        yield ended, verdicts[-1]


def tell(backend: str, ranks: int) -> Telling:
    """Have rank 0 be late for ever and see what is made of it.

    Raises:
        FailedError: There was no verdict.
    """
    with late(backend, ranks, "-p", "timed_dump", variables={}) as (ended, verdict):
        folder = ended.place / ".pytest_multihost" / verdict["run_id"] / verdict["dir"]
        merge_s, judge_s = judging_s(folder)
        return Telling(
            verdict_s=verdict["diagnosis"]["detected_after_s"],
            dump_s=ended.read_json("dump.json"),
            merge_s=merge_s,
            judge_s=judge_s,
            is_right=verdict["diagnosis"]["culprits"] == [0],
        )


def judging_s(folder: Path) -> tuple[float, float]:
    """Return the seconds to merge the stacks of an attempt, and to judge it again."""
    began = time.perf_counter()
    again = rejudge(folder, ANY_SOURCE)
    judge_s = time.perf_counter() - began
    began = time.perf_counter()
    merge_stacks(again.judged.result.dumps)
    return time.perf_counter() - began, judge_s


def times(*, worlds: Sequence[tuple[str, int]], rounds: int) -> Section:
    """Measure in turns and return the table."""
    ways = {world: partial(tell, *world) for world in worlds}
    return times_section(figures.in_turns(ways, rounds))


def times_section(turns: Turns) -> Section:
    """Return the table."""
    rows = [_row(*world, found, turns.failed) for world, found in turns.found.items()]
    told: list[Mapping[str, Any]] = [
        {"backend": backend, "ranks": ranks, "rounds": [asdict(each) for each in found]}
        for (backend, ranks), found in turns.found.items()
    ]
    heads = ("backend", "ranks", "last progress to verdict, s", "dump, ms", "merge, ms")
    return Section(
        "A late rank: time to the verdict",
        (*heads, "judge again from the artifacts, ms", "rank 0 alone is named"),
        rows,
        told,
        notes=(
            (
                "Rank 0 sleeps, the others wait for it. Everybody else's time is their timeout,"
                " 300 s by default with torch, and what they do then: see the next table."
            ),
        ),
    )


def _row(
    backend: str, ranks: int, found: Sequence[Telling], failed: Mapping[Any, str]
) -> list[str]:
    if not found:
        return [backend, str(ranks), failed.get((backend, ranks), "-"), *["-"] * 4]
    return [
        backend,
        str(ranks),
        spread_text([each.verdict_s for each in found], 2),
        spread_text([each.dump_s for each in found], 1, 1e3),
        spread_text([each.merge_s for each in found], 2, 1e3),
        spread_text([each.judge_s for each in found], 1, 1e3),
        f"{sum(each.is_right for each in found)} of {len(found)}",
    ]
