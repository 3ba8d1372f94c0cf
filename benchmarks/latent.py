"""What does a passing test hide? Score what sweeps find in the corpus of latent weaknesses.

    python benchmarks/latent.py [--budget SECONDS] [--only NAME] [--backend NAME] [--json FILE]
                                [--repeat TIMES] [--times TIMES] [--keep FOLDER] [--every NUMBER]
    python benchmarks/latent.py --by-hand [...]
    python benchmarks/latent.py --undisturbed 5 [...]

The programs of tests/latent pass; most of them hide a hang or a wrong result, and the robust ones
hide nothing. Each is swept, at most for the budget. Its sweep.json is read by its contract
(docs/results.md) alone, and its weaknesses are compared with the lines that are marked in the
program. In a program that hides a wrong result only weaknesses with the outcome `wrong` count; they
may name the file or the value that is wrong, if the program says which. Prints a table and the
score; exits with 1 if fewer than 90 % are found, fewer than 90 % of those with a marked line, or
anything is found in a robust program.

--repeat repeats the witness of each program so many times by its token, and counts how often ranks
hang or are left waiting again, or the run is wrong again. Then it exits with 1 if a witness does
not show that each time.

--times sweeps each program so many times in a row, and counts how often the status and the lines of
all weaknesses are those of the first sweep. Then it exits with 1 if they are not each time.

--by-hand runs each latent program with the fault that is written beside it instead: does it hang
then, or leave ranks waiting for one that has failed, or is it wrong, and is a line named that is
marked in it? Exits with 1 if a program does not. Programs without such a fault are left out.

--keep copies each sweep.json to a folder. --every 4 takes the first of four programs, which is a
quarter of each module.

--undisturbed runs every program so many times as it is. All must pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "latent"
EXPECTATIONS = "PYTEST_MULTIHOST_LATENT_EXPECTATIONS"
BY_HAND = "PYTEST_MULTIHOST_LATENT_BY_HAND"
SWEEP = "PYTEST_MULTIHOST_LATENT_SWEEP"

MOST = 1.2
"""The longest duration of a sweep, in budgets, besides the test's own time."""

FOUND_SHARE = 0.9
LINE_SHARE = 0.9

FAMILIES = ("late", "fails", "differs")
OUTCOMES = ("waits", "wrong")

MARKS = ("latent", "waits", "")
"""Of lines, the best first."""

Programs = Mapping[str, Mapping[str, Mapping[str, Any]]]
"""What is expected of each program, by module and id."""


@dataclass(frozen=True)
class Cost:
    """What disturbances of one kind have cost, and found.

    Attributes:
        runs: Disturbed runs, repetitions aside.
        seconds: How long these worlds took together.
        first: Weaknesses that one of them was the first to show.
    """

    runs: int = 0
    seconds: float = 0.0
    first: int = 0

    def __add__(self, other: Cost) -> Cost:
        """Return the sum of two."""
        return Cost(self.runs + other.runs, self.seconds + other.seconds, self.first + other.first)


