"""Which hang does a passing test hide? Score what is found in the corpus of latent hangs.

    python benchmarks/latent.py --by-hand [--only NAME] [--backend NAME] [--json FILE]
    python benchmarks/latent.py --undisturbed 5 [...]

The programs of tests/latent pass; most of them hide one hang.

--by-hand runs each latent program with the fault that is written beside it: does it hang then, or
leave ranks waiting for one that has failed, and is a line named that is marked in it? Exits with 1
if a program does not.

--undisturbed runs every program so many times as it is. All must pass.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "latent"
EXPECTATIONS = "PYTEST_MULTIHOST_LATENT_EXPECTATIONS"
BY_HAND = "PYTEST_MULTIHOST_LATENT_BY_HAND"
MODULE_LIMIT_S = 1800

Programs = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What is expected of each program, by module and id."""


@dataclass(frozen=True)
class Exposed:
    """One latent program that was run with its own fault.

    Attributes:
        name: Module and test.
        world: Backend and ranks.
        family: The kind of disturbance.
        got: What became of the world.
        is_exposed: Whether it hung, or ranks were left waiting.
        named: Which marked lines were named: `latent`, `waits`, or nothing.
        seconds: How long the world took.
    """

    name: str
    world: str
    family: str
    got: str
    is_exposed: bool
    named: str
    seconds: float


def main() -> int:
    """Run what is asked for, print it, and return the exit code."""
    options = _options()
    programs = _programs(options.only, options.backend)
    if options.undisturbed:
        return _run_undisturbed(programs, options.undisturbed)
    rows = []
    for row in _run_by_hand(programs):
        print(_text(row), flush=True)
        rows.append(row)
    print()
    print(f"programs            {len(rows)}")
    print(f"exposed by hand     {_share(row.is_exposed for row in rows)}")
    print(f"a marked line named {_share(bool(row.named) for row in rows)}")
    print(f"of the fault itself {_share(row.named == 'latent' for row in rows)}")
    if options.json:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    return 0 if all(row.is_exposed for row in rows) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--by-hand", action="store_true", help="with the fault beside each program")
    parser.add_argument("--undisturbed", type=int, default=0, help="so many times, as they are")
    parser.add_argument("--only", default="", help="part of the ids to run")
    parser.add_argument("--backend", default="", help="the backend whose programs are to run")
    parser.add_argument("--json", default="", help="file for the scores")
    return parser.parse_args()


def _programs(only: str, backend: str) -> Programs:
    with tempfile.TemporaryDirectory(prefix="multihost-latent-") as scratch:
        path = Path(scratch, "expectations")
        ended = _pytest(["--collect-only", "-q"], {EXPECTATIONS: str(path)})
        if ended.returncode != 0:
            print(ended.stdout)
            raise SystemExit("the corpus could not be collected")
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    programs: dict[str, dict[str, Mapping[str, Any]]] = {}
    for each in found:
        if only in each["nodeid"] and backend in ("", each["expected"]["backend"]):
            module = each["nodeid"].partition("::")[0]
            programs.setdefault(module, {})[each["nodeid"]] = each["expected"]
    return programs


def _pytest(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "multihost_hangs", "-p", "no:timeout"]
    variables = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(environment or {})}
    for name in ("CI", "PYTEST_ADDOPTS"):
        variables.pop(name, None)
    return subprocess.run(
        [*command, *arguments],
        cwd=CORPUS,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=MODULE_LIMIT_S,
        check=False,
        text=True,
    )


def _verdicts(
    nodeids: Iterable[str], environment: Mapping[str, str] | None = None
) -> dict[str, Mapping[str, Any]]:
    """Run programs of one module, and return their verdicts by id."""
    with tempfile.TemporaryDirectory(prefix="multihost-latent-") as scratch:
        ended = _pytest([*nodeids, "--multihost-artifacts", scratch], environment)
        file = Path(scratch, "verdicts.jsonl")
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    if ended.returncode not in (0, 1):  # neither passed nor failed: pytest itself went wrong
        print(f"pytest ended with {ended.returncode}:\n{ended.stdout}")
    return {verdict["nodeid"]: verdict for verdict in map(json.loads, lines)}


