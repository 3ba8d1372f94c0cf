"""`multihost explain` and `multihost report` on artifacts that were damaged."""

from __future__ import annotations

import copy
import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import run_script

from pytest_multihost.core.blame import judge_world
from pytest_multihost.core.command.main import main
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.report import Attempt, build_verdict, write_attempt, write_facts
from pytest_multihost.testing import (
    RUNTIME_SCOPE,
    Activity,
    Dump,
    Fault,
    Frame,
    Host,
    Operations,
    Parting,
    Side,
    SourceContext,
    Step,
    WorldResult,
    WorldSnapshot,
    make_dump,
    make_spec,
    raised,
    report,
    to_json,
    well_behaved,
)

Json = Any
"""A value of JSON, damaged or not."""

PATH_OF = {
    "facts.json": "attempt/facts.json",
    "verdict.json": "attempt/verdict.json",
    "verdicts.jsonl": "verdicts.jsonl",
}
MUTATIONS = {"facts.json": 200, "verdict.json": 60, "verdicts.jsonl": 60}
FIRST = 30
"""As many of them are of the fast tier."""
MAX_LINES = 3
DROPPED = object()
HOSTS = tuple(Host(i, f"host-{i}", f"10.0.0.{i}", "eth0", range(i, i + 1)) for i in range(3))
CUT = {"effect": {"words": "the network is cut", "cuts": [[0, 1], [1, 0], [0, 2], [2, 0]]}}


def world(root: Path) -> WorldResult:
    """Return a world of three ranks: rank 1 is late for a collective, rank 2 has raised."""
    error = raised("ValueError: no", "KeyError: 'x'", file=str(root / "test_it.py"), line=3)
    faults = (
        Fault("delay", (1,), params={"seconds": 600}),
        Fault("partition", (0,), params={"groups": [[0], [1, 2]]}),
    )
    script = [
        *well_behaved(0, stays_in="call"),
        *well_behaved(1, stays_in="call"),
        Step(1, "fault", {"index": 0, "phase": "begun", "fault": "delay"}, 0.2, "go"),
        Step(1, "fault", {"index": 1, "phase": "begun", "fault": "partition", **CUT}, 0.2, "go"),
        Step(1, "answered", {"service": "netns", "index": 1}, 0.3, "go"),
        *well_behaved(2, stays_in="call"),
        Step(2, "report", report("call", "failed", error=error), 0.5, "go"),
    ]

    def dumper(*_: object) -> tuple[Dump, ...]:
        return tuple(make_dump(rank, f"{root}/test_it.py:{rank + 1} test") for rank in range(3))

    entered = builders.operation(
        sequence=2, since_s=1000.4, frame=Frame(str(root / "test_it.py"), 2, "test")
    )
    pages = [
        Operations(rank, (entered,) if rank != 1 else (), {((0, 1, 2), 0, RUNTIME_SCOPE): 1})
        for rank in range(3)
    ]
    snapshot = WorldSnapshot(
        at_s=1002.0,
        reason="end",
        ranks=tuple(
            builders.seen(
                page.rank,
                *page.recent,
                activity=Activity("futex", ends_in_s=1.5),
                entered=tuple(page.entered.items()),
            )
            for page in pages
        ),
        blockers=("rank 1 sleeps",),
    )
    spec = replace(make_spec(3), faults=faults, hosts=HOSTS)
    result = run_script(script, spec, dumper=dumper, directory=root)
    sides = Side((1,), count=1), Side((0, 2), entered, entered.frame, entered.frame, count=2)
    parting = Parting(((0, 1, 2), 0, RUNTIME_SCOPE), 1, "operations", 1000.4, sides, sides)
    return replace(
        result,
        snapshots=(snapshot,),
        operations=tuple(pages),
        partings=(parting,),
        last_words={2: "bye"},
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run with one attempt."""
    folder = tmp_path / "run"
    attempt = folder / "attempt"
    attempt.mkdir(parents=True)
    (tmp_path / "test_it.py").write_text("def test():\n    all_reduce()\n    raise ValueError\n")
    result, symptoms = world(tmp_path), Symptoms(("no",), ("bye",))
    context = SourceContext(str(tmp_path))
    about = Attempt("run", "attempt", None, {"python": "3.11"})
    verdict = to_json(build_verdict(judge_world(result, symptoms, context), about))
    write_attempt(attempt, verdict, result.history, origin_s=result.started_s)
    write_facts(attempt, result, symptoms, about, root=str(tmp_path))
    (folder / "verdicts.jsonl").write_text(json.dumps(verdict) + "\n")
    (attempt / "rank-0.log").write_text("hello\n")
    return folder


@pytest.fixture
def command(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str, str]]:
    """Return a function that runs a command on the run; it returns code, output and errors."""

    def called(name: str) -> tuple[int, str, str]:
        folder = run / "attempt" if name == "explain" else run
        monkeypatch.setattr(sys, "argv", ["multihost", name, str(folder)])
        code = main()
        return code, *capsys.readouterr()

    return called


def paths(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of a value and of everything in it."""
    yield path
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value if isinstance(value, list) else ())
    )
    for key, each in pairs:
        yield from paths(each, (*path, key))


def nested(depth: int) -> Json:
    """Return a list in a list in a list."""
    value: Json = []
    for _ in range(depth):
        value = [value]
    return value


