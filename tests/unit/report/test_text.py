"""The text that a user reads, compared letter by letter with tests/golden/*.txt.

`python tests/unit/report/test_text.py` writes them anew. Then read them as a stranger would.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import pytest
from builders import run_script

import pytest_multihost
from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.report.layout import (
    COLOURS,
    Line,
    Role,
    Section,
    Span,
    clip_line,
    text_of,
)
from pytest_multihost.core.report.text import page_sections
from pytest_multihost.testing import (
    CALLEE_SCOPE,
    RUNTIME_SCOPE,
    Activity,
    Dump,
    Frame,
    Operation,
    Operations,
    Parting,
    RankPlace,
    RankSnapshot,
    Scope,
    ServiceRecord,
    Side,
    SourceContext,
    Step,
    Subject,
    WorldSnapshot,
    exited,
    make_dump,
    make_spec,
    raised,
    report,
    well_behaved,
)

GOLDEN = Path(__file__).parents[2] / "golden"
ROOT = "/home/u/project"
FILES = (
    ".pytest_multihost/2026-11-21T00-00-00Z-4711/test_ckpt.py-test_restore-4-gloo-1f3a-1"
    "/report.html"
)
SITE = "/opt/venv/lib/python3.11/site-packages"
OURS = str(Path(pytest_multihost.__file__).parent)
RUNNING = (  # what runs the test in every rank, innermost first
    f"{SITE}/_pytest/python.py:187 pytest_pyfunc_call",
    f"{SITE}/pluggy/_callers.py:121 _multicall",
    f"{SITE}/_pytest/runner.py:130 runtestprotocol",
    f"{OURS}/core/rank/agent.py:150 pytest_runtest_protocol",
    f"{SITE}/pluggy/_callers.py:121 _multicall",
)
FORKED = (  # how the rank came into being: the stack of the controller it was forked from
    f"{OURS}/core/rank/agent.py:80 run_rank",
    f"{OURS}/core/launch/server/serve.py:70 serve",
    f"{OURS}/core/pytest_plugin/entry.py:60 pytest_collection_finish",
    f"{SITE}/pluggy/_callers.py:121 _multicall",
    f"{SITE}/_pytest/main.py:350 _main",
)
BY_MODULE = ("<frozen runpy>:198 _run_module_as_main",)  # python -m pytest
BY_SCRIPT = ("/opt/venv/bin/pytest:8 <module>",)  # pytest
TORCH = f"{SITE}/torch/distributed"
LOST = (
    "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]"
)
GONE = "service is gone"
SYMPTOMS = Symptoms((r"transport/tcp/\S+ Connection closed by peer",), (GONE,))

Stacks = dict[int, Sequence[str]]


def judged(
    script: Sequence[Step],
    stacks: Stacks,
    caller: Sequence[str] = BY_MODULE,
    *,
    size: int = 4,
    leftovers: tuple[str, ...] = (),
    operations: Sequence[Operations] = (),
    partings: tuple[Parting, ...] = (),
    subject: Subject = "test",
    **of_result: Any,  # noqa: ANN401 - other fields of the result
) -> Judgement:
    """Run and judge a world."""

    def dumper(_: object, ranks: Sequence[int], *__: object) -> tuple[Dump, ...]:
        taken = [
            make_dump(rank, *stacks[rank], *FORKED, *caller) for rank in ranks if rank in stacks
        ]
        silent = [Dump(rank, "scripted", ()) for rank in ranks if rank not in stacks]
        return (*taken, *silent)

    spec = replace(make_spec(size), subject=subject)
    result = replace(run_script(script, spec, dumper=dumper), leftovers=leftovers, **of_result)
    if operations:
        look = WorldSnapshot(at_s=result.ended_s, reason="end", ranks=tuple(map(_seen, operations)))
        result = replace(result, operations=tuple(operations), snapshots=(look,), partings=partings)
    context = SourceContext(ROOT, _source_of)
    return judge_world(result, SYMPTOMS, context)


def sections(judged: Judgement, columns: int | None = 160) -> list[Section]:
    """Return what is shown of a world."""
    return page_sections(judged, files=FILES, columns=columns)


def story(*world: Any, width: int | None = 160, **more: Any) -> str:  # noqa: ANN401 - as `judged`
    """Return what is shown of a world, one section below the other."""
    return page_of(judged(*world, **more), width)


def page_of(found: Judgement, width: int | None = 160) -> str:
    """Return what is shown of a judged world."""
    parts = [f"{found.finding.outcome}: {found.finding.reason}"]
    for part in sections(found, width):
        parts += [f"--- {part.title} ---", part.text]
    return "\n".join(parts) + "\n"


def _source_of(file: str, line: int) -> str:
    return SOURCES.get((file.rpartition("/")[2], line), "")


def _seen(operations: Operations) -> RankSnapshot:
    sleeps = Activity("sleep", ends_in_s=600.0)
    return RankSnapshot(
        rank=operations.rank,
        label="BLOCKED" if operations.open else "SLEEPING",
        activity=None if operations.open else sleeps,
        operations=operations.open,
        entered=tuple(operations.entered.items()),
    )


def at(rank: int, after_s: float, kind: Any, detail: dict[str, Any] | None = None) -> Step:  # noqa: ANN401
    """Return what a rank does so long after all were ready."""
    return Step(rank, kind, detail or {}, after_s=after_s, on="go")


def fails(rank: int, after_s: float, text: str, line: int) -> list[Step]:
    """Return a rank that raises, and parks."""
    error = raised(text, file="test_ckpt.py", line=line)
    shown = (
        f"    def test_restore(world):\n>       restore(5)\nE       {text}\n\ntest_ckpt.py:{line}"
    )
    failed = report("call", "failed", error={**error, "text": shown})
    return [
        *well_behaved(rank, stays_in="call"),
        at(rank, after_s, "report", failed),
        at(rank, after_s, "parked"),
    ]


READS = (f"{ROOT}/storage.py:17 read_shard", f"{ROOT}/restore.py:80 restore")
BROADCASTS = (
    f"{TORCH}/distributed_c10d.py:2822 broadcast",
    f"{TORCH}/c10d_logger.py:83 wrapper",
    f"{ROOT}/restore.py:88 restore",
)
TEST = (f"{ROOT}/test_ckpt.py:31 test_restore", *RUNNING)

HANG = (
    [step for rank in range(4) for step in well_behaved(rank, stays_in="call")],
    {0: (*READS, *TEST), **dict.fromkeys((1, 2, 3), (*BROADCASTS, *TEST))},
)
CRASH = (
    [
        *[step for rank in range(4) for step in well_behaved(rank, stays_in="call")],
        at(2, 1.25, "exited", exited(signal=9)),
    ],
    dict.fromkeys((0, 1), (*BROADCASTS, *TEST)),
)
FAILURE = (
    [
        *fails(0, 0.5, LOST, 34),
        *fails(1, 0.25, "ValueError: no step 5 in /data/ckpt", 31),
        *fails(2, 0.375, "AssertionError: assert 3 == 4", 35),
        *well_behaved(3, stays_in="call"),
    ],
    {3: (*BROADCASTS, *TEST)},
)
CONNECTS = f"{TORCH}/rendezvous.py:200 rendezvous"
STARTUP = (
    [
        *[step for rank in (0, 1, 2) for step in well_behaved(rank)[:3]],
        *well_behaved(3, stays_in="startup"),
    ],
    {
        **dict.fromkeys((0, 1, 2), (f"{OURS}/core/launch/wire.py:140 receive",)),
        3: (CONNECTS, f"{OURS}/backends/gloo.py:30 _start"),
    },
)
STORIES: dict[str, tuple[list[Step], Stacks]] = {"hang": HANG, "crash": CRASH, "failure": FAILURE}
SOURCES = {
    ("storage.py", 17): "time.sleep(600)",
    ("restore.py", 88): "dist.broadcast(x, src=0)",
    ("test_ckpt.py", 31): "restore(5)",
}


def entered(rank: int, sequence: int, *, is_over: bool) -> Operations:
    """Return a slot page with one broadcast of the world group."""
    began_s = 1000.0 + sequence
    operation = builders.operation(
        "broadcast",
        group=(0, 1, 2, 3),
        sequence=sequence,
        since_s=began_s,
        ended_s=began_s if is_over else None,
    )
    return builders.page(rank, operation)


LATE = (entered(0, 2, is_over=True), *(entered(rank, 3, is_over=False) for rank in (1, 2, 3)))


def test_a_hang_with_recorded_operations_names_the_rank_that_is_late() -> None:
    """The page that everything else is for, letter by letter."""
    shown = story(*HANG, operations=LATE)
    assert shown == (GOLDEN / "straggler.txt").read_text(encoding="utf-8")


def collective(name: str, sequence: int, line: int) -> Operation:
    """Return a collective that a rank waits in."""
    frame = Frame(f"{ROOT}/restore.py", line, "evaluate" if line == 40 else "restore")
    times = {"since_s": 1000.0 + sequence, "waited_s": 1000.0 + sequence}
    return Operation(
        name=name, kind="collective", group=(0, 1, 2, 3), sequence=sequence, frame=frame, **times
    )


def parted() -> Judgement:
    """Return a world in which rank 1 went astray, and went on after that."""
    first = collective("all_gather", 57, 40), collective("broadcast", 57, 88)
    last = [collective(name, 59, 88) for name in ("broadcast", "all_gather", "barrier", "barrier")]
    parting = Parting(
        group=((0, 1, 2, 3), 0, RUNTIME_SCOPE),
        common=56,
        evidence="operations",
        at_s=1057.0,
        sides=(
            Side((1,), first[0], first[0].frame, count=1),
            Side((0, 2, 3), first[1], first[1].frame, count=57),
        ),
    )
    pages = [Operations(rank, (each,), {each.group_key: 59}) for rank, each in enumerate(last)]
    places = {1: (f"{ROOT}/restore.py:40 evaluate", *TEST)}
    stacks = dict.fromkeys(range(4), (*BROADCASTS, *TEST)) | places
    return judged(HANG[0], stacks, operations=pages, partings=(parting,))


def test_the_first_divergence_is_the_second_block_of_the_page() -> None:
    """What the ranks hang in at the end names rank 0 as well; where they parted does not."""
    assert page_of(parted()) == (GOLDEN / "divergence.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STORIES)
def test_a_story_is_told_as_agreed(name: str) -> None:
    """Who, where, when and what, the rank that decided first."""
    assert story(*STORIES[name]) == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", STORIES)
@pytest.mark.parametrize("caller", [BY_SCRIPT, ("/home/u/project/run_tests.py:3 main",)])
def test_a_story_is_the_same_whoever_called_pytest(name: str, caller: Sequence[str]) -> None:
    """What is further out than the test is the same in every rank, and none of the test's."""
    assert story(*STORIES[name], caller) == story(*STORIES[name])


