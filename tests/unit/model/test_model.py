"""Values of the model: JSON both ways, and nothing lost on the way."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_multihost.core.model.errors import LaunchError, MultihostError
from pytest_multihost.core.model.json_values import from_json, to_json
from pytest_multihost.core.model.operation import Operation
from pytest_multihost.core.model.spec import ServicePart, WorldSpec
from pytest_multihost.core.model.stack import Dump, Frame, ThreadStack
from pytest_multihost.core.model.verdict import SCHEMA, RankError, RankResult, Verdict
from pytest_multihost.testing import Names, make_event, make_spec

FAILED = RankResult(
    rank=0,
    host="localhost",
    pid=4711,
    phase="call",
    outcome="failed",
    exit_code=0,
    signal=None,
    duration_s=3.4,
    cpu_s=0.3,
    peak_rss_bytes=180_000_000,
    label="SLEEPING",
    operations=({"name": "all_reduce", "sequence": 3, "group": [0, 1]},),
    log="rank-0.log",
    error=RankError("ValueError", "boom", "test_it.py", 7, "E   ValueError: boom"),
)
NEVER_FORKED = RankResult(
    rank=1,
    host="localhost",
    pid=None,
    phase="startup",
    outcome="error",
    exit_code=None,
    signal=None,
    duration_s=0.0,
    cpu_s=0.0,
    peak_rss_bytes=0,
    label=None,
    operations=(),
    log="rank-1.log",
    error=None,
)
VERDICT = Verdict(
    run_id="2026-11-21T00-00-00Z-4711",
    nodeid="tests/test_ckpt.py::test_restore[2-gloo]",
    attempt=1,
    worker="gw0",
    dir="tests-test_ckpt.py-test_restore-2-gloo-1f3a-1",
    backend="gloo",
    world_size=2,
    launch="fork",
    clock="jump",
    seed=8123,
    replay=None,
    status="failed",
    expected=None,
    outcome="failed",
    ended_by="harness",
    reason="rank 0 failed",
    started_at="2026-11-21T00:00:00Z",
    startup_s=0.05,
    duration_s=3.4,
    environment={"python": "3.11.7", "jax": None},
    faults=({"kind": "slow_io", "ranks": [0]},),
    rank_results=(FAILED, NEVER_FORKED),
    diagnosis={"kind": "raised", "culprits": [0], "waiting": [1]},
)


def test_a_verdict_survives_its_file() -> None:
    """What is read from verdict.json equals what was written, nested values included."""
    text = json.dumps(to_json(VERDICT), allow_nan=False)
    assert from_json(Verdict, json.loads(text)) == VERDICT


def test_a_verdict_survives_to_json() -> None:
    """Also without a file between the two."""
    assert from_json(Verdict, to_json(VERDICT)) == VERDICT


def test_a_verdict_says_which_schema_it_follows() -> None:
    """The first key, so that a reader finds it at once."""
    assert next(iter(to_json(VERDICT))) == "schema"
    assert to_json(VERDICT)["schema"] == SCHEMA == "pytest-multihost-hangs/verdict/1"


@pytest.mark.parametrize("schema", [None, "pytest-multihost-hangs/verdict/2", 1])
def test_a_verdict_of_another_schema_is_refused(schema: object) -> None:
    """The meaning of a field may have changed, so it is not guessed at."""
    with pytest.raises(ValueError, match="schema: must be"):
        from_json(Verdict, {**to_json(VERDICT), "schema": schema})


def test_a_verdict_has_the_fields_of_the_contract() -> None:
    """Fields are added, never renamed: these are what docs/results.md shows."""
    assert {
        *("schema", "run_id", "nodeid", "attempt", "worker", "dir", "backend", "world_size"),
        *("launch", "seed", "replay", "status", "expected", "outcome", "ended_by", "reason"),
        *("started_at", "startup_s", "duration_s", "environment", "faults", "rank_results"),
        *("diagnosis", "clock"),
    } <= to_json(VERDICT).keys()
    assert {
        *("rank", "host", "pid", "phase", "outcome", "exit_code", "signal", "duration_s", "cpu_s"),
        *("peak_rss_bytes", "label", "operations", "log", "error"),
    } <= to_json(VERDICT)["rank_results"][0].keys()
    error = to_json(VERDICT)["rank_results"][0]["error"]
    assert {"type", "message", "file", "line", "text"} <= error.keys()


def test_a_verdict_has_the_schema_that_the_guide_offers() -> None:
    """With every field that is written."""
    jsonschema = pytest.importorskip("jsonschema")
    path = Path(__file__).parents[3] / "docs" / "schema" / "verdict.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    jsonschema.validate({**VERDICT.record(), "diagnosis": None}, schema)
    assert VERDICT.record().keys() <= schema["properties"].keys()


def test_a_spec_survives_the_way_to_the_server() -> None:
    """The server forks what the controller has decided."""
    spec = make_spec(3, timeout_s=1.5)
    assert from_json(WorldSpec, json.loads(json.dumps(to_json(spec)))) == spec


def test_a_world_without_the_user_keeps_its_other_services() -> None:
    """A sweep has no time for somebody at a prompt."""
    own = {"clock": ServicePart(), "prompt": ServicePart(is_interactive=True)}
    spec = replace(make_spec(2), services=own)
    assert list(spec.without_user.services) == ["clock"]
    assert replace(spec.without_user, services=own) == spec


def test_an_event_is_written_with_the_time_since_the_start() -> None:
    """A reader of history.jsonl has no use for our monotonic clock."""
    event = make_event(1000.25, 3, "phase", {"phase": "call"})
    expected = {"at_s": 0.25, "rank": 3, "kind": "phase", "detail": {"phase": "call"}}
    assert event.record(origin_s=1000.0) == expected


def test_a_payload_is_never_written() -> None:
    """It is pickled data of the user's, as large as they like."""
    event = make_event(1.0, 0, "exchange", {"operation": "gather"}, payload=b"\x80secret")
    assert "secret" not in repr(event.record(origin_s=0.0))


