"""The pages for a browser, as text: what stands where, and that nothing of a test's gets loose."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from elements import HOSTILE, Elements
from markupsafe import Markup

from pytest_multihost.core.blame import judge_world
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.report.artifacts import Attempt, build_verdict
from pytest_multihost.core.report.html import timeline as timelines
from pytest_multihost.core.report.html.pages import (
    as_shown,
    attempt_page,
    run_page,
    write_index,
    write_page,
)
from pytest_multihost.core.report.html.render import display_text, inside, script_json
from pytest_multihost.core.report.html.sections import PageModel, notes, rank_groups
from pytest_multihost.core.report.html.timeline import AxisSpan, axis
from pytest_multihost.core.report.layout import rank_state
from pytest_multihost.core.report.logs import LogExcerpt
from pytest_multihost.core.report.renderer import PageSection, Renderer, RowPart
from pytest_multihost.testing import (
    RUNTIME_SCOPE,
    Activity,
    Event,
    Fault,
    Frame,
    NativeThread,
    Operation,
    Operations,
    Parting,
    RankPlace,
    RankSnapshot,
    SentencePart,
    ServiceRecord,
    Side,
    SourceContext,
    Subject,
    ThreadStack,
    WorldResult,
    WorldSnapshot,
    make_dump,
    make_event,
    make_spec,
    raised,
    report,
    sentence,
)

ROOT = "/home/u/project"
STARTED_S = 1000.0


# A world of three ranks: rank 1 sleeps, the others are in the second all_reduce


def operation(name: str, sequence: int, began_s: float, ended_s: float | None) -> Operation:
    """Return an operation of all three ranks; times from the world's start."""
    return builders.operation(
        name,
        sequence=sequence,
        since_s=STARTED_S + began_s,
        ended_s=None if ended_s is None else STARTED_S + ended_s,
        frame=Frame(f"{ROOT}/restore.py", 88, "restore"),
    )


def page_of(rank: int, name: str) -> Operations:
    """Return what a rank's slot page holds."""
    own = [operation(name, 1, 0.2, 0.3)]
    if rank != 1:
        own.append(operation(name, 2, 0.4 + rank / 100, None))
    return Operations(rank, tuple(own), {((0, 1, 2), 0, RUNTIME_SCOPE): len(own)})


def seen(page: Operations, activity: Activity) -> RankSnapshot:
    """Return the last snapshot of a rank."""
    return RankSnapshot(
        rank=page.rank,
        label="SLEEPING" if page.rank == 1 else "BLOCKED",
        activity=activity if page.rank == 1 else Activity("futex"),
        operations=page.open,
        entered=tuple(page.entered.items()),
    )


def parting(word: str) -> Parting:
    """Return where rank 1 did something else, from one line of the user's."""
    sides = [
        Side((rank,), operation(f"{word}{rank}", 1, 0.2, 0.3), through=Frame(f"{word}.py", 9, word))
        for rank in (1, 0)
    ]
    group = ((0, 1, 2), 0, RUNTIME_SCOPE)
    return Parting(group, 0, "operations", STARTED_S, tuple(sides))


def history(error: Mapping[str, Any] | None = None) -> Iterator[Event]:
    """Yield what the ranks told; rank 2 raises at last, if it is to."""
    for rank in range(3):
        yield make_event(STARTED_S + 0.01, rank, "forked", {"pid": 4000 + rank})
        yield make_event(STARTED_S + 0.1, rank, "ready")
        yield make_event(STARTED_S + 0.11, rank, "released", {"gate": "go"})
        yield make_event(STARTED_S + 0.12, rank, "phase", {"phase": "call"})
    yield make_event(STARTED_S + 0.35, 1, "sync_point", {"name": "before"})
    yield make_event(STARTED_S + 0.36, 1, "fault", {"index": 0, "phase": "begun", "fault": "delay"})
    if error is not None:
        yield make_event(STARTED_S + 0.5, 2, "report", report("call", "failed", error=error))
    for rank in range(3):
        usage = {"cpu_s": 0.25, "peak_rss_bytes": 180 << 20, "by_harness": True}
        yield make_event(STARTED_S + 2.7, rank, "exited", {"code": None, "signal": 15, **usage})