@pytest.mark.parametrize("caller", [BY_MODULE, BY_SCRIPT])
def test_a_rank_that_does_not_get_ready_shows_where_it_is(caller: Sequence[str]) -> None:
    """There is no code of the user's on its stack, so the innermost frames tell."""
    shown = story(*STARTUP, caller)
    assert "_start → rendezvous  torch/distributed/rendezvous.py:200" in shown
    assert "pytest_multihost/core/launch/wire.py:140" in shown
    assert "pytest_collection_finish" not in shown  # of the controller that was forked


def test_a_rank_in_our_own_barrier_shows_who_called_it() -> None:
    """Our frames are a library's: the user's line names the operation."""
    waits = (f"{OURS}/core/launch/wire.py:140 receive", f"{OURS}/rank/world.py:83 barrier")
    shown = story(HANG[0], dict.fromkeys(range(4), (*waits, *TEST)))
    assert "all 4  test_restore  test_ckpt.py:31  » restore(5)" in shown
    assert "world.py" not in shown


def test_of_a_deep_stack_both_ends_are_shown() -> None:
    """Where the rank is, and what it came from; what is between is in the verdict."""
    deep = [f"{ROOT}/walk.py:{line} walk" for line in range(100, 200)]
    shown = story(HANG[0], dict.fromkeys(range(4), (*deep, *TEST)))
    assert "all 4  test_restore → … → walk  walk.py:100" in shown


