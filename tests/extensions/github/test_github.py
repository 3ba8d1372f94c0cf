"""What GitHub Actions is told: errors at lines, and a summary that nothing in it can break."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from elements import HOSTILE
from foreign import CONTROL, TEXTS
from markdown_it import MarkdownIt

from pytest_multihost.core.report import Annotation, Renderer, last_attempts
from pytest_multihost.extensions.github.annotations import (
    MAX_ERRORS,
    Checkout,
    all_commands,
    annotation_commands,
    error_commands,
    workflow_command,
)
from pytest_multihost.extensions.github.facts import headline
from pytest_multihost.extensions.github.summary import MAX_SUMMARY, append_summaries, summary
from pytest_multihost.testing import Place

pytestmark = pytest.mark.unit

CHECKOUT = Checkout(root="/home/runner/work/p/p/sub", workspace="/home/runner/work/p/p")
NASTY = "a|b <b>x</b> `c` [d](http://e) @f *g* _h_\n# i\r\n::error::j % k"

WHERE = {"rank": 0, "file": "storage.py", "line": 17, "function": "read", "source": "f.read()"}
DIAGNOSIS = {
    "kind": "straggler",
    "confidence": "certain",
    "culprits": [0],
    "waiting": [1, 2, 3],
    "where": WHERE,
    "detected_after_s": 2.34,
    "summary": "rank 0 never reached all_reduce #3 (world group)",
    "evidence": [
        {"rank": rank, "fact": "entered all_reduce #3", "at_s": rank / 10, "source": "recorder"}
        for rank in (1, 2, 3)
    ],
    "notes": [],
}


def rank(number: int, outcome: str = "hung", **changes: object) -> dict[str, Any]:
    """Return a rank's result."""
    return {
        "rank": number,
        "outcome": outcome,
        "phase": "call",
        "label": "BLOCKED" if number else "SLEEPING",
        "error": None,
        **changes,
    }


def verdict(**changes: object) -> dict[str, Any]:
    """Return the verdict on a hang, or what else the changes make of it."""
    return {
        "run_id": "2026-11-21T00-00-00Z-4711",
        "nodeid": "tests/test_ckpt.py::test_restore[4-gloo]",
        "attempt": 1,
        "dir": "test_restore-1f3a-1",
        "backend": "gloo",
        "world_size": 4,
        "status": "failed",
        "expected": None,
        "outcome": "hung",
        "reason": None,
        "replay": "7f3a",
        "replay_command": (
            "pytest 'tests/test_ckpt.py::test_restore[4-gloo]' --multihost-replay 7f3a"
        ),
        "rank_results": [rank(number) for number in range(4)],
        "diagnosis": DIAGNOSIS,
        "clock_jumps": None,
        **changes,
    }


def told(**changes: object) -> Mapping[str, Any]:
    """Return a diagnosis with changes."""
    return {**DIAGNOSIS, **changes}


def parsed(command: str) -> tuple[dict[str, str], str]:
    """Read a workflow command as GitHub's runner documents it."""
    found = re.fullmatch(r"::error ([^:\n]*)::([^\n\r]*)", command)
    assert found, command
    properties = dict(pair.split("=", 1) for pair in found[1].split(","))
    return {name: _decoded(text) for name, text in properties.items()}, _decoded(found[2])