def test_an_error_has_three_beats() -> None:
    """What happened, what was seen, what to do next; what is empty takes no line."""
    error = MultihostError("It broke.", seen="Smoke.", remedy="Open a window.")
    assert str(error) == "It broke.\nSmoke.\nOpen a window."
    assert str(MultihostError("It broke.", remedy="Open a window.")) == "It broke.\nOpen a window."


def test_the_main_thread_is_the_last_of_a_dump() -> None:
    """Faulthandler prints the newest thread first and the main thread, the oldest, last."""
    main = ThreadStack("0x1", (Frame("test_it.py", 3, "test_it"),))
    assert Dump(0, "faulthandler", (ThreadStack("0x2", ()), main)).main is main
    assert Dump(0, "faulthandler", ()).main is None


def test_an_operation_that_another_version_told_of_is_read() -> None:
    """It may lack what is new, and have what is old: its world can still be explained."""
    told = Operation(name="send", kind="transfer", group=(0, 1), sequence=1, since_s=2.0, peer=1)
    data = to_json(told)
    del data["timeout_s"]
    assert from_json(Operation, {**data, "has_limit": True}) == told


@pytest.mark.parametrize(
    ("group", "ordinal", "name"),
    [
        ((0, 1), 0, "group 0,1"),
        ((0, 1), 1, "2nd group 0,1"),
        ((0, 1), 2, "3rd group 0,1"),
        ((0, 1, 2), 0, "world group"),
        ((0, 1, 2), 1, "2nd group 0,1,2"),
    ],
)
def test_groups_of_the_same_members_have_different_names(
    group: tuple[int, ...], ordinal: int, name: str
) -> None:
    """Their operations never meet, so they must not read as one."""
    operation = Operation(
        name="all_reduce", kind="collective", group=group, sequence=1, since_s=0.0, ordinal=ordinal
    )
    assert operation.describe(Names(3)) == f"all_reduce #1 ({name})"


CONTROLS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"


@pytest.mark.parametrize(
    "said",
    [
        "\x1b]0;owned\x07",
        "\x1b[2J\x1b[31m",
        "\n::error file=a,line=1::injected",
        "##[error]x",
        "##vso[task.complete]x",
        "\x9b31m",
        "\u202eevil\u2066",
        "a\rb",
        "\udcff",
    ],
)
@pytest.mark.parametrize("part", ["happened", "seen", "remedy"])
def test_an_error_is_printable_whoever_it_quotes(said: str, part: str) -> None:
    """Host names, problems and versions of nodes are in errors that are printed in many places."""
    given = {"happened": "it failed", part: f"n1 says {said}"}
    text = str(LaunchError(**given))
    assert not re.search(CONTROLS, text)
    assert not re.search(r"^\s*::|##\w*\[", text, re.MULTILINE)


def test_an_error_is_bounded() -> None:
    """Nobody reads megabytes of a node's last words."""
    text = str(LaunchError("it failed", seen="x" * 10_000_000))
    assert len(text) < 10_000
    assert "characters left out" in text


def test_the_lines_and_words_of_an_error_stay() -> None:
    """What is printable is not changed."""
    text = "line 1: ünïcode ✓\n  line 2\twith `code` and a::b"
    assert str(LaunchError("it failed", seen=text)) == f"it failed\n{text}"