def lines_of(rank: str, shown: str) -> list[str]:
    """Return the lines of the table that begin with a rank's name."""
    return [line for line in shown.splitlines() if line.strip("► ").startswith(rank + "  ")]


def test_a_rank_that_passed_is_told_in_a_word() -> None:
    """It stands in the table so that all ranks are accounted for."""
    leaves = [Step(0, "done", on="teardown"), Step(0, "exited", exited(), on="exit")]
    others = [step for rank in (1, 2, 3) for step in well_behaved(rank)]
    shown = story([*fails(0, 1.0, "ValueError: boom", 31), *leaves, *others], {})
    assert lines_of("ranks 1-3", shown) == ["    ranks 1-3  passed"]
    assert lines_of("rank 0", shown) == [
        "  ► rank 0     failed +1.00 s  ValueError: boom  test_ckpt.py:31"
    ]


def test_an_error_without_a_place_is_told_without() -> None:
    """It may have been raised outside of the user's code."""
    error = report("call", "failed", error=raised("ValueError: boom"))
    entered = well_behaved(0, stays_in="call")
    leaves = [Step(0, "done", on="teardown"), Step(0, "exited", exited(), on="exit")]
    script = [*entered, at(0, 1.0, "report", error), at(0, 1.0, "parked"), *leaves]
    [line] = lines_of("rank 0", story(script, {}, size=1))
    assert line == "  ► rank 0  failed +1.00 s  ValueError: boom"


