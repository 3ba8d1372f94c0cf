"""How well are hangs told? Run the corpus and score the verdicts.

    python benchmarks/corpus.py [--only NAME] [--backend NAME] [--hosts KIND] [--load N] [--json F]
                                [--jobs K] [--rounds N] [--keep DIR] [--libraries]

Runs every program of tests/corpus, reads verdicts.jsonl by its contract (docs/results.md) alone
and compares each verdict with the expectation beside the program. Prints a table and the score;
exits with 1 if a hang was missed, fewer than 95 % were told exactly, an innocent was accused or
failed, a dump signal ended a rank, or verdicts came late.

--libraries runs those of tests/corpus/libraries instead (make corpus-libraries), and prints a line
for each library. There 98 % must be told exactly, 95 % with a line of the user's code, and all
mismatches with the operations at which the ranks parted; how soon is not judged, since what these
libraries import takes its time.

--load keeps N other processes computing meanwhile. --only runs programs whose id contains NAME,
--backend those of one backend. --hosts runs them on hosts of that kind: netns, or netns:2; what is
expected is the same.

--jobs runs the programs of K modules, or parts of modules, at a time. Worlds mostly wait, so
innocents take less time so; how soon hangs are told is then measured beside other worlds.
--rounds runs everything N times, and prints a line for each round and at last which programs were
accused or wrong, and in how many rounds: make corpus CORPUS_ARGS='--only innocent_ --jobs 4
--rounds 20'. --keep keeps the artifacts of all runs of pytest with such a program.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from load import loaded

CORPUS = Path(__file__).resolve().parent.parent / "tests" / "corpus"
EXPECTATIONS = "PYTEST_MULTIHOST_CORPUS_EXPECTATIONS"
MODULE_LIMIT_S = 1800
BATCH = 6
"""Number of programs in one run of pytest beside others: few start-ups, and all end about alike."""

WRONG = ("ACCUSED", "WRONG")
AT_ONCE = ("exit", "raise", "mismatch")
EXACT_SHARE = 0.95
LIBRARIES_EXACT_SHARE = 0.98
LINE_SHARE = 0.95
SIGURG, FIRST_REALTIME_SIGNAL = 23, 34  # dumps are taken with these, and nothing else sends them
AT_ONCE_S = 1.5


@dataclass(frozen=True, slots=True)
class Limits:
    """How late verdicts may come, in seconds after the last progress.

    Attributes:
        proof_median_s: The median of those by proof.
        proof_p95_s: The 95th percentile of these.
        at_once_median_s: The median of those after an exit, a raise or a mismatch.
    """

    proof_median_s: float
    proof_p95_s: float
    at_once_median_s: float


LIMITS: Mapping[int, Limits] = {0: Limits(0.5, 1.0, 0.3), 2: Limits(0.8, 1.6, 0.5)}
"""By the number of processes that compute meanwhile; with others, and with several jobs, how soon
verdicts come is printed and not judged."""

HEADING = (
    f"{'':8}{'program':66} {'world':9} {'expected: culprits <- waiting':32} {'got':32}"
    f" {'by':9}{'after':>8}"
)


@dataclass(frozen=True)
class Score:
    """One program: what was expected and what was said.

    Attributes:
        name: Module and test.
        world: Backend and ranks.
        is_hang: Whether it hangs.
        expected: The right diagnoses, for the reader.
        got: The diagnosis that was made, "-" where there is none.
        by: How it was detected.
        may_be_by: The fastest way that is possible.
        after_s: Seconds from the last progress to the verdict.
        is_detected: Whether the hang was noticed at all, at the latest by its deadline.
        is_exact: Whether kind and culprits are right.
        is_best: Whether they are the first of the right answers, which says most.
        is_accused: Whether an innocent was accused.
        has_right_waiting: Whether the waiting ranks are right; None where nothing is expected.
        has_right_where: The same for the place in the code.
        has_right_line: The same for any line of the user's code: the culprit's, or that of a rank
            that waits where the culprit has none.
        has_right_sides: The same for the first divergence: who began which operation.
        ended_by_dump: Ranks that a signal of a dump ended.
        told: What of the verdict must not depend on what the hosts are made from; None where no
            world was run. benchmarks/same_verdicts.py compares it.
        word: ok, skipped, WRONG (its remark says what) or ACCUSED.
        remark: What is wrong besides kind and culprits.
    """

    name: str
    world: str
    is_hang: bool
    expected: str
    got: str
    by: str
    may_be_by: str
    after_s: float | None
    is_detected: bool
    is_exact: bool
    is_best: bool
    is_accused: bool
    has_right_waiting: bool | None
    has_right_where: bool | None
    has_right_line: bool | None
    has_right_sides: bool | None
    ended_by_dump: Sequence[int]
    told: Mapping[str, Any] | None
    word: str
    remark: str


def main() -> int:
    """Run the corpus, print the table and the score, and return the exit code."""
    global CORPUS  # noqa: PLW0603 - chosen once, before anything is run
    options = _options()
    CORPUS = CORPUS / "libraries" if options.libraries else CORPUS
    programs = find_programs(options.only, options.backend)
    batches = _batches(programs, BATCH if options.jobs > 1 else None)
    rounds: list[list[Score]] = []
    print(HEADING)
    with loaded(options.load), ThreadPoolExecutor(options.jobs) as jobs:
        keep = Path(options.keep).resolve() if options.keep else None
        how = ["--multihost-clock", options.clock]
        how += [] if options.hosts == "one" else ["--multihost-hosts", options.hosts]
        run = functools.partial(_run, how=how, keep=keep)
        for number in range(1, options.rounds + 1):
            began_s = time.monotonic()
            rounds.append([])
            for scores_of_batch in jobs.map(run, batches):
                for each in scores_of_batch:
                    if number == 1 or each.word in WRONG:
                        print(_row(each), flush=True)
                    rounds[-1].append(each)
            if options.rounds > 1:
                print(_round(number, rounds[-1], time.monotonic() - began_s), flush=True)
    scores = [each for of_round in rounds for each in of_round]
    if options.libraries:
        print_libraries(scores)
    if options.rounds > 1:
        print("\n".join(["", *(troubles(rounds) or ["no program was accused or wrong"])]))
    limits = LIMITS.get(options.load) if options.jobs == 1 else None
    failures = _summary(scores, of_libraries=options.libraries, limits=limits)
    if options.json:
        rows = [asdict(score) for score in scores]
        about = {key: getattr(options, key) for key in ("load", "hosts", "clock", "jobs", "rounds")}
        text = json.dumps({**about, "scores": rows, "failures": failures}, indent=1)
        Path(options.json).write_text(text + "\n", encoding="utf-8")
    for failure in failures:
        print(f"not met: {failure}")
    return 1 if failures else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--load", type=int, default=0, help="busy processes beside")
    parser.add_argument("--only", default="", help="part of the ids to run")
    parser.add_argument("--backend", default="", help="the backend whose programs are to run")
    parser.add_argument("--hosts", default="one", help="what the hosts are made from")
    parser.add_argument("--clock", default="real", help="how time passes: real, jump")
    parser.add_argument("--jobs", type=int, default=1, help="runs of pytest at a time")
    parser.add_argument("--rounds", type=int, default=1, help="how often to run everything")
    parser.add_argument("--keep", default="", help="where artifacts of wrong programs go")
    parser.add_argument("--json", default="", help="file for the scores")
    parser.add_argument("--libraries", action="store_true", help="run the programs of libraries")
    return parser.parse_args()


def find_programs(only: str, backend: str) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return what is expected of each program, by module and id.

    Args:
        only: A part of the ids of those that are meant.
        backend: Their backend; empty for all.
    """
    with tempfile.TemporaryDirectory(prefix="multihost-corpus-") as scratch:
        path = Path(scratch, "expectations")
        ended = run_pytest(["--collect-only", "-q"], {EXPECTATIONS: str(path)})
        if ended.returncode != 0:
            print(ended.stdout)
            message = "the corpus could not be collected"
            raise SystemExit(message)
        found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    programs: dict[str, dict[str, Mapping[str, Any]]] = {}
    for each in found:
        if only in each["nodeid"] and backend in ("", each["expected"]["backend"]):
            module = each["nodeid"].partition("::")[0]
            programs.setdefault(module, {})[each["nodeid"]] = each["expected"]
    return programs


