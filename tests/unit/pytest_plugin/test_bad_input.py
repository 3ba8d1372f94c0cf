"""Whatever a user writes as a fault, a token or an option is a value or an error in words."""

from __future__ import annotations

import argparse
import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_multihost import at, faults
from pytest_multihost.core.fault_planner import offered_planner
from pytest_multihost.core.host_kind import Hosts
from pytest_multihost.core.option import parse_names, parse_ranks, parse_seconds, parse_seed
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.extensions import netns
from pytest_multihost.testing import (
    MAX_RANKS,
    Fault,
    MultihostError,
    Point,
    SettingError,
    WorldSpec,
    from_json,
    make_spec,
    read_token,
    to_json,
    token,
)

DRAWN = settings(deadline=None, derandomize=True, database=None)
"""Each run draws the same examples."""

[NETNS] = netns.pytest_multihost_hosts()
PLANNER = offered_planner(new_plugin_manager().hook)
MAX_LINES = 4
MAX_CHARACTERS = 2000


def check_message(text: str) -> None:
    """Check that a message can be read: a few lines, none of them endless, any terminal."""
    assert 0 < len(text.splitlines()) <= MAX_LINES
    assert len(text) <= MAX_CHARACTERS
    text.encode("utf-8")


def check_fault(text: str) -> None:
    """Check that a text is a fault that survives all that is done to it, or an error in words."""
    try:
        fault = PLANNER.parse(text)
    except SettingError as error:
        check_message(str(error))
        return
    for hosts in ((), NETNS.hosts(3, 1)):
        planned = PLANNER.plan([fault], size=3, seed=7, hosts=hosts, roles=())
        found = planned.faults
        for problem in planned.problems:
            check_message(problem)
        if not planned.problems:
            spec = replace(make_spec(3), faults=found)
            assert from_json(WorldSpec, json.loads(json.dumps(to_json(spec)))) == spec
            assert read_token(token(spec)).faults == found
            assert PLANNER.parse(repr(found[0])) == found[0]


LEAVES = st.sampled_from(
    [
        *("0", "1", "-1", "2", "3", "1.5", "-0.0", "1e400", "-1e400", "1e400-1e400", "1e-400"),
        *(
            "True",
            "None",
            "...",
            "1j",
            "1 << 3",
            "9" * 30,
            "9" * 400,
            "9" * 5000,
            "0x" + "f" * 5000,
        ),
        *("''", "'one'", "'all'", "'a:b'", "'SIGKILL'", "'SIG'", "'EIO'", "'E'", "'*'", "b'x'"),
        *("'\\ud800'", "'\\0'", "'json:loads'", "'json:'", "'os.path:join'", "'ValueError'"),
        *("f'{1}'", "x", "x.y", "lambda: 0", "[*x]", "{**x}", "()", "[]", "{}", "{1, 2}", "*x"),
        *("at", "at.start", "at.start()", "at.io('x')", "at.call('json:loads')", "at.call(1)"),
        *("at.rendezvous()", "at.sync_point(nth=[])", "at.collective(op={})", "at.nothing()"),
        *("at.collective(nth=0x" + "f" * 5000 + ")", "at.call('a', when=[])", "kill(rank=0)"),
    ]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        st.tuples(inner, inner).map("({0[0]}, {0[1]})".format),
        st.tuples(inner, inner).map("{{{0[0]}: {0[1]}}}".format),
        st.tuples(inner).map("{{{0[0]}}}".format),
        inner.map("-{}".format),
    ),
    max_leaves=4,
)
ARGUMENTS = st.sampled_from(
    [
        *(
            "rank",
            "at",
            "must_fire",
            "seconds",
            "signal",
            "error",
            "message",
            "headroom",
            "percent",
        ),
        *(
            "headroom_mb",
            "oom_kill",
            "seed",
            "bytes_per_s",
            "short_reads",
            "path",
            "groups",
            "kind",
        ),
        *("one_way", "heals_after", "no_such", "self"),
    ]
)
CALLS = st.builds(
    "{}({})".format,
    st.sampled_from([*faults.__all__, "faults.kill", "at.start", "", "no_such", "os.system"]),
    st.lists(
        st.one_of(VALUES, st.builds("{}={}".format, ARGUMENTS, VALUES), VALUES.map("**{}".format)),
        max_size=4,
    ).map(", ".join),
)


@settings(DRAWN, max_examples=400)
@given(st.one_of(CALLS, st.text()))
@example("kill(rank={[]:1})")
@example("kill(rank=[0,[1]])")
@example("kill(rank=0x" + "f" * 5000 + ")")
@example("other([], rank=0)")
@example("delay(rank=0, seconds=1e300)")
@example("delay(rank=0, seconds=0x" + "f" * 5000 + ")")
@example("kill(rank=0, rank=1)")
@example("kill(rank=0, at=at.call('" + "a." * 30_000 + "b:c'))")
@example("kill(rank=0, at=at." + "a." * 30_000 + "b())")
@example("kill(rank=" + "[" * 30_000)
@example("kill(rank=" + "-" * 30_000 + "1)")
@example("kill(rank=" + "[" * 150 + "]" * 150 + ")")
@example("other('x', rank=0, y=" + "[" * 150 + "]" * 150 + ")")
@example("kill(rank=0,\0)")
@example("kill(rank='\udc80')")
@example("\udc80")
def test_any_text_is_a_fault_or_an_error_in_words(text: str) -> None:
    """And a fault that has no problems can be sent to its rank, replayed and pasted back."""
    check_fault(text)