def test_a_world_of_one_is_told_in_the_singular() -> None:
    """Numbers and words agree."""
    shown = story(well_behaved(0, stays_in="call"), {0: (*BROADCASTS, *TEST)}, size=1)
    assert "world of 1 rank, none" in shown
    assert "[0]  test_restore → restore  restore.py:88" in shown


def test_a_rank_that_hangs_in_its_teardown_shows_where() -> None:
    """It has left the test body, but it is the one that does not end."""
    tears = (f"{ROOT}/conftest.py:12 close", *RUNNING)
    script = [*well_behaved(0, stays_in="teardown"), *well_behaved(1)]
    shown = story(script, {0: tears, 1: tears}, size=2)
    assert "[0]  close  conftest.py:12\n" in shown


def test_what_a_service_has_done_is_on_the_page() -> None:
    """Its first line, and three more at most."""
    found = judged(*HANG)
    lines = ("jumped 600.0 s", *(f"real time for reason {each}" for each in range(5)))
    result = replace(found.result, records={"clock": ServiceRecord({}, lines)})
    shown = page_of(replace(found, result=result)).splitlines()
    first = next(line for line in shown if line.lstrip().startswith("clock"))
    assert first.endswith("jumped 600.0 s")
    reasons = [line.strip() for line in shown if "real time for" in line]
    assert reasons == [f"real time for reason {each}" for each in range(3)]
    assert not any(line.lstrip().startswith("clock") for line in page_of(found).splitlines())


def test_what_ranks_left_behind_is_told() -> None:
    """Each process by its command line, however long that is."""
    left = ("sleep 600", "python -c " + "x" * 500)
    shown = story(*HANG, leftovers=left).splitlines()
    first, second = (line for line in shown if "had left running" in line)
    assert first == "  ended 1 process that ranks had left running: sleep 600"
    assert second.endswith("x…")
    assert len(second) == 160


def scattered(size: int) -> str:
    """Return the page of a world that hangs, every rank in a place of its own, in 80 columns."""
    stacks = {
        rank: (f"{ROOT}/a_package/of_long_names/part_{rank}.py:{rank + 1} wait_for_others", *TEST)
        for rank in range(size)
    }
    script = [step for rank in range(size) for step in well_behaved(rank, stays_in="call")]
    return story(script, stacks, size=size, width=80)


@pytest.mark.parametrize("size", [4, 16, 64])
def test_a_page_has_at_most_thirty_lines(size: int) -> None:
    """However many ranks there are, and however little they have in common."""
    lines = scattered(size).splitlines()
    assert len(lines) <= 30
    assert (size > 8) == any("more groups of ranks in verdict.json" in line for line in lines)