Batch = Mapping[str, Mapping[str, Any]]
"""What is expected of some programs of one module, by id."""


def _batches(programs: Mapping[str, Batch], size: int | None) -> list[Batch]:
    """Return the programs by module, in parts of at most `size`."""
    found: list[Batch] = []
    for module in programs.values():
        ids = list(module)
        step = size or len(ids)
        parts = [ids[start : start + step] for start in range(0, len(ids), step)]
        found += [{each: module[each] for each in part} for part in parts]
    return found


def _run(expectations: Batch, how: Sequence[str], keep: Path | None) -> list[Score]:
    """Run programs of one module and score them.

    In their own run of pytest: what it imports, and what goes wrong in it, is its own affair.
    """
    with tempfile.TemporaryDirectory(prefix="multihost-corpus-") as scratch:
        ended = run_pytest(["-v", *expectations, "--multihost-artifacts", scratch, *how])
        verdicts = Path(scratch, "verdicts.jsonl")
        lines = verdicts.read_text(encoding="utf-8").splitlines() if verdicts.exists() else []
        found = {verdict["nodeid"]: verdict for verdict in map(json.loads, lines)}
        skipped = set(_SKIPPED.findall(ended.stdout))
        scores = [
            score(nodeid, each, found.get(nodeid), is_skipped=nodeid in skipped)
            for nodeid, each in expectations.items()
        ]
        if keep is not None and any(each.word in WRONG for each in scores):
            shutil.copytree(scratch, keep / Path(scratch).name)
    module = next(iter(expectations)).partition("::")[0]
    if ended.returncode not in (0, 1):  # neither passed nor failed: pytest itself went wrong
        print(f"pytest ended with {ended.returncode} on {module}:\n{ended.stdout}")
    return scores