def _run_undisturbed(programs: Programs, times: int) -> int:
    number, failed, slowest = 0, set(), (0.0, "")
    for nodeids in programs.values():
        for _ in range(times):
            for nodeid, verdict in _verdicts(nodeids).items():
                number += 1
                slowest = max(slowest, (verdict["duration_s"], nodeid))
                if verdict["status"] != "passed":
                    failed.add(nodeid)
                    print(f"{verdict['status']}: {nodeid}: {verdict['reason']}", flush=True)
    print(f"{number} runs of {sum(map(len, programs.values()))} programs")
    print(f"slowest: {slowest[0]:.2f} s, {slowest[1]}")
    print(f"not passed each time: {len(failed)}")
    return 1 if failed else 0


def _run_by_hand(programs: Programs) -> Iterator[Exposed]:
    for expectations in programs.values():
        latent = {nodeid: each for nodeid, each in expectations.items() if each["family"]}
        if not latent:
            continue
        verdicts = _verdicts(latent, {BY_HAND: "1"})
        for nodeid, expected in latent.items():
            yield exposed(nodeid, expected, verdicts.get(nodeid))


def exposed(nodeid: str, expected: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> Exposed:
    """Say whether a fault has laid bare what a program hides; None: no world was run."""
    found = verdict or {}
    return Exposed(
        name=_name(nodeid),
        world=f"{expected['backend']} x {expected['ranks']}",
        family=expected["family"],
        got=_outcome(found),
        is_exposed=_is_left_waiting(found),
        named=named(places(found), nodeid.partition("::")[0], expected["lines"]),
        seconds=found.get("duration_s") or 0.0,
    )


def _outcome(verdict: Mapping[str, Any]) -> str:
    if not verdict:
        return "not run"
    diagnosis = verdict["diagnosis"] or {}
    if not diagnosis:
        return str(verdict["outcome"])
    culprits, waiting = (_ranks(diagnosis[key] or []) for key in ("culprits", "waiting"))
    return f"{diagnosis['kind']} [{culprits}] <- [{waiting}]"


def _is_left_waiting(verdict: Mapping[str, Any]) -> bool:
    """Return whether ranks did not end by themselves.

    Of ranks that poll while another has failed there is no diagnosis: they are ended with it, and
    have no error of their own.
    """
    if not verdict or verdict["status"] == "passed":
        return False
    diagnosis = verdict["diagnosis"] or {}
    has_ended_others = verdict["ended_by"] == "harness" and any(
        rank["outcome"] == "collateral" and rank["error"] is None
        for rank in verdict["rank_results"]
    )
    return verdict["outcome"] == "hung" or bool(diagnosis.get("waiting")) or has_ended_others


def places(verdict: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return all lines of the user's code that a verdict names."""
    diagnosis = verdict.get("diagnosis") or {}
    divergence = diagnosis.get("divergence") or {}
    found = [
        diagnosis.get("where"),
        *(diagnosis.get("places") or ()),
        *(divergence.get("sides") or ()),
        *(rank["error"] for rank in verdict.get("rank_results", ())),
    ]
    return [(each["file"], each["line"]) for each in found if each and each.get("file")]


def named(found: Iterable[tuple[str, int]], module: str, lines: Mapping[str, Sequence[int]]) -> str:
    """Return the best mark of the lines that are named: `latent`, `waits`, or nothing."""
    numbers = {line for file, line in found if file == module}
    return next((mark for mark in ("latent", "waits") if numbers & {*lines[mark]}), "")


def _name(nodeid: str) -> str:
    return nodeid.replace(".py::test_", " ")


def _ranks(ranks: Sequence[int]) -> str:
    return ",".join(map(str, sorted(ranks)))


def _text(row: Exposed) -> str:
    word = "ok" if row.is_exposed else "MISSED"
    return (
        f"{word:8}{row.name:72} {row.world:9} {row.family:8} {row.got:34}"
        f" {row.named or '-':7}{row.seconds:6.1f} s"
    )


def _share(values: Iterable[bool]) -> str:
    found = list(values)
    return f"{sum(found) / max(1, len(found)):.1%} ({sum(found)} of {len(found)})"


if __name__ == "__main__":
    sys.exit(main())