@pytest.mark.parametrize("operations", [LATE, ()], ids=["told", "untold"])
def test_in_80_columns_only_a_path_is_longer(operations: Sequence[Operations]) -> None:
    """Places in the code are there as well."""
    shown = story(*HANG, operations=operations, width=80)
    assert [line for line in shown.splitlines()[1:] if len(line) > 80 and "files" not in line] == []
    assert shown.count("storage.py:17") == 2
    assert "ranks 1-3" in shown


def test_what_happened_is_cut_before_where_it_happened() -> None:
    """The place is what one looks up."""
    text = "ValueError: " + "no step 5 " * 30
    script = [*fails(0, 0.5, text, 31), *well_behaved(1)]
    [line] = [each for each in story(script, {}, size=2, width=80).splitlines() if "►" in each]
    assert line.endswith("…  test_ckpt.py:31")
    assert len(line) <= 80


def test_without_a_terminal_nothing_is_cut() -> None:
    """A reader of CI's log cannot widen it."""
    text = "ValueError: " + "no step 5 " * 20
    script = [*fails(0, 0.5, text, 31), *well_behaved(1)]
    shown = story(script, {}, size=2, width=None)
    [line] = [each for each in shown.splitlines() if "►" in each]
    assert text.strip() in line
    assert "…" not in shown


FIXTURE = (
    f"{ROOT}/conftest.py:9 checkpoint",
    f"{SITE}/_pytest/fixtures.py:930 call_fixture_func",
    f"{SITE}/_pytest/fixtures.py:530 getfixturevalue",
)
COMPARING = (f"{SITE}/_pytest/assertion/util.py:300 _compare_eq_sequence",)


@pytest.mark.parametrize("innermost", [FIXTURE, COMPARING], ids=["fixture", "assertion"])
def test_the_test_is_shown_where_it_has_called_pytest_itself(innermost: Sequence[str]) -> None:
    """It asks for a fixture by name, or pytest compares what it asserts to be equal."""
    shown = story(HANG[0], dict.fromkeys(range(4), (*innermost, *TEST)))
    assert "all 4  test_restore" in shown


def waiting_at(rank: int, name: str, line: int) -> Operations:
    """Return the slot page of a rank that has called its third collective in this line."""
    page = entered(rank, 3, is_over=False)
    frame = Frame(f"{ROOT}/restore.py", line, "restore")
    group, thread = tuple(range(2)), rank + 7
    operation = replace(page.open[0], name=name, group=group, frame=frame, thread=thread)
    return Operations(rank, (operation,), {operation.group_key: 3})


def test_without_a_culprit_every_side_has_its_line() -> None:
    """That of its operation, though its main thread is elsewhere."""
    sides = (waiting_at(0, "broadcast", 88), waiting_at(1, "barrier", 90))
    found = judged(*HANG, size=2, operations=sides)
    assert found.diagnosis is not None
    assert (found.diagnosis.kind, found.diagnosis.where) == ("mismatch", None)
    assert found.diagnosis.places == (
        RankPlace(0, "restore.py", 88, "restore", "dist.broadcast(x, src=0)"),
        RankPlace(1, "restore.py", 90, "restore", ""),
    )
    [row] = lines_of("rank 0", sections(found)[0].text)
    assert row.endswith("restore.py:88 restore")


@pytest.mark.parametrize(
    ("last_words", "said"),
    [
        pytest.param({1: GONE}, "the runtime has ended a rank because of it; found", id="ended"),
        pytest.param({}, "a rank died; found", id="dead for another reason"),
    ],
)
def test_who_waited_too_long_is_not_said_to_have_raised_if_its_runtime_has_ended_it(
    last_words: Mapping[int, str], said: str
) -> None:
    """The rank that it waited for is late."""
    stays = [step for rank in range(2) for step in well_behaved(rank, stays_in="call")]
    script = [*stays, at(1, 1.0, "exited", exited(signal=6))]
    inside = waiting_at(1, "barrier", 90)
    late = Operations(0, (), {})
    found = {"operations": (late, inside), "last_words": last_words}
    assert f"  {said}" in story(script, {0: (*READS, *TEST)}, size=2, **found)