def run_pytest(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run programs of the corpus, without other plugins."""
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


_SKIPPED = re.compile(r"^(\S+) SKIPPED\b", re.MULTILINE)


def score(
    nodeid: str,
    expected: Mapping[str, Any],
    verdict: Mapping[str, Any] | None,
    *,
    is_skipped: bool = False,
) -> Score:
    """Compare a verdict with what is expected.

    Args:
        nodeid: The program.
        expected: What is right.
        verdict: What was said; None if no world was run, or the controller crashed.
        is_skipped: Whether pytest skipped the program. One that skips itself in its ranks was not
            run either: its hosts lack something that this machine has.
    """
    if (verdict or {}).get("outcome") == "skipped" and "skipped" not in expected["outcomes"]:
        return score(nodeid, expected, None, is_skipped=True)
    diagnosis = (verdict or {}).get("diagnosis") or {}
    answers = [(each["kind"], sorted(each["culprits"])) for each in expected["answers"]]
    got = (diagnosis.get("kind"), sorted(diagnosis.get("culprits") or []))
    has_ended_right = verdict is not None and (
        verdict["outcome"] in expected["outcomes"] and verdict["status"] in expected["statuses"]
    )
    is_hang = expected["is_hang"]
    is_exact = got in answers if is_hang else not diagnosis
    is_accused = not is_hang and bool(diagnosis)
    return Score(
        name=nodeid.replace(".py::test_", " "),
        world=f"{expected['backend']} x {expected['ranks']}",
        is_hang=is_hang,
        expected=" or ".join(_named(*answer) for answer in answers) + _after(expected["waiting"]),
        got=_named(*got) + _after(diagnosis.get("waiting")) if diagnosis else "-",
        by=diagnosis.get("detected_by") or "-",
        may_be_by=expected["by"][0] if is_hang else "-",
        after_s=diagnosis.get("detected_after_s"),
        is_detected=is_hang and has_ended_right,
        is_exact=is_exact,
        is_best=got in answers[:1],
        is_accused=is_accused,
        has_right_waiting=_waiting(expected, diagnosis) if got in answers[:1] else None,
        has_right_where=_where(expected, diagnosis) if got in answers else None,
        has_right_line=_line(expected, diagnosis),
        has_right_sides=_sides(expected, diagnosis),
        ended_by_dump=_ended_by_dump(verdict or {}),
        told=None if verdict is None else _told(verdict, diagnosis),
        word="skipped"
        if is_skipped
        else _word(is_accused=is_accused, is_right=is_exact and has_ended_right),
        remark="" if has_ended_right or is_skipped else _ending(expected, verdict),
    )


def _named(kind: str, culprits: Sequence[int]) -> str:
    return f"{kind} [{_ranks(culprits)}]"


def _after(waiting: Sequence[int] | None) -> str:
    return f" <- [{_ranks(waiting)}]" if waiting else ""


def _ranks(ranks: Sequence[int]) -> str:
    return ",".join(map(str, sorted(ranks)))


def _waiting(expected: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> bool | None:
    if expected["waiting"] is None:
        return None
    return sorted(diagnosis.get("waiting") or []) == sorted(expected["waiting"])


def _where(expected: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> bool | None:
    if expected["where"] is None:
        return None
    return expected["where"] in ((diagnosis.get("where") or {}).get("source") or "")


def _line(expected: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> bool | None:
    """Return whether the user sees the expected line of their own code, wherever it is shown."""
    wanted = expected["where"] or expected["waits_at"]
    if wanted is None:
        return None
    places = [diagnosis.get("where"), *(diagnosis.get("places") or ())]
    return any(wanted in place["source"] for place in places if place)


def _sides(expected: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> bool | None:
    """Return whether the first divergence has the expected sides, and no others.

    Ranks that did not part earlier have parted where they are. A side's line is that of a library
    if the user's is the same on two sides.
    """
    if expected["sides"] is None:
        return None
    divergence = diagnosis.get("divergence")
    sides = divergence["sides"] if divergence else _sides_of_places(diagnosis)
    return len(sides) == len(expected["sides"]) and all(
        any(side["ranks"] == ranks and line in _line_of(side) for side in sides)
        for ranks, line in expected["sides"]
    )


def _line_of(side: Mapping[str, Any]) -> str:
    return ((side.get("through") or side)["source"]) or ""


def _sides_of_places(diagnosis: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the ranks that are at each line."""
    by_line: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
    for place in diagnosis.get("places") or ():
        by_line.setdefault((place["file"], place["line"]), []).append(place)
    return [
        {"ranks": [each["rank"] for each in places], "source": places[0]["source"]}
        for places in by_line.values()
    ]


def _ended_by_dump(verdict: Mapping[str, Any]) -> list[int]:
    ended_by = {each["rank"]: each["signal"] or 0 for each in verdict.get("rank_results", ())}
    return [
        rank
        for rank, signal in ended_by.items()
        if signal == SIGURG or signal >= FIRST_REALTIME_SIGNAL
    ]


def _told(verdict: Mapping[str, Any], diagnosis: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "outcome": verdict["outcome"],
        "kind": diagnosis.get("kind"),
        "culprits": sorted(diagnosis.get("culprits") or []),
        "waiting": sorted(diagnosis.get("waiting") or []),
        "where": (diagnosis.get("where") or {}).get("source"),
        "by": diagnosis.get("detected_by"),
    }


def _word(*, is_accused: bool, is_right: bool) -> str:
    if is_accused:
        return "ACCUSED"
    return "ok" if is_right else "WRONG"


def _ending(expected: Mapping[str, Any], verdict: Mapping[str, Any] | None) -> str:
    if verdict is None:
        return "has no verdict"
    wanted = "/".join([*expected["outcomes"], *expected["statuses"][:1]])
    ends = "; ".join(map(_end, verdict.get("rank_results", ())))
    told = f"was {verdict['outcome']}/{verdict['status']}, not {wanted}: {verdict['reason']}"
    return f"{told} ({ends})" if ends else told


def _end(rank: Mapping[str, Any]) -> str:
    message = (rank["error"] or {}).get("message", "").partition("\n")[0]
    code = f"exit {rank['exit_code']}" if rank["signal"] is None else f"signal {rank['signal']}"
    return f"rank {rank['rank']} {rank['outcome']} in {rank['phase']}, {code} {message}".rstrip()


def _row(each: Score) -> str:
    after = "" if each.after_s is None else f"{each.after_s:.2f} s"
    remarks = [each.remark] if each.remark else []
    remarks += ["waiting is wrong"] if each.has_right_waiting is False else []
    remarks += ["where is wrong"] if each.has_right_where is False else []
    remarks += ["no right line"] if each.has_right_line is False else []
    remarks += ["first divergence is wrong"] if each.has_right_sides is False else []
    remarks += [f"a dump ended {_ranks(each.ended_by_dump)}"] if each.ended_by_dump else []
    return (
        f"{each.word:8}{each.name:66} {each.world:9} {each.expected or '-':32} {each.got:32}"
        f" {each.by:9}{after:>8}  {'; '.join(remarks)}"
    ).rstrip()


def _round(number: int, scores: Sequence[Score], took_s: float) -> str:
    words = Counter(each.word for each in scores)
    load = os.getloadavg()[0]
    return (
        f"round {number}: {len(scores)} programs in {took_s:.0f} s, load {load:.1f}:"
        f" {words['ACCUSED']} accused, {words['WRONG']} wrong, {words['skipped']} skipped"
    )


def troubles(rounds: Sequence[Sequence[Score]]) -> list[str]:
    """Return a line for each program that was not always right: how, and in how many rounds."""
    found = Counter(
        (each.name, each.word, each.got)
        for scores in rounds
        for each in scores
        if each.word in WRONG
    )
    return [
        f"{word:8}{name}: {count} of {len(rounds)} rounds, got {got}"
        for (name, word, got), count in sorted(found.items())
    ]


def _summary(
    scores: Sequence[Score], *, of_libraries: bool, limits: Limits | None = None
) -> list[str]:
    """Print the score and return what is not met."""
    run = [each for each in scores if each.word != "skipped"]
    hangs = [each for each in run if each.is_hang]
    innocents = [each for each in run if not each.is_hang]
    proofs = _delays(hangs, ("proof",))
    stops = _delays(hangs, ("stopped",))
    at_once = _delays(hangs, AT_ONCE)
    accusations = [each.name for each in innocents if each.is_accused]
    accused = sorted(set(accusations))
    others = sorted({each.name for each in innocents if each.word == "WRONG"})
    print()
    print(f"programs             {len(run)} run, {len(scores) - len(run)} skipped")
    print(f"hangs detected       {_share(each.is_detected for each in hangs)}")
    print(f"kind and culprits    {_share(each.is_exact for each in hangs)}")
    print(f"best of the answers  {_share(each.is_best for each in hangs)}")
    print(f"waiting              {_share(_known(each.has_right_waiting for each in hangs))}")
    print(f"where                {_share(_known(each.has_right_where for each in hangs))}")
    print(f"a line of the user's {_share(_known(each.has_right_line for each in hangs))}")
    print(f"first divergence     {_share(_known(each.has_right_sides for each in hangs))}")
    print(f"ranks ended by dumps {sum(len(each.ended_by_dump) for each in run)}")
    print(f"innocents accused    {len(accusations)} of {len(innocents)}")
    print(f"by proof             {_delay_text(proofs)}")
    print(f"by stop              {_delay_text(stops)}")
    print(f"exit, raise, mismatch {_delay_text(at_once)}")
    limits = [
        (not all(each.is_detected for each in hangs), "every hang is detected"),
        (bool(accused), f"nobody innocent is accused ({', '.join(accused)})"),
        (bool(others), f"innocents end as expected ({', '.join(others)})"),
        (any(each.ended_by_dump for each in run), "no dump ends a rank"),
        *(_limits_of_libraries(hangs) if of_libraries else _limits(hangs, limits)),
    ]
    return [text for is_missed, text in limits if is_missed]


def _limits(hangs: Sequence[Score], limits: Limits | None) -> list[tuple[bool, str]]:
    proofs, at_once = _delays(hangs, ("proof",)), _delays(hangs, AT_ONCE)
    exact = (_portion(each.is_exact for each in hangs) < EXACT_SHARE, "95 % are told exactly")
    if limits is None:
        return [exact]
    median_s, p95_s, at_once_s = astuple(limits)
    return [
        exact,
        (_median(proofs) > median_s, f"median by proof <= {median_s} s"),
        (_p95(proofs) > p95_s, f"95th percentile by proof <= {p95_s} s"),
        (_median(at_once) > at_once_s, f"median of exit, raise, mismatch <= {at_once_s} s"),
        (max(at_once, default=0.0) > AT_ONCE_S, f"exit, raise, mismatch <= {AT_ONCE_S} s"),
    ]


def _limits_of_libraries(hangs: Sequence[Score]) -> list[tuple[bool, str]]:
    exact = _portion(each.is_exact for each in hangs)
    lines = _portion(_known(each.has_right_line for each in hangs))
    sides = _portion(_known(each.has_right_sides for each in hangs))
    return [
        (exact < LIBRARIES_EXACT_SHARE, "98 % are told exactly"),
        (lines < LINE_SHARE, "95 % have a line of the user's"),
        (sides < 1.0, "every mismatch has its first divergence"),
    ]


def print_libraries(scores: Sequence[Score]) -> None:
    """Print a line for each library: hang_dcp.py and innocent_dcp.py are about dcp."""
    print(f"\n{'library':14}{'hangs':>6}{'found':>7}{'named':>7}{'line':>8}{'parted':>8}", end="")
    print(f"{'innocents':>11}{'accused':>9}{'dumps':>7}")
    by_library: dict[str, list[Score]] = {}
    for each in scores:
        module = each.name.partition(" ")[0]
        by_library.setdefault(module.partition("_")[2], []).append(each)
    for library, theirs in sorted(by_library.items()):
        run = [each for each in theirs if each.word != "skipped"]
        hangs = [each for each in run if each.is_hang]
        innocents = [each for each in run if not each.is_hang]
        print(
            f"{library:14}{len(hangs):6}{sum(each.is_detected for each in hangs):7}"
            f"{sum(each.is_exact for each in hangs):7}"
            f"{_counts(each.has_right_line for each in hangs):>8}"
            f"{_counts(each.has_right_sides for each in hangs):>8}"
            f"{len(innocents):11}{sum(each.is_accused for each in innocents):9}"
            f"{sum(len(each.ended_by_dump) for each in run):7}"
        )


def _counts(values: Iterable[bool | None]) -> str:
    """Return how many are right of those that are expected: 3/4."""
    found = list(_known(iter(values)))
    return f"{sum(found)}/{len(found)}" if found else "-"


def _delays(hangs: Sequence[Score], ways: Sequence[str]) -> list[float]:
    """Return the delays of hangs that could be told in one of `ways`, however they were told."""
    return [each.after_s for each in hangs if each.may_be_by in ways and each.after_s is not None]


def _known(values: Iterator[bool | None]) -> Iterator[bool]:
    return (value for value in values if value is not None)


def _portion(values: Iterator[bool]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 1.0


def _share(values: Iterator[bool]) -> str:
    found = list(values)
    return f"{_portion(iter(found)):.1%} ({sum(found)} of {len(found)})"


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def _p95(values: Sequence[float]) -> float:
    """Return the smallest value that 95 % do not exceed."""
    return sorted(values)[math.ceil(0.95 * len(values)) - 1] if values else 0.0


def _delay_text(values: Sequence[float]) -> str:
    if not values:
        return "none"
    return (
        f"median {_median(values):.2f} s, 95 % {_p95(values):.2f} s, max {max(values):.2f} s"
        f" ({len(values)} programs)"
    )


if __name__ == "__main__":
    sys.exit(main())