def world(word: str = "word", *, error: Mapping[str, Any] | None = None) -> WorldResult:
    """Return a world that hangs; `word` stands wherever a test chooses the words."""
    pages = tuple(page_of(rank, f"all_{word}") for rank in range(3))
    spec = replace(
        make_spec(3),
        nodeid=f"test_it.py::test[{word}]",
        faults=(Fault("delay", (1,), params={"seconds": 600, "note": word}),),
    )
    waits = f"{ROOT}/{word}.py:88 {word}"
    test = f"{ROOT}/test_it.py:31 test"
    stacks = {rank: f"{ROOT}/storage.py:17 read" if rank == 1 else waits for rank in range(3)}
    snapshot = WorldSnapshot(
        at_s=STARTED_S + 2.6,
        reason="end",
        ranks=tuple(seen(page, Activity("read", word)) for page in pages),
        blockers=(word,),
        unobserved=(word,),
    )
    return WorldResult(
        spec=spec,
        launch="fork",
        started_at="2026-11-21T00:00:00Z",
        started_s=STARTED_S,
        ended_s=STARTED_S + 2.7,
        history=tuple(sorted(history(error), key=lambda event: event.at_s)),
        ending="proof",
        reason="nothing can move",
        dumps=tuple(make_dump(rank, stacks[rank], test) for rank in range(3)),
        snapshots=(snapshot,),
        operations=pages,
        partings=(parting(word),),
        progress_s=STARTED_S + 0.42,
        detected_s=STARTED_S + 2.6,
        leftovers=(word,),
    )


def page_model(result: WorldResult, word: str = "word", **changes: Any) -> PageModel:  # noqa: ANN401
    """Return what the page of a world is made from."""
    context = SourceContext(ROOT, lambda file, line: f"{word} # {line}" if file else "")
    judged = judge_world(result, Symptoms(), context)
    attempt = Attempt("run", "folder", word, {"python": word, "jax": None})
    return replace(PageModel(judged=judged, verdict=build_verdict(judged, attempt)), **changes)


def shown(result: WorldResult, word: str = "word", **changes: Any) -> str:  # noqa: ANN401
    """Return the page of a world."""
    return attempt_page(page_model(result, word, **changes))


def lane_data(page: str) -> dict[str, Any]:
    """Return what the script reads."""
    data: dict[str, Any] = json.loads(Elements(page).scripts["application/json"])
    return data


# What stands where


def test_the_summary_is_the_first_heading() -> None:
    """Before anything else, the one sentence."""
    page = shown(world())
    first = re.search(r"<h1[^>]*>(.*?)</h1>", page)
    assert first is not None
    assert Elements(first[1]).words == "rank 1 never reached all_word #2 (world group)"
    assert '<b class="culprit">rank 1</b>' in first[1]


@pytest.mark.parametrize(("subject", "leads_back"), [("test", True), ("script", False)])
def test_only_the_page_of_a_test_leads_back(subject: Subject, leads_back: bool) -> None:
    """A script is one world, and its folder has no page of a run."""
    result = world()
    page = shown(replace(result, spec=replace(result.spec, subject=subject)))
    assert ("../report.html" in page) is leads_back


def test_names_in_an_exception_are_not_marked_in_the_heading() -> None:
    """They may read like the culprit's, or like the group's."""
    model = page_model(world())
    assert model.judged.diagnosis is not None
    words = sentence(
        (SentencePart("rank 1", "culprit"),), " raised ValueError: rank 1 (world group)"
    )
    diagnosis = replace(model.judged.diagnosis, headline=words)
    page = attempt_page(replace(model, judged=replace(model.judged, diagnosis=diagnosis)))
    first = re.search(r"<h1[^>]*>(.*?)</h1>", page)
    assert first is not None
    assert Elements(first[1]).elements == [("b", ("class",))]
    assert Elements(first[1]).words == "rank 1 raised ValueError: rank 1 (world group)"


def test_the_culprit_comes_first_then_who_waits() -> None:
    """Ranks that did the same stand together."""
    found = [(row.ranks, row.blame, row.state) for row in rank_groups(page_model(world()))]
    assert found == [((1,), "culprit", "sleeping"), ((0, 2), "waiting", "waiting")]