def _decoded(text: str) -> str:
    for code, sign in (("%3A", ":"), ("%2C", ","), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        text = text.replace(code, sign)
    return text


def only_error(one: Mapping[str, Any], checkout: Checkout = CHECKOUT) -> tuple[dict[str, str], str]:
    """Return what the one error of a run says."""
    (command,) = error_commands([one], checkout)
    return parsed(command)


def test_a_failure_beside_the_expected_end_is_in_the_error() -> None:
    """The end alone would look like what the test expects."""
    own = rank(2, "failed", error={"type": "AssertionError", "message": "sum\nassert 3 == 4"})
    lost = rank(1, "collateral", error={"type": "EOFError", "message": ""})
    ranks = [rank(0), lost, own, rank(3)]
    _, message = only_error(verdict(expected=False, rank_results=ranks))
    assert "rank 2: AssertionError: sum" in message.splitlines()
    assert "EOFError" not in message


def test_an_error_is_at_the_culprits_line() -> None:
    """Relative to the repository, though the verdict's path is relative to rootdir."""
    properties, message = only_error(verdict())
    assert properties == {
        "file": "sub/storage.py",
        "line": "17",
        "title": "HUNG tests/test_ckpt.py::test_restore[4-gloo]",
    }
    assert message.splitlines() == [
        "rank 0 never reached all_reduce #3 (world group)",
        "straggler, certain: found 2.3 s after the last progress",
        "waiting: ranks 1-3",
        "ranks 1-3: entered all_reduce #3",
    ]


def test_where_ranks_parted_is_in_the_error_and_in_the_summary() -> None:
    """The operations that they hang in may be far from it."""
    parted = verdict(diagnosis=told(divergence={"summary": "after 56 operations in common"}))
    _, message = only_error(parted)
    assert "diverged after 56 operations in common" in message.splitlines()
    assert "diverged after 56 operations in common" in html.unescape(summary([parted]))


def test_ranks_have_the_names_of_the_headline() -> None:
    """In a world with roles these count within the role."""
    of_roles = {0: ("engine", 0), 1: ("engine", 1), 2: ("trainer", 0), 3: ("trainer", 1)}
    ranks = [rank(n, role=role, role_rank=own) for n, (role, own) in of_roles.items()]
    one = verdict(rank_results=ranks)
    _, message = only_error(one)
    assert "waiting: engine 1, trainer 0,1" in message.splitlines()
    assert "engine 1, trainer 0,1: entered all_reduce #3" in message.splitlines()
    [row] = cells(summary([one]))
    assert "engine 0" in row
    assert "engine 1, trainer 0,1" in row
    error = {"type": "ValueError", "message": "", "file": None}
    own = rank(3, "failed", error=error, role="trainer")
    failed = verdict(diagnosis=None, outcome="failed", rank_results=[*ranks[:3], own])
    assert only_error(failed)[1] == "trainer 1: ValueError"


def test_without_a_culprits_line_every_side_has_its_own() -> None:
    """One has the error, the others a notice each; and the error and the summary list them all."""
    lines = {0: 17, 1: 31, 2: 31, 3: 40}
    places = [{**WHERE, "rank": rank, "line": line} for rank, line in lines.items()]
    one = verdict(diagnosis=told(culprits=[], where=None, places=places))
    error, *notices = error_commands([one], CHECKOUT)
    properties, message = parsed(error)
    assert properties["line"] == "17"
    sides = ["rank 0 at storage.py:17", "ranks 1,2 at storage.py:31", "rank 3 at storage.py:40"]
    assert [line for line in message.splitlines() if " at " in line] == sides
    title = "HUNG tests/test_ckpt.py%3A%3Atest_restore[4-gloo]"
    assert notices == [
        f"::notice file=sub/storage.py,line=31,title={title}::ranks 1,2 are here",
        f"::notice file=sub/storage.py,line=40,title={title}::rank 3 is here",
    ]
    table = html.unescape(summary([one]))
    assert "storage.py:17 (rank 0); storage.py:31 (ranks 1,2); storage.py:40 (rank 3)" in table


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/runner/work/p/p/lib/a.py", "lib/a.py"),
        ("../a.py", "a.py"),
        ("/opt/elsewhere/a.py", "sub/tests/test_ckpt.py"),
        ("../../../a.py", "sub/tests/test_ckpt.py"),
    ],
)
def test_a_file_outside_the_repository_is_not_named(file: str, shown: str) -> None:
    """GitHub knows none such; the test's own file is named instead."""
    one = verdict(diagnosis=told(where={**WHERE, "file": file}))
    assert only_error(one)[0]["file"] == shown


def test_without_a_culprits_line_the_error_of_a_rank_is_told() -> None:
    """The cause's before that of a rank that only followed."""
    error = {"type": "ValueError", "message": "no\nmore", "file": "a.py", "line": 3}
    lost = {**error, "type": "RuntimeError", "line": 9}
    ranks = [rank(0, "collateral", error=lost), rank(1, "failed", error=error)]
    one = verdict(diagnosis=None, outcome="failed", rank_results=ranks)
    properties, message = only_error(one)
    assert (properties["file"], properties["line"]) == ("sub/a.py", "3")
    assert message == "rank 1: ValueError: no"


def test_without_any_line_the_tests_file_is_named() -> None:
    """A deadlock has no culprit."""
    properties, _ = only_error(verdict(diagnosis=told(where=None, culprits=[])))
    assert properties["file"] == "sub/tests/test_ckpt.py"
    assert "line" not in properties