ANYTHING: list[Json] = [
    *(
        DROPPED,
        None,
        True,
        -1,
        0,
        99,
        10**6,
        10**30,
        10**400,
        1.5,
        1e308,
        float("nan"),
        float("-inf"),
    ),
    *("", "x", "\ud800", "a\0b", "(", "\n", "é" * 3000, "all", "netns:2", "../x", "program a.py:1"),
    *([], [1], [None], [[0], [9]], {}, {"kind": "x"}, nested(80), nested(900)),
]


def damaged(value: Json, chance: random.Random) -> Json:
    """Return something in place of a value, most often of the same type."""
    of_type = [each for each in ANYTHING if type(each) is type(value)]
    if isinstance(value, list) and value and chance.random() < 0.8:
        number = chance.randrange(len(value))
        rest = value[:number] + value[number + 1 :]
        return chance.choice([rest, [*value, value[number]], value[::-1]])
    return chance.choice(of_type if of_type and chance.random() < 0.7 else ANYTHING)


def mutations(content: Json) -> Iterator[tuple[str, str]]:
    """Yield what was done to a content, and the text that became of it; always the same."""
    chance = random.Random(7)
    everywhere = list(paths(content))
    while True:
        where = chance.choice(everywhere)
        copied: Json = [copy.deepcopy(content)]
        holder, key = copied, 0
        for part in where:
            holder, key = holder[key], part
        holder[key] = instead = damaged(holder[key], chance)
        if instead is DROPPED:
            del holder[key]
        yield f"{where}: {str(instead)[:40]!r}", json.dumps(copied[0]) if copied else ""


@pytest.mark.parametrize("name", PATH_OF)
@pytest.mark.parametrize(
    "part",
    [slice(FIRST), pytest.param(slice(FIRST, None), marks=pytest.mark.commands)],
    ids=["first", "others"],
)
def test_a_damaged_value_gives_a_result_or_an_error_of_three_lines(
    run: Path, command: Callable[[str], tuple[int, str, str]], name: str, part: slice
) -> None:
    """Whatever was dropped, changed, doubled or nested: an error names the file."""
    path = run / PATH_OF[name]
    whole = json.loads(path.read_text())
    made = [*itertools.islice(mutations(whole), MUTATIONS[name])]
    for what, text in made[part]:
        path.write_text(text + "\n")
        for called in ("explain", "report"):
            check(what, name, *command(called))


def check(what: str, name: str, code: int, out: str, error: str) -> None:
    """Check the outcome of a command after an artifact was damaged."""
    reasons = [each for each in re.split("^left out: ", error, flags=re.MULTILINE) if each]
    assert code in (0, 1), what
    for reason in reasons:
        assert name in reason, f"{what}: {reason}"
        assert len(reason.strip().splitlines()) <= MAX_LINES, f"{what}: {reason}"
    assert reasons or code == 0 or "differs from verdict.json in: " in out, what


def broken_files(content: bytes) -> dict[str, bytes]:
    """Return contents that are no longer what was written, by what was done."""
    size = len(content)
    cuts = {f"cut at {part}/8": content[: size * part // 8] for part in range(8)}
    text = content.decode()
    return cuts | {
        "in UTF-16": text.encode("utf-16"),
        "in UTF-32": text.encode("utf-32-be"),
        "with a mark of its byte order": text.encode("utf-8-sig"),
        "in Latin-1": content[:1] + b'"\xe9": 1, ' + content[1:],
        "with zeros": content.replace(b",", b"\0", 1),
        "nested": b"[" * 100_000,
        "with a long number": content.replace(b"1", b"9" * 5000, 1),
        "another file": b"\x7fELF\x02\x01\x01" + bytes(range(256)),
    }


@pytest.mark.parametrize("name", PATH_OF)
def test_a_broken_file_gives_a_result_or_an_error_of_three_lines(
    run: Path, command: Callable[[str], tuple[int, str, str]], name: str
) -> None:
    """Half written, in another encoding, or another file altogether."""
    path = run / PATH_OF[name]
    for what, content in broken_files(path.read_bytes()).items():
        path.write_bytes(content)
        for called in ("explain", "report"):
            check(what, name, *command(called))


@pytest.mark.parametrize("name", PATH_OF)
def test_a_folder_in_place_of_a_file_is_an_error_that_names_it(
    run: Path, command: Callable[[str], tuple[int, str, str]], name: str
) -> None:
    """And where nothing can be written, the page is named."""
    (run / PATH_OF[name]).unlink()
    (run / PATH_OF[name]).mkdir()
    for called in ("explain", "report"):
        check("a folder", name, *command(called))


def test_a_page_that_cannot_be_written_is_an_error_that_names_it(
    run: Path, command: Callable[[str], tuple[int, str, str]]
) -> None:
    """The other pages are written all the same."""
    (run / "attempt" / "report.html").mkdir()
    code, _, error = command("report")
    assert (code, "left out: " in error, "report.html" in error) == (1, True, True)
    assert (run / "report.html").is_file()


def test_what_is_whole_is_explained(command: Callable[[str], tuple[int, str, str]]) -> None:
    """The damage is what the other tests find."""
    code, out, error = command("explain")
    assert (code, out.splitlines()[-1], error) == (0, "agrees with verdict.json", "")
    assert command("report")[::2] == (0, "")