def test_a_world_that_its_runtime_has_ended_is_told_by_the_way_it_ended() -> None:
    """If no rank is to blame: it has lost a service that is none of its ranks."""
    stays = [step for rank in range(2) for step in well_behaved(rank, stays_in="call")]
    script = [*stays, *(at(rank, 1.0, "exited", exited(signal=6)) for rank in range(2))]
    shown = story(script, {}, size=2, last_words=dict.fromkeys(range(2), GONE))
    assert "crashed: ranks 0,1: was killed by SIGABRT in the test\n" in shown
    assert "\n  a rank died; found" in shown


def test_a_rank_that_has_died_has_the_line_of_its_operation() -> None:
    """No dump shows where it was."""
    stays = [step for rank in range(2) for step in well_behaved(rank, stays_in="call")]
    script = [*stays, at(1, 1.0, "exited", exited(signal=6))]
    sides = (waiting_at(0, "barrier", 88), waiting_at(1, "barrier", 90))
    shown = story(script, {0: (*BROADCASTS, *TEST)}, size=2, operations=sides)
    [row] = lines_of("rank 1", shown)
    assert row.endswith("was killed by SIGABRT in the test  restore.py:90 restore")


def test_a_function_called_by_another_rank_is_shown_and_not_the_shutdown_beside_it() -> None:
    """Row, stack and line are of the thread that runs it."""
    call = builders.operation(
        "rpc_sync(load)",
        kind="transfer",
        group=(0, 1),
        scope=Scope("rpc", "0"),
        peer=1,
        since_s=1001.0,
        frame=Frame(f"{ROOT}/restore.py", 90, "restore"),
    )
    shutdown = replace(
        call, name="rpc.shutdown", kind="collective", scope=Scope("rpc"), peer=None, thread=2
    )
    runs = replace(
        call, name="run", kind="wait", scope=CALLEE_SCOPE, detail="load", waited_s=None, thread=3
    )
    pages = [Operations(0, (call,)), Operations(1, (shutdown, runs))]
    found = judged(*HANG, size=2, operations=pages)
    internal = f"{TORCH}/rpc/internal.py:212 _run_function"
    [serving] = make_dump(1, f"{ROOT}/restore.py:88 load", internal).threads
    first, second = found.result.dumps
    dumps = (first, replace(second, threads=(serving, *second.threads)))
    found = judge_world(replace(found.result, dumps=dumps), SYMPTOMS, found.context)
    assert found.diagnosis is not None
    assert found.diagnosis.where == RankPlace(
        1, "restore.py", 88, "load", "dist.broadcast(x, src=0)"
    )
    shown = sections(found)[0].text
    row = next(line for line in shown.splitlines() if "rank 1  " in line)
    assert "serving  runs load" in row
    assert row.endswith("restore.py:88 load")
    stacks = [line for line in shown.splitlines() if "[1]" in line]
    assert ["dist.broadcast(x, src=0)" in line for line in stacks] == [True]
    assert "shutdown" not in shown


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([at(0, 1.0, "parked")], "rank 0 returned from the test"),
        ([at(0, 1.0, "exited", exited(signal=9))], "rank 0 was killed by SIGKILL in the test"),
    ],
)
def test_who_has_left_is_told_with_the_line_at_which_the_others_wait(
    script: list[Step], told: str
) -> None:
    """It has no line itself."""
    both = [step for rank in range(2) for step in well_behaved(rank, stays_in="call")]
    page = Operations(0), waiting_at(1, "broadcast", 88)
    diagnosis = judged([*both, *script], {}, size=2, operations=page).diagnosis
    assert diagnosis is not None
    waits = "rank 1 waits for it in broadcast #3 (world group) at restore.py:88"
    assert diagnosis.summary == f"{told}; {waits}"


LEFT = [at(0, 1.0, "parked")]
KILLED = [at(0, 1.0, "exited", exited(signal=9))]