def test_nothing_in_a_text_ends_a_command() -> None:
    """Neither lines nor commas nor colons nor signs of percent; signs of control go."""
    nodeid = f"t.py::t[{NASTY},x=1\x1b[31m]"
    one = verdict(nodeid=nodeid, diagnosis=told(summary=NASTY, evidence=[]))
    properties, message = only_error(one)
    assert properties["title"] == f"HUNG {nodeid}".replace("\x1b", "")
    assert message.startswith(NASTY)
    assert set(properties) == {"file", "line", "title"}


def test_a_test_that_failed_is_not_called_as_its_ranks_ended() -> None:
    """All ranks of a test that was expected to fail have passed, or one of them skipped alone."""
    for outcome in ("passed", "skipped"):
        one = verdict(outcome=outcome, diagnosis=None, reason="rank 1 skipped alone")
        properties, message = only_error(one)
        assert properties["title"].startswith("FAILED tests/test_ckpt.py")
        assert message == "rank 1 skipped alone"
        assert "1 test ran on several ranks: 1 failed" in summary([one])


def test_no_more_errors_than_github_shows() -> None:
    """The summary has all of them."""
    many = [verdict(nodeid=f"t.py::t{number}") for number in range(MAX_ERRORS + 5)]
    assert len(error_commands(many, CHECKOUT)) == MAX_ERRORS
    assert summary(many).count("<details>") == MAX_ERRORS + 5


@pytest.mark.parametrize("status", ["passed", "skipped", "xfailed", "xpassed"])
def test_what_has_not_failed_is_no_error(status: str) -> None:
    """A hang that was expected, say."""
    assert error_commands([verdict(status=status)], CHECKOUT) == []


def test_a_rerun_takes_the_place_of_what_it_repeats() -> None:
    """Whatever the order in which processes have written."""
    second = verdict(attempt=2, status="passed", outcome="passed", diagnosis=None)
    assert last_attempts([second, verdict()]) == [second]
    assert error_commands([verdict(), second], CHECKOUT) == []


def test_a_headline_is_found_for_every_outcome() -> None:
    """At worst the outcome itself."""
    bare = verdict(diagnosis=None, outcome="error")
    assert headline(bare) == "error"
    assert headline({**bare, "reason": "the server died"}) == "the server died"


def cells(text: str) -> list[list[str]]:
    """Return the rows of the one table that a reader of GitHub sees, below its head."""
    rendered = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    rows = re.findall(r"<tr>(.*?)</tr>", rendered, re.DOTALL)
    columns = [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in rows]
    return [[html.unescape(cell) for cell in row] for row in columns if row]


def test_the_summary_has_a_row_for_each_test_that_failed() -> None:
    """And counts the others."""
    fine = verdict(nodeid="t.py::fine", status="passed", outcome="passed", diagnosis=None)
    text = summary([verdict(), fine])
    assert "2 tests ran on several ranks: 1 hung, 1 passed" in text
    assert cells(text) == [
        [
            "tests/test_ckpt.py::test_restore[4-gloo]",
            "4 gloo",
            "HUNG",
            "straggler, certain",
            "rank 0",
            "ranks 1-3",
            "storage.py:17 read",
            "2.3 s",
        ]
    ]


def test_a_run_without_failures_has_no_table() -> None:
    """One without worlds has no summary at all."""
    fine = verdict(status="passed", outcome="passed", diagnosis=None)
    assert "|" not in summary([fine])
    assert summary([]) == ""


def test_nothing_in_a_text_is_markup() -> None:
    """No cell ends early, no link, mention, heading or element comes of it."""
    one = verdict(nodeid=NASTY, diagnosis=told(where={**WHERE, "file": NASTY}, summary=NASTY))
    text = summary([one])
    ((nodeid, *rest),) = cells(text)
    assert nodeid == " ".join(NASTY.split())
    assert len(rest) == 7
    rendered = MarkdownIt("gfm-like", {"linkify": False}).render(text)
    assert set(re.findall(r"<(\w+)", rendered)) <= {
        *("h3", "p", "table", "thead", "tbody", "tr", "th", "td"),
        *("details", "summary", "ul", "li"),
    }
    assert "@f" not in text
    assert "http:" not in text