@dataclass(frozen=True)
class Exposed:
    """One latent program that was run with its own fault.

    Attributes:
        name: Module and test.
        world: Backend and ranks.
        family: The kind of disturbance.
        got: What became of the world.
        is_exposed: Whether it hung, ranks were left waiting, or it was wrong: as the program says.
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


@dataclass(frozen=True)
class Swept:
    """One program that was swept.

    Attributes:
        name: Module and test.
        world: Backend and ranks.
        family: The kind of disturbance that lays it bare; None for a robust program.
        status: Of the sweep; "not run" without one.
        outcome: What it hides: `waits` or `wrong`; None for a robust program.
        findings: The weaknesses that count, as texts.
        named: The best mark of the lines that a weakness names: `latent`, `waits`, or nothing.
        witness: The disturbance that showed the weakness with that line; of several such, one of
            the program's own family.
        repeated: How often that was repeated, and how often it showed the same again.
        replayed: How often its token was, and how often that showed what the program hides again.
        runs: How many runs it took, repetitions aside.
        brute_force: How many it would have taken to disturb all ranks at all points in all ways.
        left_out: How many disturbances were planned and not run.
        seconds: How long it took.
        keeps_budget: Whether that was at most 1.2 times the budget and the test's own time.
        costs: What each kind of disturbance has cost and found.
        weaknesses: The lines of the culprits and of the waiting ranks, of all weaknesses.
    """

    name: str
    world: str
    family: str | None
    status: str
    outcome: str | None = None
    findings: Sequence[str] = ()
    named: str = ""
    witness: str = ""
    repeated: tuple[int, int] = (0, 0)
    replayed: tuple[int, int] = (0, 0)
    runs: int = 0
    brute_force: int = 0
    left_out: int = 0
    seconds: float = 0.0
    keeps_budget: bool = True
    costs: Mapping[str, Cost] = field(default_factory=dict)
    weaknesses: Sequence[str] = ()

    @property
    def word(self) -> str:
        """One word on how well that is."""
        if self.status not in ("passed", "failed"):
            return "UNSWEPT"
        if self.family is None:
            return "FALSE" if self.findings else "ok"
        if not self.findings:
            return "MISSED"
        return "found" if self.named else "LINE"


def main() -> int:
    """Run what is asked for, print it, and return the exit code."""
    options = _options()
    programs = thinned(_programs(options.only, options.backend), options.every)
    if options.undisturbed:
        return _run_undisturbed(programs, options.undisturbed)
    rows: list[Exposed] | list[Swept]
    if options.by_hand:
        rows = list(_printed(_run_by_hand(programs)))
        failures = _summary_by_hand(rows)
    else:
        rows = list(
            _printed(
                row
                for _ in range(options.times)
                for row in _sweep(programs, options.budget, options.repeat, options.keep)
            )
        )
        failures = [*summary(rows), *(_unlike(rows) if options.times > 1 else ())]
    if options.json:
        text = json.dumps([asdict(row) for row in rows], indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    for failure in failures:
        print(f"not met: {failure}")
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--by-hand", action="store_true", help="with the fault beside each program")
    parser.add_argument("--undisturbed", type=int, default=0, help="so many times, as they are")
    parser.add_argument("--only", default="", help="part of the ids to run")
    parser.add_argument("--backend", default="", help="the backend whose programs are to run")
    parser.add_argument("--budget", type=float, default=60, help="seconds for each sweep")
    parser.add_argument("--repeat", type=int, default=0, help="so many times, each witness")
    parser.add_argument("--json", default="", help="file for the scores")
    parser.add_argument("--times", type=int, default=1, help="so many sweeps of each program")
    parser.add_argument("--every", type=int, default=1, help="only the first of so many programs")
    parser.add_argument("--keep", default="", help="folder for copies of all sweep.json")
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


def thinned(programs: Programs, every: int) -> Programs:
    """Return the first of so many programs of all modules together."""
    nodeids = [nodeid for found in programs.values() for nodeid in found]
    kept = frozenset(nodeids[::every])
    return {
        module: {nodeid: each for nodeid, each in found.items() if nodeid in kept}
        for module, found in programs.items()
    }


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
        latent = {nodeid: each for nodeid, each in expectations.items() if each.get("has_fault")}
        if not latent:
            continue
        verdicts = _verdicts(latent, {BY_HAND: "1"})
        for nodeid, expected in latent.items():
            yield exposed(nodeid, expected, verdicts.get(nodeid))


def _sweep(programs: Programs, budget: float, times: int, keep: str) -> Iterator[Swept]:
    for expectations in programs.values():
        for nodeid, expected in expectations.items():
            with tempfile.TemporaryDirectory(prefix="multihost-latent-") as scratch:
                ended = _pytest([nodeid, "--multihost-artifacts", scratch], {SWEEP: str(budget)})
                files = list(Path(scratch).glob("*/*/sweep.json"))
                found = json.loads(files[0].read_text(encoding="utf-8")) if files else None
            if keep and found:
                Path(keep).mkdir(parents=True, exist_ok=True)
                name = re.sub(r"\W+", "-", nodeid)
                Path(keep, f"{name}.json").write_text(json.dumps(found), encoding="utf-8")
            if found is None:
                print(f"pytest ended with {ended.returncode}:\n{ended.stdout}")
            row = swept(nodeid, expected, found)
            witness = best_weakness(nodeid, expected, found) if found and times else None
            if witness is not None:
                token = witness["witness"]["token"]
                again = _replay(nodeid, token, times, expected)
                row = replace(row, replayed=(times, again))
            yield row


def _replay(nodeid: str, token: str, times: int, expected: Mapping[str, Any]) -> int:
    """Return how many of so many replays show what a program hides."""
    with tempfile.TemporaryDirectory(prefix="multihost-latent-") as scratch:
        options = ["--multihost-replay", token, "--times", str(times)]
        _pytest([nodeid, *options, "--tb=no", "--multihost-artifacts", scratch])
        file = Path(scratch, "verdicts.jsonl")
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return sum(_is_exposed(json.loads(line), expected) for line in lines)


def best_weakness(
    nodeid: str, expected: Mapping[str, Any], found: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the weakness that names the program's lines best; None if none counts."""
    return min(
        _that_count(found["weaknesses"], expected),
        key=lambda each: (
            MARKS.index(_mark_of(each, nodeid, expected)),
            _family(each) != expected["family"],
        ),
        default=None,
    )