def test_the_first_divergence_is_a_section_of_its_own() -> None:
    """What each side entered, from which line, and where a library's line differs."""
    words = Elements(shown(world())).words
    assert "After 0 operations in common (world group):" in words
    assert (
        "rank 1 entered word1 from restore(), restore.py:88, through word(), word.py:9"
        in " ".join(words.split())
    )


def test_a_service_that_has_done_something_has_a_section_of_its_own() -> None:
    """With what it says of itself; another has none."""
    record = ServiceRecord({}, ("jumped 1799.9 s", "because of <main>"), "Times are the world's.")
    records = {"clock": record, "quiet": ServiceRecord({})}
    words = " ".join(Elements(shown(replace(world(), records=records))).words.split())
    assert "Clock Times are the world's. jumped 1799.9 s because of <main>" in words
    assert "Quiet" not in words
    assert "Clock" not in Elements(shown(world())).words


def test_the_culprits_come_first_also_where_they_are_many() -> None:
    """Two stay in storage and one waits for both."""
    result = world()
    [snapshot] = result.snapshots
    first, late, _ = snapshot.ranks
    ranks = (first, late, replace(late, rank=2))
    pages = (*result.operations[:2], replace(result.operations[1], rank=2))
    dumps = (*result.dumps[:2], replace(result.dumps[1], rank=2))
    snapshot = replace(snapshot, ranks=ranks)
    model = page_model(replace(result, snapshots=(snapshot,), operations=pages, dumps=dumps))
    found = [(row.ranks, row.blame) for row in rank_groups(model)]
    assert found == [((1, 2), "culprit"), ((0,), "waiting")]


def test_a_failure_without_a_diagnosis_marks_the_rank_that_failed() -> None:
    """Nobody waited for it, so nobody is a culprit; the reader still looks for somebody."""
    alone = replace(world(), operations=(), snapshots=(), dumps=(), progress_s=None)
    ended = tuple(history(raised("ValueError: no step 5")))
    model = page_model(replace(alone, history=ended, ending="settled"))
    assert model.judged.diagnosis is None
    assert rank_groups(model)[0].ranks == (2,)
    assert rank_groups(model)[0].blame == "culprit"


def test_stacks_are_shown_of_ranks_that_no_snapshot_has_seen() -> None:
    """They may be all that is known of a rank."""
    page = Elements(shown(replace(world(), snapshots=())))
    assert "storage.py:17" in page.words
    assert "main thread, 2 frames" in page.words


def test_an_exception_is_shown_whole_and_equal_ones_once() -> None:
    """As pytest represents it."""
    error = raised("ValueError: no step 5 in <b>/data</b>")
    page = Elements(shown(world(error=error)))
    assert page.words.count("ValueError: no step 5 in <b>/data</b>") >= 1
    assert ("h2", ("id",)) in page.elements


def test_native_frames_are_shown_with_their_class_of_ranks() -> None:
    """Where they were read: of one rank of each class."""
    result = world()
    [snapshot] = result.snapshots
    first, *others = snapshot.ranks
    native = (NativeThread(4000, ("gloo::wait", "gloo::allreduce")),)
    snapshot = replace(snapshot, ranks=(replace(first, native=native), *others))
    page = Elements(shown(replace(result, snapshots=(snapshot,))))
    assert "native frames of thread 4000 of rank 0" in page.words
    assert "gloo::wait\ngloo::allreduce" in page.words


def test_threads_with_equal_stacks_stand_once() -> None:
    """A pool has dozens that wait for work."""
    frames = (Frame(f"{ROOT}/pool.py", 5, "work"),)
    result = world()
    dump, *others = result.dumps
    pool = tuple(ThreadStack(f"pool-{n}", frames) for n in range(30))
    dumps = (replace(dump, threads=(*pool, *dump.threads)), *others)
    page = Elements(shown(replace(result, dumps=dumps)))
    assert "threads pool-0, pool-1, " in page.words
    assert page.words.count("pool.py:5") == 1


