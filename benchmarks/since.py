"""What has become slower since another revision?

    python benchmarks/since.py REV [--quick] [--rounds N] [--only TOPIC ...]
                                   [--json FILE] [--markdown FILE]

Runs that revision and this tree, with all that is not committed, in turns, with the Python and the
libraries of this environment, and prints a table of ratios. paired.py has the rule. Exits with 1 if
something is worse or cannot be measured any more, and with 2 if there is nothing to compare with.

Topics:

* none, gloo, jax, gloo-64: what one passing test more costs in a run, of 4 ranks or of 64. Two runs
  of different length are subtracted: what is done after a test and at the end of the run is in it.
* removals: files and folders that pytest's process removes for one test more
* verdict-4, verdict-16, verdict-64: the time from the last progress of any rank to the verdict, as
  the plugin itself tells it, with gloo
* plain: tests without ranks in a run with the plugin: the whole of a short run, and one test more
* sweep: the disturbed worlds of a sweep a second
* attach-4, attach-64: the time of `multihost attach` to ranks that hang
* import: the time to import the plugin's entry module, when pytest has been imported

What a revision does not have shows as a dash, and so does what it cannot do in a program of today.
On a machine that does other things as well a comparison is likely to stay unclear; then
processor time says more, and `--rounds 15` makes the ranges narrower.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import attach_corpus
import cost
import figures
import paired
import peers
import projects
import sweep_speed
import trees
import verdicts
from figures import FailedError
from paired import Compared, Measure
from peers import Way
from trees import Pair, Tree

RANKS = 4
MANY = 64

# A topic's way to measure a tree once: a value for each of its measures.
Look = Callable[[Tree], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done.

    Attributes:
        rounds: How often both revisions take turns.
        tests: Tests of the shorter run and how many more the longer has, of 4 ranks.
        large_tests: The same of 64 ranks.
        plain_tests: The same of tests without ranks.
        imports: How often the entry module is imported for one value.
        steps: Steps of the test that is swept.
    """

    rounds: int
    tests: tuple[int, int]
    large_tests: tuple[int, int]
    plain_tests: tuple[int, int]
    imports: int
    steps: int


FULL = Scale(7, (20, 20), (1, 3), (100, 2000), 7, 3)
QUICK = Scale(5, (5, 10), (1, 1), (100, 1000), 3, 1)


@dataclass(frozen=True, slots=True)
class Topic:
    """Measures that one run yields.

    Attributes:
        measures: What they are.
        opened: Prepares what both revisions share, and yields the way to measure a tree.
        lacks: Whether a tree does not have what is measured.
    """

    measures: Sequence[Measure]
    opened: Callable[[], AbstractContextManager[Look]]
    lacks: Callable[[Tree], bool] = lambda _: False


# What is measured


def one_more(way: Way, ranks: int, tree: Tree) -> cost.Marginal:
    """Measure a run and what one test more costs in it."""
    variables = (*way.variables, *tree.variables.items())
    return cost.marginal(replace(way, variables=variables), ranks)


def _world_test(backend: str, ranks: int, tests: tuple[int, int]) -> Topic:
    label = f"one test more, {backend} at {ranks}"
    way = replace(peers.ours(backend), base=tests[0], more=tests[1], is_timed=False)

    def look(tree: Tree) -> Sequence[float]:
        found = one_more(way, ranks, tree)
        return found.wall_s, found.cpu_s

    return Topic((Measure(label), Measure(f"{label}: processor time")), lambda: nullcontext(look))


def _plain(tests: tuple[int, int]) -> Topic:
    command = [part.replace("test_ours", "test_plain") for part in peers.ours("none").command]
    way = Way("plain", "none", tuple(command), base=tests[0], more=tests[1], is_timed=False)

    def look(tree: Tree) -> Sequence[float]:
        found = one_more(way, 0, tree)
        return found.first_s, found.wall_s

    labels = (f"a run of {tests[0]} plain tests", "one plain test more")
    return Topic([Measure(label) for label in labels], lambda: nullcontext(look))


