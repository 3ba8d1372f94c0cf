"""What it costs to be watched: the recorder, the watchdog, the idle I/O shim."""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

import figures
import io_shim
import projects
from figures import FailedError, Section, Spread, Turns

from pytest_multihost.extensions.faults.io_shim import find_library, why_missing

_PYTEST = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "multihost_hangs")
_WAYS = ("empty", "recorded")
STEPS_PER_S = 100
RANKS = 4


@dataclass(frozen=True, slots=True)
class Healthy:
    """A healthy world: CPU seconds of its controller and of all its ranks, and its seconds."""

    controller_s: float
    ranks_s: float
    wall_s: float


# The recorder


def recorder(*, rounds: int) -> Section:
    """Measure the recorder and return its table."""
    command = [sys.executable, str(Path(__file__).with_name("recorder_overhead.py"))]
    with projects.ran([*command, "--rounds", str(rounds)], {}) as ended:
        try:
            found = json.loads(ended.required(0).output.splitlines()[-1])
        except FailedError as error:
            return Section("The recorder, per call", ("why not",), [[str(error)]], None)
    return recorder_section(found)


def recorder_section(found: Mapping[str, Sequence[Mapping[str, float]]]) -> Section:
    """Return the table: the call, and what an empty wrapper and the recorder add to it."""
    rows = []
    for name, rounds in found.items():
        bare = [each["bare"] for each in rounds]
        added = [[each[way] - each["bare"] for each in rounds] for way in _WAYS]
        ratio = figures.ratio([each["recorded"] for each in rounds], bare)
        cells = [f"{median(values) / 1e3:.2f}" for values in (bare, *added)]
        rows.append([name, *cells, f"{ratio.median:.3f}" if ratio else "-"])
    heads = ("call", "bare, us", "an empty wrapper adds", "the recorder adds")
    return Section(
        "The recorder, per call",
        (*heads, "ratio to bare"),
        rows,
        found,
        notes=(
            (
                "Medians over rounds of 100 calls each way. An empty Python function around the"
                " same bound methods is what any recorder in Python pays."
            ),
        ),
    )


# The watchdog


def healthy(early: str, seconds: float) -> Healthy:
    """Run a world that works for so long, and return what it used.

    Raises:
        FailedError: It has failed.
    """
    steps = int(seconds * STEPS_PER_S)
    command = [*_PYTEST, "--multihost-early", early, "test_healthy.py"]
    with projects.ran(command, {"TESTS": "3", "STEPS": str(steps)}) as ended:
        timed, verdicts = ended.required(0).read_json("walls.json"), ended.verdicts()
        (own, _), (own_after, _) = timed["used"]
        ranks_s = sum(rank["cpu_s"] for each in verdicts[1:] for rank in each["rank_results"])
        return Healthy(own_after - own, ranks_s, sum(timed["walls"][1:]))


def watchdog(*, rounds: int, seconds: float) -> Section:
    """Measure the watchdog in a healthy world and return its table.

    Args:
        rounds: How often both ways take turns.
        seconds: How long the ranks work in each of the two tests of a round that count.
    """
    ways = {early: partial(healthy, early, seconds) for early in ("fail", "off")}
    return watchdog_section(figures.in_turns(ways, rounds))


def watchdog_section(turns: Turns) -> Section:
    """Return the table: the CPU of controller and ranks while they are watched and not."""
    rows = [_watch_row(early, turns.found[early], turns.failed.get(early)) for early in turns.found]
    rows.append(["difference", *_differences(turns.found["fail"], turns.found["off"])])
    told = {early: [asdict(each) for each in found] for early, found in turns.found.items()}
    return Section(
        f"The watchdog over {RANKS} gloo ranks that work",
        ("`multihost_early`", "controller, % of a core", "per rank", "a rank, % of a core"),
        rows,
        told,
        notes=(
            (
                f"{STEPS_PER_S} steps a second of an all_reduce and two small products. CPU seconds"
                " over seconds; median (lowest-highest, rounds)."
            ),
        ),
    )


def shares(each: Healthy) -> tuple[float, float, float]:
    """Return per cent of a core: the controller, that for each rank, and a rank itself."""
    controller = 100 * each.controller_s / each.wall_s
    return controller, controller / RANKS, 100 * each.ranks_s / each.wall_s / RANKS


def _watch_row(early: str, found: Sequence[Healthy], failure: str | None) -> list[str]:
    if not found:
        return [early, failure or "-", "-", "-"]
    return [early, *(Spread.of(each).text(2) for each in zip(*map(shares, found), strict=True))]


def _differences(watched: Sequence[Healthy], alone: Sequence[Healthy]) -> list[str]:
    pairs = list(zip(map(shares, watched), map(shares, alone), strict=False))
    found = [[one - other for one, other in zip(*pair, strict=True)] for pair in pairs]
    return [Spread.of(each).text(2) for each in zip(*found, strict=True)] if found else ["-"] * 3


# The shim


def idle_shim(*, rounds: int) -> Section:
    """Measure what an idle shim adds to a call and return its table."""
    heads = ("I/O shim, idle", "")
    if find_library() is None:
        return Section("The idle I/O shim", heads, [["none here", why_missing() or ""]], None)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        file = Path(name, "file")
        file.write_bytes(b"x")
        more_s = io_shim.call_cost(file, rounds)
    rows = [["a read of one byte takes longer by, ns", f"{more_s * 1e9:.0f}"]]
    return Section(
        "The idle I/O shim",
        heads,
        rows,
        {"more_s": more_s},
        notes=("The fastest of each way. `benchmarks/io_shim.py` measures it at length.",),
    )


def all_of(*, rounds: int, calls_rounds: int, seconds: float) -> list[Section]:
    """Measure everything and return the tables."""
    return [
        recorder(rounds=calls_rounds),
        watchdog(rounds=rounds, seconds=seconds),
        idle_shim(rounds=max(2, rounds)),
    ]