def test_a_rank_that_lost_another_one_is_in_no_operation_any_more() -> None:
    """Its last snapshot may be from before its exception; the table and the page say the latter."""
    judged = page_model(world()).judged
    waits = judged.finding.ranks[0]
    gave_up = replace(waits, outcome="collateral", at_s=STARTED_S + 2.0, summary="EOFError: lost")
    assert rank_state(waits, judged.result, None)[0] == "waiting"
    assert rank_state(gave_up, judged.result, None) == ("collateral", "EOFError: lost")


def test_a_remark_on_a_fault_is_on_the_page_with_and_without_a_diagnosis() -> None:
    """A diagnosis has it among its notes."""
    result, told = world(), {"index": 0, "phase": "begun", "fault": "delay", "note": "by turns"}
    noted = make_event(STARTED_S + 0.37, 1, "fault", told)
    events = sorted((*result.history, noted), key=lambda event: event.at_s)
    model = page_model(replace(result, history=tuple(events)))
    assert notes(model).count("by turns") == 1
    assert (
        notes(replace(model, judged=replace(model.judged, diagnosis=None))).count("by turns") == 1
    )


def test_ranks_that_printed_nothing_are_not_those_without_a_stack() -> None:
    """Each of the two sentences names its own ranks."""
    first, *others = world().dumps
    logs = [LogExcerpt(f"rank-{rank}.log", "said\n" if rank == 1 else "") for rank in range(3)]
    page = shown(replace(world(), dumps=(replace(first, threads=()), *others)), logs=logs)
    assert "<li>rank 0 gave no stack: " in page
    assert "ranks 0,2 printed nothing." in page


def test_of_too_much_the_rest_is_counted() -> None:
    """Classes of stacks, threads and files; all of them are in the folder."""
    model = page_model(world())
    frames = (Frame(f"{ROOT}/restore.py", 88, "restore"),)
    main = ThreadStack("MainThread", frames)
    pool = [ThreadStack(f"t{n}", (Frame(f"{ROOT}/pool.py", n, "work"),)) for n in range(30)]
    first = replace(model.judged.result.dumps[0], threads=(*pool, main))
    dumps = (first, *(make_dump(rank, f"{ROOT}/a.py:{rank} f") for rank in range(1, 20)))
    result = replace(model.judged.result, dumps=dumps)
    many = replace(model, judged=replace(model.judged, result=result))
    many = replace(many, files=[f"rank-{rank}.log" for rank in range(30)])
    page = Elements(attempt_page(many))
    assert "and 30 other threads of rank 0" in page.words
    assert "and 6 more stacks in facts.json" in page.words
    assert "and 4 more in facts.json" in page.words
    assert "30 logs and stacks of the ranks" in page.words


def test_the_line_that_runs_it_again_can_be_pasted_into_a_shell() -> None:
    """Whatever the test's id holds."""
    page = Elements(shown(world("it's; rm -rf *"))).words
    assert """pytest 'test_it.py::test[it'"'"'s; rm -rf *]' --multihost-replay""" in page


def test_the_source_around_the_culprit_marks_its_line() -> None:
    """One line of them."""
    page = shown(world(), source_lines=[(16, "def read():"), (17, "    time.sleep(600)")])
    assert re.findall(r'<span class="here"><i>(\d+)</i>', page) == ["17"]


# Nothing of a test's gets out of hand


@pytest.mark.parametrize("word", HOSTILE)
def test_no_word_of_a_test_becomes_an_element(word: str) -> None:
    """Its names, paths, lines, logs, notes and exceptions leave the page's structure alone."""

    def page(word: str) -> Elements:
        error = raised(f"ValueError: {word}", file=f"{word}.py", line=3)
        logs = tuple(LogExcerpt(f"rank-{rank}.log", f"{word} {rank}") for rank in range(3))
        model = world(word, error=error)
        return Elements(
            shown(model, word, logs=logs, source_lines=[(17, word)], files=[f"{word}.log"])
        )

    assert page(word).elements == page("harmless").elements


@pytest.mark.parametrize("word", HOSTILE)
def test_no_word_of_a_test_ends_the_data(word: str) -> None:
    """The script reads what was meant."""
    page = f'<script type="application/json" id="data">{script_json([word])}</script>'
    assert page.count("<") == 2
    assert json.loads(Elements(page).scripts["application/json"]) == [word]