def _removals(tests: tuple[int, int]) -> Topic:
    ours = peers.ours("none")
    command = [*ours.command_for(RANKS), "-p", "count_removals"]

    def removed(tree: Tree, number: int) -> int:
        variables = {**ours.variables_for(RANKS, number), **tree.variables}
        with projects.ran(command, variables) as ended:
            found: int = ended.required(0).read_json("removed.json")
            return found

    def look(tree: Tree) -> Sequence[float]:
        base, more = tests
        return [(removed(tree, base + more) - removed(tree, base)) / more]

    measure = Measure(f"files removed for one test more, none at {RANKS}", paired.count)
    return Topic([measure], lambda: nullcontext(look))


def _verdict(ranks: int) -> Topic:
    def look(tree: Tree) -> Sequence[float]:
        with verdicts.late("gloo", ranks, variables=tree.variables) as (_, verdict):
            found = verdict["diagnosis"]
            if found["culprits"] != [0]:
                raise FailedError(f"ranks {found['culprits']} are named, and not rank 0")
            return [found["detected_after_s"]]

    label = f"last progress to verdict, gloo at {ranks}"
    return Topic([Measure(label)], lambda: nullcontext(look))


def _sweep(steps: int) -> Topic:
    return Topic(
        [Measure("worlds of a sweep, gloo at 4", paired.per_second)],
        lambda: nullcontext(lambda tree: [sweep_speed.swept(steps, tree.variables).world_s]),
        lambda tree: "--multihost-sweep" not in _pytest_help(tree),
    )


def _pytest_help(tree: Tree) -> str:
    return tree.output_of([sys.executable, "-m", "pytest", "-p", trees.PLUGIN, "--help"])


def _attach(ranks: int) -> Topic:
    @contextlib.contextmanager
    def opened() -> Iterator[Look]:
        with attach_corpus.job_of_many(ranks) as job:
            yield partial(_attached, job)

    return Topic([Measure(f"attach to {ranks} ranks of gloo")], opened, _cannot_attach)


def _cannot_attach(tree: Tree) -> bool:
    return "attach" not in tree.output_of([*tree.multihost, "--help"])


def _attached(job: Sequence[str], tree: Tree) -> Sequence[float]:
    seen = attach_corpus.look(job, [*tree.multihost, "attach", "--json", "-"], tree.root)
    if seen.verdict is None:
        raise FailedError(f"no verdict: {seen.complaint}")
    named = (seen.verdict["diagnosis"] or {}).get("culprits")
    if named != [len(job) - 1]:
        raise FailedError(f"ranks {named} are named, and not rank {len(job) - 1}")
    return [seen.took_s]


def _import(times: int) -> Topic:
    def look(tree: Tree) -> Sequence[float]:
        program = (
            "import time, pytest; began = time.perf_counter(); import "
            f"{tree.entry}; print(time.perf_counter() - began)"
        )
        command = [sys.executable, "-c", program]
        return [statistics.median(float(tree.output_of(command)) for _ in range(times))]

    return Topic([Measure("import of the entry module")], lambda: nullcontext(look))


def topics(scale: Scale) -> Mapping[str, Topic]:
    """Return all topics by their names."""
    return {
        **{name: _world_test(name, RANKS, scale.tests) for name in cost.BACKENDS},
        "gloo-64": _world_test("gloo", MANY, scale.large_tests),
        "removals": _removals(QUICK.tests),
        **{f"verdict-{ranks}": _verdict(ranks) for ranks in (4, 16, MANY)},
        "plain": _plain(scale.plain_tests),
        "sweep": _sweep(scale.steps),
        **{f"attach-{ranks}": _attach(ranks) for ranks in (4, MANY)},
        "import": _import(scale.imports),
    }