def left_by_one(script: list[Step], subject: Subject) -> str:
    """Return the page of two ranks of which rank 0 leaves, and rank 1 waits for it."""
    both = [step for rank in range(2) for step in well_behaved(rank, stays_in="call")]
    page = Operations(0), waiting_at(1, "broadcast", 88)
    return story([*both, *script], {}, size=2, operations=page, subject=subject)


@pytest.mark.parametrize("subject", ["script", "job"])
@pytest.mark.parametrize("script", [LEFT, KILLED, []], ids=["left", "killed", "stays"])
def test_a_page_of_what_is_no_test_does_not_speak_of_one(
    script: list[Step], subject: Subject
) -> None:
    """Nor does it use pytest's words; the test's own name and files are left out."""
    shown = left_by_one(script, subject).replace("test_ckpt.py", "")
    assert subject in shown or script != LEFT
    assert re.findall(r"\btests?\b|\bpytest\b(?!_)|\bin call\b", shown) == []


def test_the_page_of_a_script_is_as_it_is_known() -> None:
    """Letter by letter."""
    assert left_by_one(LEFT, "script") == (GOLDEN / "script.txt").read_text(encoding="utf-8")


def test_no_code_of_ours_is_shown_in_the_test() -> None:
    """The reader's code, and the one frame of the library that it has called."""
    shown = story(*HANG)
    assert "_pytest" not in shown
    assert "agent.py" not in shown
    assert shown.count("restore.py:88") == 2  # in the table and in its stack


def lines_with(role: Role) -> list[Line]:
    """Return the lines of the page that have a part with this role."""
    page = sections(judged(*HANG, operations=LATE))[0]
    return [line for line in page.lines if role in {span.role for span in line}]


def test_the_culprit_stands_out() -> None:
    """It is what the reader looks for: all of its row, and nothing else."""
    [(indent, row)] = lines_with("culprit")
    assert (indent.text, row.text[:8]) == ("  ", "► rank 0")
    assert COLOURS[row.role] == {"red": True, "bold": True}


def test_who_waits_is_told_from_who_does_not() -> None:
    """Between the culprit and the rest."""
    [(_, row)] = lines_with("waiting")
    assert row.text.startswith("  ranks 1-3  waiting")
    assert COLOURS[row.role] == {"yellow": True}


def test_titles_are_told_from_what_they_stand_for() -> None:
    """They are the same on every page."""
    titles = [span.text for line in lines_with("title") for span in line if span.role == "title"]
    assert [title for title in titles if title] == ["evidence", "files"]
    assert COLOURS["title"] == {"cyan": True}


def test_source_lines_are_told_from_where_they_stand() -> None:
    """What is written there matters less than where."""
    spans = [span for line in lines_with("source") for span in line if span.role == "source"]
    assert "  » time.sleep(600)" in [span.text for span in spans]


def test_a_line_is_cut_where_it_is_too_long_whatever_its_parts_are() -> None:
    """It says so, and later parts are gone."""
    line = (Span("storage.py:17"), Span("  » time.sleep(600)", "source"), Span("more"))
    assert text_of([clip_line(line, 20)]) == "storage.py:17  » ti…"
    assert text_of([clip_line(line, 14)]) == "storage.py:17…"
    assert clip_line(line, 36) == line


if __name__ == "__main__":  # writes the golden files anew: read them before you commit them
    for name, world in STORIES.items():
        (GOLDEN / f"{name}.txt").write_text(story(*world), encoding="utf-8")
    (GOLDEN / "straggler.txt").write_text(story(*HANG, operations=LATE), encoding="utf-8")
    (GOLDEN / "divergence.txt").write_text(page_of(parted()), encoding="utf-8")
    (GOLDEN / "script.txt").write_text(left_by_one(LEFT, "script"), encoding="utf-8")


def test_a_section_is_coloured_without_pytest() -> None:
    """Only what has a role is between escape sequences; the text is the same."""
    section = Section("title", ((Span("a "), Span("b", "culprit")), (Span("c", "title"),)))
    assert section.painted == "a \x1b[31;1mb\x1b[0m\n\x1b[36mc\x1b[0m"
    assert section.text == "a b\nc"
