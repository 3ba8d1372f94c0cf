"""What one multihost test costs, beside what people use today, and how that grows.

Of one test more: fixtures, ranks, process group, one collective, reporting - and not the imports
that every run pays once. Two runs of different length are subtracted: what cannot be told from
within a peer, such as the CPU time of processes that outlive a test, is in it. Seconds are those
that pytest sees of a test, where it sees them all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import figures
import peers
import projects
from figures import Section, Turns, spread_text
from peers import Way

BACKENDS = ("none", "gloo", "jax")
TARGETS_S: Mapping[str, float] = {"none": 0.05, "gloo": 0.15, "jax": 0.35}
"""Wall and CPU seconds of one test more of ours at four ranks, at most."""

PARTS = ("fork", "init", "test", "teardown", "leave", "report")
_NO_TESTS = 5
_REASON = 200


@dataclass(frozen=True, slots=True)
class Marginal:
    """What one test more costs, what a run of one test takes, and a rank's own memory."""

    wall_s: float
    cpu_s: float
    first_s: float
    uss_bytes: float | None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of ours.

    Attributes:
        walls: Seconds of each test but the first, reporting included.
        cpu_s: CPU seconds per test of ranks, server and controller.
        start_s: Seconds of everything but the tests that are counted: imports, collection, the
            server, the first test, the end of pytest.
        uss_bytes: A rank's own memory, the median of the ranks.
        parts: Seconds of the parts of a test, medians.
    """

    walls: Sequence[float]
    cpu_s: float
    start_s: float
    uss_bytes: float | None
    parts: Mapping[str, float]


# One test more, beside peers


def marginal(way: Way, ranks: int) -> Marginal:
    """Measure what one test more costs a way.

    Raises:
        FailedError: A run has failed.
    """
    less, more = (_once(way, ranks, tests) for tests in (way.base, way.base + way.more))
    walls = more.walls[way.base :] if way.is_timed else ()
    return Marginal(
        wall_s=median(walls) if walls else (more.wall_s - less.wall_s) / way.more,
        cpu_s=(more.cpu_s - less.cpu_s) / way.more,
        first_s=less.wall_s if way.base else more.wall_s,
        uss_bytes=more.uss_bytes,
    )


@dataclass(frozen=True, slots=True)
class _Once:
    """One run: its seconds, those of each test in pytest's eyes, and a rank's own memory."""

    wall_s: float
    cpu_s: float
    walls: Sequence[float]
    uss_bytes: float | None


def _once(way: Way, ranks: int, tests: int) -> _Once:
    command, variables = way.command_for(ranks), way.variables_for(ranks, tests)
    with projects.ran(command, variables) as ended:
        ended.required(*((0,) if tests else (0, _NO_TESTS)))
        walls = ended.read_json("walls.json")["walls"] if way.is_timed and tests else ()
        return _Once(ended.wall_s, ended.cpu_s, walls, _uss(ended.place))


def _uss(place: Path) -> float | None:
    found = [int(file.read_text()) for file in place.glob("uss-*")]
    return median(found) if found else None


def beside_peers(*, ranks: int, rounds: int, is_quick: bool) -> Section:
    """Measure all ways in turns and return their table."""
    chosen = [way for way in peers.PEERS if way.is_quick or not is_quick]
    own = [peers.ours(backend) for backend in BACKENDS]
    missing = {way: reason for way in (*own, *peers.PEERS) if (reason := way.why_missing())}
    missing |= {way: "left out of the quick run" for way in peers.PEERS if way not in chosen}
    there = [way for way in (*own, *chosen) if way not in missing]
    turns = figures.in_turns({way: partial(marginal, way, ranks) for way in there}, rounds)
    return peers_section(own, missing, turns, ranks)


def peers_section(
    own: Sequence[Way], missing: Mapping[Way, str], turns: Turns, ranks: int
) -> Section:
    """Return the table: ours, then each peer with its ratio to ours with the same backend."""
    base = {way.backend: turns.found.get(way, []) for way in own}
    failed = {
        way: f"{way.caveat or 'failed'}: {text}"[:_REASON] for way, text in turns.failed.items()
    }
    reasons = {**missing, **failed}
    ways = [*own, *(way for way in peers.PEERS)]
    rows = [_peer_row(way, turns.found.get(way, []), base, reasons.get(way)) for way in ways]
    told = [
        {
            "way": way.label,
            "backend": way.backend,
            "missing": reasons.get(way),
            "packages": way.packages,
            "rounds": [asdict(each) for each in turns.found.get(way, [])],
        }
        for way in ways
    ]
    head = ("backend", "way", "one test more, s", "to ours", "CPU s", "to ours")
    return Section(
        f"One test more at {ranks} ranks, beside peers",
        (*head, "run of one test, s", "USS per rank, MB", "ranks of its own"),
        rows,
        told,
        notes=(
            (
                "Median (lowest-highest, rounds). The ways took turns; a ratio compares two of one"
                " round. MPI's are compared with ours without a runtime."
            ),
            (
                "A way without ranks of its own for each test pays for them once: what a test"
                " leaves behind, the next one finds."
            ),
        ),
    )


def _peer_row(
    way: Way, found: Sequence[Marginal], base: Mapping[str, Sequence[Marginal]], reason: str | None
) -> list[str]:
    ours, own = base.get(way.backend, []), "yes" if way.has_own_ranks else "no"
    if not found:
        return [way.backend, way.label, reason or "-", *["-"] * 5, own]
    cells = [way.backend, way.label]
    for name in ("wall_s", "cpu_s"):
        theirs = [getattr(each, name) for each in found]
        ratio = figures.ratio(theirs, [getattr(each, name) for each in ours])
        cells.append(spread_text(theirs))
        cells.append("1" if way.is_ours else ratio.text(1) if ratio else "-")
    uss = [each.uss_bytes for each in found if each.uss_bytes is not None]
    cells.append(spread_text([each.first_s for each in found], 2))
    return [*cells, spread_text(uss, 0, 1e-6), own]


# Ours by ranks and by tests


def run_ours(backend: str, ranks: int, tests: int) -> Run:
    """Run `tests` tests of ours, and one before them that does not count.

    Raises:
        FailedError: The run has failed.
    """
    way = peers.ours(backend)
    with projects.ran(way.command_for(ranks), way.variables_for(ranks, tests + 1)) as ended:
        ended.required(0)
        timed, verdicts = ended.read_json("walls.json"), ended.verdicts()
        walls, ((own, server), (own_after, server_after)) = timed["walls"][1:], timed["used"]
        used = own_after - own + server_after - server
        used += sum(rank["cpu_s"] for each in verdicts[1:] for rank in each["rank_results"])
        parts = [
            parts_of(_history(ended.place, verdict), verdict["duration_s"], wall)
            for verdict, wall in zip(verdicts[1:], walls, strict=True)
        ]
        return Run(
            walls=walls,
            cpu_s=used / tests,
            start_s=ended.wall_s - sum(walls),
            uss_bytes=_uss(ended.place),
            parts={part: median(each[part] for each in parts) for part in PARTS},
        )


def _history(place: Path, verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    folder = place / ".pytest_multihost" / verdict["run_id"] / verdict["dir"]
    lines = (folder / "history.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def parts_of(
    history: Sequence[Mapping[str, Any]], duration_s: float, wall_s: float
) -> dict[str, float]:
    """Split the seconds of a test.

    Args:
        history: What happened in the world, each with its second.
        duration_s: Seconds from its start to its end.
        wall_s: Seconds of the test in pytest's eyes.

    Returns:
        Seconds to fork the ranks, until all are ready, until all bodies are over, until all have
        torn down, until all are gone, and of everything around the world.
    """
    ends = [
        max(each["at_s"] for each in history if each["kind"] == kind)
        for kind in ("forked", "ready", "parked", "done")
    ]
    times = [0.0, *ends, duration_s, wall_s]
    return {part: times[n + 1] - times[n] for n, part in enumerate(PARTS)}


def by_ranks(*, sizes: Sequence[int], rounds: int, tests: int) -> Section:
    """Measure ours at several sizes in turns and return the table."""
    ways = {
        (backend, size): partial(run_ours, backend, size, max(2, min(tests, 64 // size)))
        for backend in BACKENDS
        if peers.ours(backend).why_missing() is None
        for size in sizes
    }
    turns = figures.in_turns(ways, rounds)
    rows = [_size_row(*key, turns.found[key], turns.failed.get(key)) for key in ways]
    told = [
        {"backend": backend, "ranks": size, "rounds": [asdict(each) for each in found]}
        for (backend, size), found in turns.found.items()
    ]
    heads = ("backend", "ranks", "a test, s", "CPU s", "USS per rank, MB", "start of the run, s")
    return Section(
        "Ours by ranks",
        (*heads, *(f"{part}, ms" for part in PARTS)),
        rows,
        told,
        notes=(
            (
                "A test, all in all: fixtures, ranks, group, a collective, verdict, report. Median"
                " (lowest-highest, tests of all rounds); CPU of ranks, server and controller."
            ),
            (
                "Its parts: fork the ranks; until the runtime is up in all of them; fixtures and"
                " test; teardown; until all are gone; what pytest and the artifacts take. Median"
                " of medians."
            ),
        ),
    )


def _size_row(backend: str, size: int, found: Sequence[Run], failure: str | None) -> list[str]:
    if not found:
        return [backend, str(size), failure or "-", *["-"] * (3 + len(PARTS))]
    uss = [each.uss_bytes for each in found if each.uss_bytes is not None]
    return [
        backend,
        str(size),
        spread_text([wall for each in found for wall in each.walls]),
        spread_text([each.cpu_s for each in found]),
        spread_text(uss, 1, 1e-6),
        spread_text([each.start_s for each in found], 2),
        *(f"{1e3 * median(each.parts[part] for each in found):.1f}" for part in PARTS),
    ]


def by_tests(*, counts: Mapping[str, Sequence[int]], ranks: int) -> Section:
    """Run ours with more and more tests and return the table."""
    ways = {
        (backend, count): partial(run_ours, backend, ranks, count)
        for backend, several in counts.items()
        if peers.ours(backend).why_missing() is None
        for count in several
    }
    turns = figures.in_turns(ways, 1)
    rows = [
        [backend, str(count), *_growth_cells(turns.found[backend, count], turns, (backend, count))]
        for backend, count in ways
    ]
    told = [
        {"backend": backend, "tests": count, "runs": [asdict(each) for each in found]}
        for (backend, count), found in turns.found.items()
    ]
    heads = ("backend", "tests", "a test, s", "CPU s", "last tenth to first tenth")
    return Section(f"Ours by tests in one run, {ranks} ranks", heads, rows, told)


def _growth_cells(found: Sequence[Run], turns: Turns, key: tuple[str, int]) -> list[str]:
    if not found:
        return [turns.failed.get(key, "-"), "-", "-"]
    (run,) = found
    return [spread_text(run.walls), f"{run.cpu_s:.3f}", growth_text(run.walls)]


def growth_text(walls: Sequence[float]) -> str:
    """Return how the last tenth of the tests compares with the first, by their medians."""
    tenth = len(walls) // 10
    return f"{median(walls[-tenth:]) / median(walls[:tenth]):.2f}" if tenth else "-"


def missed(section: Section) -> list[str]:
    """Return which of our targets at four ranks are missed."""
    told = [each for each in section.figures if each["way"] == peers.OURS_LABEL and each["rounds"]]
    return [
        f"{each['backend']}: {name} of one test more is at most {TARGETS_S[each['backend']]} s"
        for each in told
        for name in ("wall_s", "cpu_s")
        if median(one[name] for one in each["rounds"]) > TARGETS_S[each["backend"]]
    ]