def test_escape_sequences_are_gone_and_control_characters_are_seen() -> None:
    """No terminal reads the page, and no letter changes the order of the others."""
    assert (
        display_text("\x1b[1;32mgreen\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x1bM.")
        == "green link ."
    )
    assert display_text("bell\x07 turn\u202e") == "bell\u2407 turn\\u202e"
    assert display_text("tab\tline\nend") == "tab\tline\nend"


def test_what_is_escaped_once_is_not_escaped_again() -> None:
    """Text passes through macros and blocks on its way."""
    page = shown(world('a & "b"'))
    assert "a &amp; &#34;b&#34;" in page
    assert "&amp;amp;" not in page
    assert "&amp;#34;" not in page


def test_a_page_loads_nothing_and_runs_its_own_script_alone() -> None:
    """It works from disk, without a network, and says so to the browser."""
    page = Elements(shown(world(), files=["verdict.json", "rank-0.log"]))
    links = [value for name, value in page.values if name in ("href", "src")]
    assert [link for link in links if re.match(r"\w+:|//", link)] == ["data:,"]
    [policy] = [
        value for name, value in page.values if name == "content" and "default-src" in value
    ]
    assert "default-src 'none'" in policy
    for text in (page.scripts["script"], page.style):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy


# Logs


def test_of_a_progress_bar_the_last_state_is_shown() -> None:
    """As in a terminal in the end."""
    assert as_shown("10%\r50%\r100%\ndone\r\n\x1b[2Kx\r") == "100%\ndone\nx"


def test_a_long_line_without_an_end_takes_no_time() -> None:
    """Half a megabyte: anything quadratic would not come back."""
    assert len(as_shown("x" * 500_000)) == 500_000


def test_a_big_log_is_cut_with_a_note_and_equal_logs_stand_once(tmp_path: Path) -> None:
    """Both ends are shown, and where the rest is."""
    model = folder(tmp_path, page_model(world()))
    for rank in range(3):
        text = "head\n" + "x" * 100_000 + "\ntail\n" if rank == 1 else "same\n"
        (tmp_path / f"rank-{rank}.log").write_text(text)
    page = Elements(write_page(tmp_path, model).read_text())
    assert "head\n" in page.words
    assert "tail\n" in page.words
    assert re.search(r"\d+ bytes left out; all of it: rank-1.log", page.words)
    assert page.words.count("same\n") == 1
    assert len(page.words) < 60_000


def test_a_log_that_is_no_text_is_shown(tmp_path: Path) -> None:
    """A runtime may print anything."""
    model = folder(tmp_path, page_model(world()))
    (tmp_path / "rank-0.log").write_bytes(b"\xff\xfe\x00 <b>")
    assert "\\xff\\xfe\u2400 &lt;b&gt;" in write_page(tmp_path, model).read_text()


# The source around the culprit


def folder(path: Path, model: PageModel) -> PageModel:
    """Make a file of the culprit's, and return the page of a world that lives beside it."""
    source = (
        "import time\n\n\ndef other():\n    pass\n\n\ndef read():\n    time.sleep(600)\n\n\nx = 1\n"
    )
    (path / "storage.py").write_text(source)
    assert model.judged.diagnosis is not None
    where = RankPlace(1, "storage.py", 9, "read", "time.sleep(600)")
    context = SourceContext(str(path), model.judged.context.source_of)
    diagnosis = replace(model.judged.diagnosis, where=where)
    return replace(model, judged=replace(model.judged, diagnosis=diagnosis, context=context))


def test_the_excerpt_ends_with_its_function(tmp_path: Path) -> None:
    """The lines of another one are no help."""
    page = write_page(tmp_path, folder(tmp_path, page_model(world()))).read_text()
    assert re.findall(r"<i>(\d+)</i>", page) == ["8", "9"]


def test_a_file_that_has_changed_since_gives_no_excerpt(tmp_path: Path) -> None:
    """Other lines beside the verdict's would mislead."""
    model = folder(tmp_path, page_model(world()))
    (tmp_path / "storage.py").write_text("# new\n" * 20)
    assert "<i>" not in write_page(tmp_path, model).read_text()


# The lanes