def compared(topic: Topic, pair: Pair, rounds: int) -> Sequence[Compared]:
    """Measure a topic in turns and return a row for each of its measures.

    Raises:
        FailedError: A revision does not even say whether it has what is measured.
    """
    both = (pair.then, pair.now)
    lacking = [paired.LACKING if topic.lacks(tree) else "" for tree in both]
    if any(lacking):
        return [Compared(each, (), (), *lacking) for each in topic.measures]
    with topic.opened() as look:
        with contextlib.suppress(FailedError):
            look(pair.then)  # does not count: libraries are read into the machine's memory
        turns = figures.in_turns({tree: partial(look, tree) for tree in both}, rounds)
    then, now = (turns.found[tree] for tree in both)
    reasons = [turns.failed.get(tree, "") for tree in both]
    return [
        Compared(measure, [each[n] for each in then], [each[n] for each in now], *reasons)
        for n, measure in enumerate(topic.measures)
    ]


# The program


def main() -> int:
    """Measure, print, and write what is asked for."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # remove what was checked out
    scale = QUICK if options.quick else FULL
    rounds = options.rounds or scale.rounds
    if complaint := figures.busy(figures.load()):
        print(f"warning: {complaint}", file=sys.stderr)
    began = time.monotonic()
    rows: list[Compared] = []
    try:
        with trees.beside(options.revision) as pair:
            about = {
                "then": pair.then.revision,
                "now": pair.now.revision,
                "rounds": rounds,
                "is_quick": options.quick,
                "warning": complaint,
                "machine": figures.machine(("pytest", "torch", "jax"), []),
            }
            print(figures.table(paired.HEAD, []), end="", flush=True)
            for topic in _chosen(topics(scale), options.only):
                found = compared(topic, pair, rounds)
                print(figures.lines([each.row() for each in found]), end="", flush=True)
                rows += found
    except (trees.UnknownRevisionError, FailedError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    about["took_s"] = round(time.monotonic() - began)
    _write(options.markdown, markdown(about, rows))
    _write(options.json, f"{json.dumps({**about, 'rows': [e.told() for e in rows]}, indent=1)}\n")
    failures = [each for each in rows if paired.is_failure(each)]
    for each in failures:
        print(f"{each.verdict}: {each.measure.label}")
    print(f"{about['took_s']} s, {pair.then.revision} and {pair.now.revision}")
    return int(bool(failures))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision", metavar="REV", help="the revision to compare with: v0.2.0")
    parser.add_argument("--quick", action="store_true", help="the shortest that says something")
    parser.add_argument("--rounds", type=int, help="how often both take turns")
    parser.add_argument("--only", nargs="+", choices=list(topics(QUICK)), help="these topics alone")
    parser.add_argument("--json", type=Path, help="write every value here")
    parser.add_argument("--markdown", type=Path, help="write the table here, for release notes")
    return parser.parse_args()


def _chosen(every: Mapping[str, Topic], only: Sequence[str] | None) -> Sequence[Topic]:
    return [topic for name, topic in every.items() if not only or name in only]


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def markdown(about: Mapping[str, Any], rows: Sequence[Compared]) -> str:
    """Return the table for release notes, with what it was taken on and how to read it."""
    machine = about["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    notes = [
        f"then: {about['then']}; now: {about['now']}; {about['rounds']} rounds, in turns",
        (
            "The ratio is the median of the rounds' (range, rounds). The true median lies in this"
            f" range with a certainty of {paired.certainty(about['rounds']):.0%}. Worse: the ratio"
            f" is above {paired.LIMIT:g}, and the whole range above 1. Unclear: noise hides"
            " whether it is."
        ),
        (
            f"{machine['cores']} cores of {machine['processor']}, Python {machine['python']},"
            f" {versions}"
        ),
        *([about["warning"]] if about["warning"] else []),
    ]
    heading = f"Cost since {about['then']}{', quick' if about['is_quick'] else ''}"
    cells = [each.row() for each in rows]
    return figures.Section(heading, paired.HEAD, cells, None, notes=notes).markdown()


if __name__ == "__main__":
    sys.exit(main())