def test_an_argument_that_is_given_twice_is_refused() -> None:
    """Python's parser alone takes the last one."""
    with pytest.raises(SettingError, match="only once"):
        PLANNER.parse("kill(rank=0, rank=1)")


ANY_VALUE: Any = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([1 << 70, 1e300, float("nan"), float("inf")])
    | st.just(20_000).map(lambda bits: 1 << bits)  # Python does not print it
    | st.text(max_size=3)
    | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@settings(DRAWN, max_examples=200)
@given(kind=st.sampled_from(faults.__all__) | ANY_VALUE, rank=ANY_VALUE, value=ANY_VALUE)
@example(kind="kill", rank=ENDLESS, value=0)
@example(kind="delay", rank=0, value=ENDLESS)
def test_any_value_in_a_marker_is_valid_or_a_problem_in_words(
    kind: Any,  # noqa: ANN401 - that is the question
    rank: Any,  # noqa: ANN401
    value: Any,  # noqa: ANN401
) -> None:
    """Whatever Python code puts where a rank, a number, a name or a point belongs."""
    names = ("seconds", "percent", "bytes_per_s", "groups", "error", "signal", "path", "seed")
    given = [
        faults.other(kind, rank=rank),
        *(faults.other(kind, rank=0, **{name: value}) for name in names),
        faults.kill(rank=0, at=value, must_fire=value),
        faults.kill(rank=0, at=at.call(value)),
        faults.kill(rank=0, at=at.io(value, nth=value)),
        faults.kill(rank=0, at=Point("call", "json:loads", value, value)),
    ]
    for each in given:
        problems = PLANNER.plan([each], size=3, seed=7, hosts=(), roles=()).problems
        for problem in problems:
            check_message(problem)


def sealed(content: bytes) -> str:
    """Return a token whose checksum is right, whatever it says."""
    data = content + zlib.crc32(content).to_bytes(4, "big")
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


FAULT = ["kill", [0], {"point": "start"}, {}, 1]
JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
CONTENTS = st.one_of(
    JSON,
    st.fixed_dictionaries({"v": st.just(1)}, optional=dict.fromkeys("tnsf", JSON)),
    st.builds(
        lambda index, value: {"v": 1, "f": [[*FAULT[:index], value, *FAULT[index + 1 :]]]},
        st.integers(0, 4),
        JSON,
    ),
)


@settings(DRAWN, max_examples=300)
@given(CONTENTS)
@example({"v": 1, "s": 10**400})
@example({"v": 1, "f": [["delay", [0], {"point": "start"}, {"seconds": 10**400}, 1]]})
@example({"v": 10**400})
def test_a_token_with_any_content_is_replayed_or_refused_in_words(content: Any) -> None:  # noqa: ANN401
    """Its checksum may be right and its content still be none."""
    text = sealed(json.dumps(content).encode())
    try:
        replay = read_token(text)
    except SettingError as error:
        check_message(str(error))
        return
    assert 0 <= replay.size <= MAX_RANKS
    problems = PLANNER.plan(replay.faults, size=3, seed=replay.seed, hosts=(), roles=()).problems
    for problem in problems:
        check_message(problem)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 5000, b"null"])
def test_a_sealed_token_that_is_no_json_is_refused_as_such(content: bytes) -> None:
    """Its checksum is not what is wrong with it."""
    with pytest.raises(SettingError) as raised:
        read_token(sealed(content))
    assert ("damaged" in str(raised.value)) is (content == b"")
    check_message(str(raised.value))


READERS: dict[str, Callable[[str], object]] = {
    "token": read_token,
    "hosts": lambda text: Hosts.parse(text, [NETNS]),
    "ranks": parse_ranks,
    "names": parse_names,
    "seconds": parse_seconds,
    "seed": parse_seed,
}
TEXTS = st.one_of(
    st.text(),
    st.text(alphabet="0123456789.,:e+-_ netsdock"),
    st.sampled_from(["9" * 5000, "netns:" + "9" * 5000, "1," * 30_000, "1e400", "٣", "²", "1_0"]),
)


@pytest.mark.parametrize("name", READERS)
@settings(DRAWN, max_examples=150)
@given(text=TEXTS)
def test_any_text_of_an_option_is_a_value_or_an_error_in_words(name: str, text: str) -> None:
    """Never another exception, however long its number is."""
    try:
        READERS[name](text)
    except (SettingError, argparse.ArgumentTypeError) as error:
        check_message(str(error))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ranks", "9" * 5000),
        ("ranks", "10001"),
        ("hosts", "netns:" + "9" * 5000),
        ("seconds", "1e10"),
        ("seed", "9" * 300),
    ],
)
def test_a_number_beyond_all_use_is_refused(name: str, text: str) -> None:
    """It would fail later: no memory, no such timeout, no such name of a file."""
    with pytest.raises((MultihostError, argparse.ArgumentTypeError)):
        READERS[name](text)


def test_a_fault_of_no_text_is_named() -> None:
    """`other` takes whatever a plugin offers, but only by a name."""
    problems = PLANNER.plan([Fault([], (0,))], size=1, seed=0, hosts=(), roles=()).problems  # type: ignore[arg-type]
    assert problems == ["faults.other([], rank=0): the kind of a fault must be a text, not []"]