def test_every_operation_is_on_the_lane_of_its_rank() -> None:
    """Eight numbers each; an open one has no length."""
    data = lane_data(shown(world()))
    assert [len(each) // 8 for each in data["operations"]] == [2, 1, 2]
    kind, sequence, begin, length, *_ = data["operations"][2][8:]
    assert (data["kinds"][kind]["name"], sequence, begin, length) == ("all_word", 2, 420_000, -1)


def test_the_lanes_know_who_waits_for_whom_and_since_when_nothing_moves() -> None:
    """What the arrows and the dotted lines are drawn from."""
    data = lane_data(shown(world()))
    assert [(rank, ranks) for rank, ranks, _ in data["waits"]] == [(0, [1]), (2, [1])]
    assert (data["progress"], data["judged"], data["end"]) == (420_000, 2_600_000, 2_600_000)
    assert [each["role"] for each in data["ranks"]] == ["waiting", "culprit", "waiting"]


def test_faults_and_sync_points_are_marked() -> None:
    """When, and on whose lane."""
    data = lane_data(shown(world()))
    assert [350_000, 1, "point", "sync point before"] in data["marks"]
    assert [each[:4] for each in data["faults"]] == [[1, 360_000, -1, "delay"]]


def test_of_too_many_operations_the_last_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """And that there were more is said."""
    monkeypatch.setattr(timelines, "MAX_OPERATIONS", 3)
    page = shown(world())
    data = lane_data(page)
    assert [each[1] for each in data["operations"]] == [2, 1, 2]
    assert data["left_out"] == 2
    assert "2 earlier operations are not drawn" in page


def covers(found: list[AxisSpan], end: float) -> bool:
    """Whether stretches cover all of the time and all of the width, in order."""
    ends = [(0.0, 0.0), *((each.end, each.right) for each in found)]
    begins = [*((each.begin, each.left) for each in found), (end, 1.0)]
    return all(one == pytest.approx(other) for one, other in zip(ends, begins, strict=True))


def test_a_long_silence_is_short_on_the_axis() -> None:
    """A second of work before a minute of silence has most of the width."""
    found = axis([each / 10 for each in range(11)], end=60.0)
    assert [each.is_silence for each in found] == [False, True]
    assert found[0].right > 0.5
    assert covers(found, 60.0)


@pytest.mark.parametrize("moments", [[], [0.5, 1.0, 1.5], [0.1 * each for each in range(12)]])
def test_where_things_happen_all_along_the_axis_is_to_scale(moments: list[float]) -> None:
    """Nothing is shortened that can be read as it is; nothing at all where nothing happened."""
    found = axis(moments, end=2.0)
    assert [each.is_silence for each in found] == [False]
    assert covers(found, 2.0)


def test_silences_between_are_shortened_too() -> None:
    """Start-up, a slow step, the hang."""
    moments = [*(10 + each / 10 for each in range(10)), *(30 + each / 10 for each in range(10))]
    found = axis(moments, end=90.0)
    assert sum(each.is_silence for each in found) == 3
    assert covers(found, 90.0)


def test_a_world_of_no_length_has_an_axis() -> None:
    """It ended as it began."""
    assert axis([], end=0.0) == []


# The page of a run


def verdict_line(nodeid: str, status: str, outcome: str, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a line of verdicts.jsonl, as far as the page reads it."""
    line = {
        "nodeid": nodeid,
        "status": status,
        "outcome": outcome,
        "dir": nodeid,
        "attempt": 1,
        "worker": None,
        "world_size": 4,
        "backend": "gloo",
        "duration_s": 1.5,
        "environment": {"python": "3.11.7", "jax": None},
        "diagnosis": None,
        "reason": None,
        "rank_results": [{"rank": 0, "outcome": outcome, "error": None}],
    }
    return {**line, **changes}


def test_a_run_lists_all_tests_the_hung_ones_first() -> None:
    """Those with a page of their own have a link to it."""
    hung = {"kind": "straggler", "summary": "rank 0 <never> came"}
    verdicts = [
        verdict_line("passes", "passed", "passed"),
        verdict_line("expected", "passed", "hung", diagnosis=hung),
        verdict_line("hangs", "failed", "hung", diagnosis=hung),
        verdict_line("fails", "failed", "failed", attempt=2),
    ]
    page = run_page("2026-run", verdicts, {"hangs", "expected"})
    assert re.findall(r"<code>(\w+)</code>", page) == ["hangs", "fails", "passes", "expected"]
    assert re.findall(r'href="(\w+)/report.html"', page) == ["hangs", "expected"]
    assert "1 hung, 1 failed, 2 passed" in page
    assert "rank 0 &lt;never&gt; came" in page
    assert "attempt 2" in page


def test_a_row_of_a_run_has_the_exception_of_the_rank_that_failed_by_itself() -> None:
    """Another rank has only lost it: its connection error says nothing about the test."""
    error = {"type": "ValueError", "message": "no\nmore"}
    lost = {"type": "RuntimeError", "message": "Connection closed by peer"}
    ranks = [
        {"rank": 0, "outcome": "collateral", "error": lost},
        {"rank": 1, "outcome": "failed", "error": error},
    ]
    page = run_page("2026-run", [verdict_line("fails", "failed", "failed", rank_results=ranks)], ())
    assert "<p>rank 1: ValueError: no</p>" in page
    assert "Connection closed" not in page


def test_a_run_without_a_world_has_a_page(tmp_path: Path) -> None:
    """It may have been killed before the first one ended."""
    (tmp_path / "verdicts.jsonl").touch()
    assert "No test ran" in write_index(tmp_path).read_text()


# What extensions show


def test_an_extension_shows_a_section_and_its_files() -> None:
    """With a link at the top, and what each file is."""
    about = {"sums.csv": "all sums"}
    section = PageSection("sums", "Sums & more", Markup("<p>of it</p>"))
    model = page_model(world(), files=["sums.csv", "other.csv"])
    renderer = Renderer(name="sums.csv", files=about, section=lambda _: section)
    page = attempt_page(model, renderers=[renderer, Renderer(name="silent")])
    assert '<a href="#sums">Sums &amp; more</a>' in page
    assert '<h2 id="sums">Sums &amp; more</h2>\n<p>of it</p>' in page
    assert '<a href="sums.csv">sums.csv</a> <span class="quiet">all sums</span>' in page
    assert "all sums" not in attempt_page(model)


def test_an_extension_shows_a_part_of_a_row() -> None:
    """Links to files of the attempt, and what follows."""
    part = RowPart((("sums & more", "sums.csv"),), Markup("<p>of it</p>"))
    verdicts = [verdict_line("sums", "passed", "passed"), verdict_line("none", "passed", "passed")]
    page = run_page("2026-run", verdicts, (), [[part], [RowPart()]])
    assert '<a href="sums/sums.csv">sums &amp; more</a>' in page
    assert page.count("<p>of it</p>") == 1
    assert 'href="none/' not in page


def test_the_page_of_a_further_world_leads_to_what_its_extension_says(tmp_path: Path) -> None:
    """Its folder is in that of the test's own attempt."""
    attempt = tmp_path / "run" / "attempt"
    further = attempt / "further-1"
    further.mkdir(parents=True)
    (tmp_path / "run" / "verdicts.jsonl").touch()
    model, renderers = page_model(world()), [Renderer(name="all", overview=("All", "all.html"))]
    assert 'href="../report.html"' in write_page(attempt, model, renderers).read_text()
    assert 'href="../all.html">All<' in write_page(further, model, renderers).read_text()


@pytest.mark.parametrize(
    ("path", "link"),
    [
        ("test_a.py-1", "test_a.py-1"),
        ("run/attempt", "run/attempt"),
        ("https:/evil.example/login", "https%3A/evil.example/login"),
        ("javascript:alert(1)", "javascript%3Aalert%281%29"),
        ("//evil.example", "#"),
        ("../../other", "#"),
        ("a/../b", "#"),
        ("", "#"),
        ("a b?c#d", "a%20b%3Fc%23d"),
        ("\udcff", "%3F"),
    ],
)
def test_a_link_stays_inside_its_folder(path: str, link: str) -> None:
    """Whatever the artifacts name, a click leads to a file beside the page or nowhere."""
    assert inside(path) == link