def _that_count(
    weaknesses: Sequence[Mapping[str, Any]], expected: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the weaknesses that show what a program hides; in a robust one each counts."""
    is_wrong = _outcome_of(expected) == "wrong"
    return [
        each for each in weaknesses if not is_wrong or each["witness"].get("outcome") == "wrong"
    ]


def _outcome_of(expected: Mapping[str, Any]) -> str | None:
    return expected.get("outcome", "waits") if expected["family"] else None


def _mark_of(weakness: Mapping[str, Any], nodeid: str, expected: Mapping[str, Any]) -> str:
    text = f"{weakness['text']} {weakness['witness'].get('summary')}"
    return _mark_in(text, _lines_of(weakness), nodeid, expected)


def _mark_in(
    text: str, found: Iterable[tuple[str, int]], nodeid: str, expected: Mapping[str, Any]
) -> str:
    """Return the best mark of what a text and lines name."""
    if _names_what_is_wrong(text, expected):
        return "latent"
    return named(found, nodeid.partition("::")[0], expected["lines"])


def _names_what_is_wrong(text: str, expected: Mapping[str, Any]) -> bool:
    """Return whether a text has the name of the file or value that is wrong in a program."""
    name = expected.get("names")
    return bool(name) and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def swept(nodeid: str, expected: Mapping[str, Any], found: Mapping[str, Any] | None) -> Swept:
    """Say what the sweep of a program has found; None: there was none."""
    name, world = _name(nodeid), f"{expected['backend']} x {expected['ranks']}"
    outcome = _outcome_of(expected)
    if found is None:
        return Swept(name, world, expected["family"], "not run", outcome)
    weakness = best_weakness(nodeid, expected, found)
    best = _mark_of(weakness, nodeid, expected) if weakness else ""
    return Swept(
        name,
        world,
        expected["family"],
        status=found["status"],
        outcome=outcome,
        findings=[_finding(each) for each in _that_count(found["weaknesses"], expected)],
        named=best,
        witness=_disturbance(weakness["witness"]["disturbance"]) if weakness else "",
        repeated=tuple(weakness["repeated"]) if weakness else (0, 0),
        runs=len(found["runs"]),
        brute_force=found["plan"]["brute_force"],
        left_out=sum(each["count"] for each in found["left_out"]),
        seconds=found["duration_s"],
        keeps_budget=found["duration_s"] <= MOST * found["budget_s"] + _usual_s(found),
        costs=costs(found),
        weaknesses=sorted(map(_lines_text, found["weaknesses"])),
    )


def _lines_text(weakness: Mapping[str, Any]) -> str:
    witness = weakness["witness"]
    places = [each or {} for each in (witness["culprit"], witness["waiting"])]
    return " <- ".join(f"{each.get('file')}:{each.get('line')}" for each in places)


def alike(rows: Sequence[Swept]) -> list[bool]:
    """Return of each sweep whether it is like the first one of its program."""
    first: dict[str, Swept] = {}
    for row in rows:
        first.setdefault(row.name, row)
    return [
        (row.status, row.weaknesses) == (first[row.name].status, first[row.name].weaknesses)
        for row in rows
    ]


def _usual_s(found: Mapping[str, Any]) -> float:
    """Return how long the test takes by itself: the median of the runs that it survives."""
    seconds = [each["seconds"] for each in found["runs"] if each["outcome"] == "survived"]
    return statistics.median(seconds) if seconds else 0.0


def costs(found: Mapping[str, Any]) -> dict[str, Cost]:
    """Return what each kind of disturbance has cost and found in one sweep."""
    first = {min(each["shown_by"]) for each in found["weaknesses"] if each["shown_by"]}
    total: dict[str, Cost] = {}
    for index, run in enumerate(found["runs"]):
        at = run["disturbance"]["passed"]["point"]
        what = at.get("call") or at["point"]
        kind = f"{run['disturbance']['family']}: {run['disturbance']['fault']['kind']} at {what}"
        cost = Cost(1, run["seconds"], int(index in first))
        total[kind] = total.get(kind, Cost()) + cost
    return total


def _lines_of(weakness: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the lines that a weakness names: of the culprit, who was disturbed, and who waits."""
    witness = weakness["witness"]
    found = (witness["culprit"], witness["disturbance"]["passed"]["where"], witness["waiting"])
    return [(each["file"], each["line"]) for each in found if each]


def _family(weakness: Mapping[str, Any]) -> str:
    return str(weakness["witness"]["disturbance"]["family"])


def _finding(weakness: Mapping[str, Any]) -> str:
    culprit = weakness["witness"]["culprit"] or {}
    done = _disturbance(weakness["witness"]["disturbance"])
    return f"{done}: {weakness['text']}, {culprit.get('file')}:{culprit.get('line')}"


def _disturbance(disturbance: Mapping[str, Any]) -> str:
    fault, at = disturbance["fault"], disturbance["passed"]["point"]
    where = " ".join(str(at.get(key)) for key in ("point", "call", "name") if at.get(key))
    return (
        f"{disturbance['family']}: {fault['kind']} rank {disturbance['passed']['rank']} at {where}"
    )


def exposed(nodeid: str, expected: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> Exposed:
    """Say whether a fault has laid bare what a program hides; None: no world was run."""
    found = verdict or {}
    return Exposed(
        name=_name(nodeid),
        world=f"{expected['backend']} x {expected['ranks']}",
        family=expected["family"],
        got=_outcome(found),
        is_exposed=_is_exposed(found, expected),
        named=_mark_in(_texts(found), places(found), nodeid, expected),
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


def _is_exposed(verdict: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether a run shows what its program hides."""
    is_wrong = _outcome_of(expected) == "wrong"
    return _is_wrong(verdict) if is_wrong else _is_left_waiting(verdict)


def _is_wrong(verdict: Mapping[str, Any]) -> bool:
    """Return whether a test failed because of what it asserts or has left alone.

    A replay says itself whether what ranks have left is wrong.
    """
    if verdict.get("wrong"):
        return True
    if not verdict or verdict["status"] != "failed" or _is_left_waiting(verdict):
        return False
    errors = [rank["error"] for rank in verdict["rank_results"] if rank["error"]]
    return all(error["type"].endswith("AssertionError") for error in errors)


def _texts(verdict: Mapping[str, Any]) -> str:
    """Return why a test failed, as the verdict and its ranks say."""
    errors = [rank["error"] for rank in verdict.get("rank_results", ())]
    messages = [error.get("message") for error in errors if error]
    wrong = (verdict.get("wrong") or {}).get("summary")
    return " ".join(str(each) for each in (verdict.get("reason"), wrong, *messages) if each)


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


def _text(row: Exposed | Swept) -> str:
    if isinstance(row, Exposed):
        word, got = "ok" if row.is_exposed else "MISSED", f"{row.got:34}"
    else:
        word, got = row.word, f"{row.runs:4} of {row.brute_force:5}  {row.witness or row.status:60}"
    return (
        f"{word:8}{row.name:72} {row.world:9} {row.family or 'robust':8} {got}"
        f" {row.named or '-':7}{row.seconds:6.1f} s{_again(row)}"
    )


def _again(row: Exposed | Swept) -> str:
    if isinstance(row, Exposed) or not row.replayed[0]:
        return ""
    return f"  replayed {row.replayed[1]} of {row.replayed[0]}"


def _printed(rows: Iterable[Any]) -> Iterator[Any]:
    for row in rows:
        print(_text(row), flush=True)
        yield row


def _summary_by_hand(rows: Sequence[Exposed]) -> list[str]:
    print()
    print(f"programs            {len(rows)}")
    print(f"exposed by hand     {_share(row.is_exposed for row in rows)}")
    print(f"a marked line named {_share(bool(row.named) for row in rows)}")
    print(f"of the fault itself {_share(row.named == 'latent' for row in rows)}")
    return (
        [] if all(row.is_exposed for row in rows) else ["each fault by hand exposes what is hidden"]
    )


def summary(rows: Sequence[Swept]) -> list[str]:
    """Print the score of sweeps and return what is not met."""
    latent = [row for row in rows if row.family]
    robust = [row for row in rows if not row.family]
    found = [row for row in latent if row.findings]
    false = [row for row in robust if row.findings]
    runs, brute_force = sum(row.runs for row in rows), sum(row.brute_force for row in rows)
    print()
    print(f"programs            {len(latent)} latent, {len(robust)} robust")
    print(f"found               {_share(bool(row.findings) for row in latent)}")
    for family in FAMILIES:
        print(
            f"  {family:18}{_share(bool(row.findings) for row in latent if row.family == family)}"
        )
    for outcome in OUTCOMES:
        print(
            f"  {outcome:18}"
            f"{_share(bool(row.findings) for row in latent if row.outcome == outcome)}"
        )
    print(f"a marked line named {_share(bool(row.named) for row in found)}")
    print(f"of the fault itself {_share(row.named == 'latent' for row in found)}")
    print(f"by its own family   {_share(row.witness.startswith(str(row.family)) for row in found)}")
    print(f"shown each time     {_share(row.repeated[0] == row.repeated[1] for row in found)}")
    replayed = [row for row in found if row.replayed[0]]
    steady = [row.replayed[0] == row.replayed[1] for row in replayed]
    if replayed:
        print(f"replayed each time  {_share(steady)}")
    print(f"found in robust     {len(false)} of {len(robust)}")
    print(
        f"runs                {runs}, of {brute_force} by brute force; {_left_out(rows)} left out"
    )
    print(f"seconds             {sum(row.seconds for row in rows):.0f}")
    print(f"budget kept         {_share(row.keeps_budget for row in rows)}")
    _print_costs(rows)
    for row in replayed:
        if row.replayed[0] != row.replayed[1]:
            print(f"unsteady: {row.name}: {row.replayed[1]} of {row.replayed[0]}: {row.witness}")
    for row in false:
        print(f"false: {row.name}: {'; '.join(row.findings)}")
    limits = [
        (_portion(bool(row.findings) for row in latent) < FOUND_SHARE, "90 % are found"),
        (_portion(bool(row.named) for row in found) < LINE_SHARE, "90 % of those by their line"),
        (bool(false), "nothing is found in robust programs"),
        (not all(steady), "every witness repeats each time"),
        (any(row.word == "UNSWEPT" for row in rows), "every program is swept"),
    ]
    return [text for is_missed, text in limits if is_missed]


def _unlike(rows: Sequence[Swept]) -> list[str]:
    """Print how many sweeps of a program were like its first one, and return what is not met."""
    found = alike(rows)
    print(f"like the first time {_share(found)}")
    return [] if all(found) else ["every sweep of a program shows the same"]


def _print_costs(rows: Sequence[Swept]) -> None:
    """Print what each kind of disturbance has found, the most per second first."""
    total: dict[str, Cost] = {}
    for row in rows:
        for kind, cost in row.costs.items():
            total[kind] = total.get(kind, Cost()) + cost
    print("kind of disturbance                  runs  seconds  first to show  per minute")
    ordered = sorted(total.items(), key=lambda each: each[1].first / max(each[1].seconds, 0.1))
    for kind, cost in reversed(ordered):
        rate = 60 * cost.first / max(cost.seconds, 0.1)
        print(f"  {kind:33}{cost.runs:6}{cost.seconds:9.0f}{cost.first:15}{rate:12.1f}")


def _left_out(rows: Iterable[Swept]) -> int:
    return sum(row.left_out for row in rows)


def _portion(values: Iterable[bool]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 1.0


def _share(values: Iterable[bool]) -> str:
    found = list(values)
    return f"{_portion(found):.1%} ({sum(found)} of {len(found)})"


if __name__ == "__main__":
    sys.exit(main())