def test_equal_ranks_and_claims_are_told_once() -> None:
    """64 ranks fill no page."""
    ranks = [rank(number) for number in range(64)]
    text = html.unescape(summary([verdict(rank_results=ranks)]))
    assert "* rank 0: hung, sleeping\n* ranks 1-63: hung, blocked\n" in text
    assert "* ranks 1-3: entered all_reduce #3 (recorder)\n" in text


def test_a_world_whose_clock_has_jumped_says_so() -> None:
    """Its seconds are not those of the job."""
    jumps = {"jumps": 3, "jumped_s": 1800.0, "real_s": 2.25, "doubts": []}
    text = html.unescape(summary([verdict(clock_jumps=jumps)]))
    assert "* clock: jumped 1800.0 s; the world took 2.2 s\n" in text


def test_a_summary_stays_below_githubs_limit() -> None:
    """A larger one would not be shown at all. What is left out is said."""
    many = [
        verdict(nodeid=f"t.py::t{number}", diagnosis=told(notes=["é|" * 200] * 5))
        for number in range(2000)
    ]
    text = summary(many)
    assert MAX_SUMMARY * 0.9 < len(text.encode()) <= MAX_SUMMARY
    assert "There is more in the artifacts" in text
    assert len(cells(text)) == 2000


@pytest.mark.parametrize("room", [-1, 0, 10, 100, 500])
def test_a_summary_without_room_is_short(room: int) -> None:
    """Down to nothing."""
    assert len(summary([verdict()], max_bytes=room).encode()) <= max(0, room)


def test_a_summary_is_added_to_what_others_have_written(tmp_path: Path) -> None:
    """The limit is for all of them together."""
    file = tmp_path / "summary.md"
    file.write_text("# Mine\n")
    append_summaries(file, tmp_path, [verdict()], [])
    assert file.read_text().startswith("# Mine\n### Multi-host tests\n")
    file.write_bytes(b"x" * (MAX_SUMMARY - 50))
    append_summaries(file, tmp_path, [verdict()], [])
    assert file.stat().st_size <= MAX_SUMMARY


# What other extensions say


def annotation(*files: str, text: str = "said") -> Annotation:
    """Return a warning at lines of files."""
    places = tuple(Place(each, 3, "f") for each in files)
    return Annotation(level="warning", title="SUM, of all", text=text, places=places)


def test_an_annotation_stands_at_its_first_line_in_the_repository() -> None:
    """Else at none."""
    both, outside = annotation("/opt/lib/x.py", "a.py"), annotation("/opt/lib/x.py")
    first, second = annotation_commands([both, outside], CHECKOUT)
    assert first == "::warning file=sub/a.py,line=3,title=SUM%2C of all::said"
    assert second == "::warning title=SUM%2C of all::said"


@pytest.mark.parametrize("word", [*HOSTILE, "a\n::error::g"])
def test_the_text_of_an_annotation_stays_in_its_command(word: str) -> None:
    """One line for each."""
    [command] = annotation_commands([annotation("a.py", text=word)], CHECKOUT)
    assert "\n" not in command
    assert "\r" not in command


def test_of_many_annotations_github_gets_what_it_shows() -> None:
    """It would drop the rest in silence."""
    assert len(annotation_commands([annotation("a.py")] * (MAX_ERRORS + 1), CHECKOUT)) == MAX_ERRORS


def test_renderers_add_annotations_and_a_part_of_the_summary(tmp_path: Path) -> None:
    """After the errors and the page of the run itself."""
    said = Renderer(
        name="sums",
        annotations=lambda _run, verdicts: [annotation("a.py")] * len(verdicts),
        markdown=lambda run, _verdicts, _max_bytes: f"### Sums of {run.name}\n",
    )
    commands = all_commands(tmp_path, [verdict()], [said, Renderer(name="silent")], CHECKOUT)
    assert [each.split()[0] for each in commands] == ["::error", "::warning"]
    file = tmp_path / "summary.md"
    append_summaries(file, tmp_path, [verdict()], [said])
    assert file.read_text().endswith(f"### Sums of {tmp_path.name}\n")


@pytest.mark.parametrize(
    "text", [*TEXTS, *map(chr, range(32)), *map(chr, range(127, 160))], ids=ascii
)
def test_hostile_text_in_a_command_is_one_line_and_does_nothing(text: str) -> None:
    """Neither the file, nor the title, nor the message begins a command of its own."""
    command = workflow_command("error", text, 1, text, text)
    assert not CONTROL.search(command)
    assert "\n" not in command
