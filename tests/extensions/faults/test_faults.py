"""Faults and points: values that can be pasted back, and what is wrong with them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_multihost import at, faults
from pytest_multihost.core.launch.server import PauseSchedule
from pytest_multihost.core.outcome import continued_by_plan, has_pending_actions
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.extensions.faults import pytest_multihost_faults
from pytest_multihost.extensions.faults.fault_text import parse_fault
from pytest_multihost.extensions.faults.pressure import descriptor_limit
from pytest_multihost.extensions.faults.validation import fault_problems, resolved_problems
from pytest_multihost.faults.kind import FaultKind, kinds_by_name
from pytest_multihost.intercept.files import matcher
from pytest_multihost.intercept.targets import target_problem
from pytest_multihost.testing import (
    Event,
    Fault,
    Pause,
    ServicePart,
    SettingError,
    WorldSpec,
    from_json,
    hash_seed_of,
    make_event,
    make_spec,
    read_token,
    resolve,
    to_json,
    token,
)

pytestmark = pytest.mark.unit

KINDS = kinds_by_name([pytest_multihost_faults()])

EXAMPLES = [
    faults.hold(rank="one", at=at.collective("barrier")),
    faults.hold(rank=[0, 1], min_s=1.5, max_s=3, must_fire=False),
    faults.delay(rank=0, seconds=2.5, at=at.call("json:JSONDecoder.decode", nth=2, when="after")),
    faults.start_skew(rank=[1, 2], seconds=1),
    faults.freeze(rank="primary", at=at.collective("all_reduce", nth=3)),
    faults.freeze(rank="others", seconds=1, at=at.collective()),
    faults.kill(rank="one", at=at.sync_point("before-commit"), signal="SIGTERM"),
    faults.raise_at(rank=1, error=OSError, message="no 'space'", at=at.io("*/ckpt/*", nth=4)),
    faults.kill(rank=1, at=at.io("*/ckpt/*", call="rename", nth=2)),
    faults.kill(rank=1, at=at.batch("json:loads", nth=2)),
    faults.memory_pressure(rank=0, headroom_mb=64, oom_kill=True, must_fire=False),
    faults.fd_pressure(rank=0),
    faults.cpu_throttle(rank=0, percent=20, seconds=3),
    faults.hash_seed(),
    faults.slow_io(rank=0, seconds=2, path="*/ckpt/*", error="EIO", short_reads=True),
    faults.fails(rank="first", at=at.io("*/ckpt/*", call="rename", onwards=True)),
    faults.short_data(rank=1, at=at.batch("torch.utils.data:DataLoader", nth=4)),
    faults.empty_data(rank=1, at=at.batch("torch.utils.data:DataLoader")),
    faults.returns(rank=1, value=[True, None, "x", -1.5], at=at.call("json:loads")),
    faults.shuffled_listing(rank=1),
    faults.stale_files(rank="others", seconds=3, path="*.json"),
    faults.clock_skew(rank=1, seconds=-60, at=at.sync_point("x", onwards=False)),
    faults.elapsed_time(rank=1, seconds=60, read=2),
]


def problems(*given: Fault, size: int = 4) -> list[str]:
    """Return what is wrong with faults in a world."""
    return fault_problems(given, size=size, kinds=KINDS)


@pytest.mark.parametrize("fault", EXAMPLES, ids=repr)
def test_a_fault_can_be_pasted_back_and_survives_json(fault: Fault) -> None:
    """Its repr makes an equal one, on the command line too."""
    assert eval(repr(fault), {"faults": faults, "at": at}) == fault  # noqa: S307 - our own text
    assert parse_fault(repr(fault)) == fault
    assert from_json(Fault, json.loads(json.dumps(to_json(fault)))) == fault
    assert problems(fault) == []


WRONG: list[tuple[Any, str]] = [
    (faults.delay(rank=0, seconds=-1), "seconds must be a number of seconds from 0 to 1e9, not -1"),
    (
        faults.fails(rank=0, error="EIO", at=at.collective("barrier")),
        "error= is for calls on files; to raise an exception here, use raise_at",
    ),
    (faults.hold(rank=0, until="dawn"), "until must be 'others-wait', not 'dawn'"),
    (faults.hold(rank=0, min_s=-1), "min_s must be a number of seconds from 0 to 1e9, not -1"),
    (faults.delay(rank=4, seconds=1), "rank 4 is out of range: the ranks are 0 to 3"),
    (faults.delay(rank=-1, seconds=1), "rank must be an index"),
    (faults.delay(rank="last", seconds=1), "rank must be an index"),
    (faults.hash_seed(rank="first"), "rank cannot be 'first'"),
    (
        faults.fails(rank=0, at=at.sync_point("x")),
        "fails happens at at.collective(...) or at.io(...), not",
    ),
    (faults.fails(rank=0, at=at.io("*"), error="EFOO"), "error must be the name of an error"),
    (faults.short_data(rank=0, at=at.io("*")), "short_data happens at at.batch(...), not at at.io"),
    (faults.returns(rank=0, value={}, at=at.call("json:loads")), "value must be a number, a text"),
    (faults.fd_pressure(rank=0, at=at.io("*", onwards=True)), "lasts until it is undone"),
    (faults.kill(rank=0, at=at.io("*", onwards=1)), "onwards must be True or False"),  # type: ignore[arg-type]
    (faults.stale_files(rank=0, seconds=-1), "seconds must be a number of seconds from 0"),
    (faults.clock_skew(rank=0, seconds=1e10), "seconds must be a number of seconds from -1e9"),
    (faults.elapsed_time(rank=0, seconds=1, read=0), "read must be a whole number of at least 1"),
    (faults.delay(rank=[0, 0], seconds=1), "rank names a rank twice"),
    (faults.kill(rank=0, signal="SIGCONT"), "signal must be the name of a signal that ends"),
    (faults.kill(rank=0, at=at.call("no_colon")), "at.call takes 'module:function'"),
    (faults.kill(rank=0, at=at.sync_point("x", nth=0)), "nth must be a whole number"),
    (faults.kill(rank=0, at="start"), "at must be a point"),  # type: ignore[arg-type]
    (faults.kill(rank=0, at=at.io("*", call="exists")), "call must be one of open, read"),  # type: ignore[arg-type]
    (faults.kill(rank=0, at=at.batch("json")), "at.batch takes 'module:name' of a data loader"),
    (faults.kill(rank=0, at=at.batch("json:decoder")), "cannot be called"),
    (faults.kill(rank=0, at=at.batch("json:__all__")), "is a list"),
    (faults.raise_at(rank=0, error="NoSuchError"), "error must be the name of a built-in"),
    (faults.cpu_throttle(rank=0, percent=100), "percent must be a number above 0 and below 100"),
    (faults.slow_io(rank=0, error="EWHAT"), "error must be the name of an error"),
    (faults.other("delya", rank=0), "there is no fault 'delya'"),
    (faults.kill(rank=0, at=at.call("json:lods")), "the nearest: loads, load"),
    (faults.kill(rank=0, at=at.call("jsn:loads")), "there is no module 'jsn'; the nearest: json"),
]


@pytest.mark.parametrize(("fault", "words"), WRONG, ids=[repr(fault) for fault, _ in WRONG])
def test_what_is_wrong_with_a_fault_is_said(fault: Fault, words: str) -> None:
    """With the fault itself, and nothing is raised when it is made."""
    [problem] = problems(fault)
    assert problem.startswith(repr(fault))
    assert words in problem


@pytest.mark.parametrize("text", ["nan", "float('nan')", "-inf", 'float("inf")'])
def test_numbers_that_json_does_not_have_can_be_parameters(text: str) -> None:
    """In a token and on the command line, too; the expression of the fault can be pasted back."""
    fault = parse_fault(f"returns(rank=1, value={text}, at=at.call('json:loads'))")
    spec = replace(make_spec(2), faults=(fault,))
    again = read_token(token(spec)).faults[0]
    assert problems(fault) == []
    assert [repr(each) for each in (again, parse_fault(repr(again)))] == [repr(fault)] * 2
    assert str(again.params["value"]) == text.removeprefix("float").strip("()'\"")


def test_the_fault_of_whoever_is_first_is_one_of_every_rank() -> None:
    """As numbers in a verdict; a token and the expression say that it is one of them."""
    [fault] = resolve([faults.kill(rank="first")], size=3, seed=1)
    assert (fault.ranks, fault.is_first) == ((0, 1, 2), True)
    assert repr(fault) == "faults.kill(rank='first')"
    assert read_token(token(replace(make_spec(3), faults=(fault,)))).faults == (fault,)


def test_all_problems_are_told_at_once() -> None:
    """Those of one fault and those of the next."""
    bad = faults.delay(rank=9, seconds=-1, at=at.sync_point(""))
    assert len(problems(bad, faults.fd_pressure(rank=9))) == 4


@pytest.mark.parametrize(
    ("first", "second", "exclude"),
    [
        (faults.kill(rank=0), faults.freeze(rank=[0, 1]), True),
        (faults.kill(rank=0), faults.freeze(rank=1), False),
        (faults.kill(rank=0, at=at.sync_point("x")), faults.freeze(rank=0), False),
        (faults.cpu_throttle(rank=0, percent=5), faults.freeze(rank=0, seconds=1), True),
        (faults.slow_io(rank=0, seconds=1), faults.slow_io(rank=0, seconds=2), True),
        (faults.slow_io(rank=0, path="*/a"), faults.slow_io(rank=0, path="*/b"), False),
        (faults.delay(rank=0, seconds=1), faults.delay(rank=0, seconds=1), False),
    ],
)
def test_two_that_exclude_each_other_are_named(first: Fault, second: Fault, exclude: bool) -> None:
    """Only on a rank that both are for."""
    found = resolved_problems([first, second], hosts=(), size=3, kinds=KINDS)
    assert bool(found) is exclude
    assert all(repr(first) in each and repr(second) in each for each in found)


def test_a_kind_of_a_third_party_excludes_others_as_built_in_kinds_do() -> None:
    """By what it says of itself."""
    stall = FaultKind(name="stall", perform=lambda _: None, stops_process=True, one_per="rank")
    ends = FaultKind(name="ends", perform=lambda _: None, is_exclusive=True)
    kinds = {**KINDS, "stall": stall, "ends": ends}

    def excluded(*given: Fault) -> bool:
        return bool(resolved_problems(given, hosts=(), size=3, kinds=kinds))

    one, end = faults.other("stall", rank=0), faults.other("ends", rank=0)
    assert excluded(one, one)
    assert excluded(one, faults.freeze(rank=0))
    assert excluded(end, faults.kill(rank=0))
    assert not excluded(one, faults.kill(rank=0))
    assert not excluded(end, faults.kill(rank=0, at=at.sync_point("x")))
    assert not excluded(one, faults.other("stall", rank=1))


def test_the_built_in_kinds_have_constructors_of_their_names() -> None:
    """And no constructor is without its kind; `other` is for the kinds of third parties."""
    groups = new_plugin_manager().hook.pytest_multihost_faults()
    assert kinds_by_name(groups).keys() == set(faults.__all__) - {"other"}


def test_a_world_knows_of_its_faults_what_their_kinds_say() -> None:
    """Also where nobody knows the kinds: in a rank before its test, in a server."""
    given = (faults.hash_seed(rank=1), faults.slow_io(rank=0, seconds=1), faults.kill(rank=0))
    facts = {each.kind: KINDS[each.kind].facts for each in given}
    spec = replace(make_spec(2), faults=given, fault_facts=facts)
    spec = from_json(WorldSpec, json.loads(json.dumps(to_json(spec))))
    found = [spec.facts_of(each) for each in spec.faults]
    assert [each.is_before_test for each in found] == [True, False, False]
    assert [each.needs_shim for each in found] == [False, True, False]
    assert [each.needs_fresh_interpreters for each in found] == [True, False, False]


def test_an_exception_is_written_in_a_text_as_in_a_program() -> None:
    """By its name alone."""
    assert parse_fault("raise_at(rank=0, error=OSError)") == faults.raise_at(rank=0, error=OSError)


def test_words_become_ranks_by_size_and_seed() -> None:
    """The same seed draws the same rank; not every seed does."""
    words = [faults.kill(rank=word) for word in ("primary", "others", "all")]
    assert [each.ranks for each in resolve(words, size=3, seed=1)] == [(0,), (1, 2), (0, 1, 2)]
    drawn = [resolve([faults.kill(rank="one")], size=4, seed=seed)[0].ranks for seed in range(40)]
    assert drawn == [resolve([faults.kill(rank="one")], size=4, seed=n)[0].ranks for n in range(40)]
    assert set(drawn) == {(0,), (1,), (2,), (3,)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("slow_oi(rank=0)", "Did you mean slow_io?"),
        ("slow_io(rank=0, secnds=2)", "Did you mean seconds?"),
        ("slow_io(rank=__import__('os'))", "there is no at.__import__"),
        ("delay(rank=0, seconds=1+1j**2)", "neither a number"),
        ("delay(rank=0", "is not a Python expression"),
        ("delay(rank=0)", "seconds"),
        ("delay(0, 1)", "It takes: rank, seconds, at"),
        ("raise_at(rank=0, error=OSEror)", "neither a number"),
        ("SLOW_IO(rank=0)", "Did you mean slow_io?"),
        ("3", "3 is not a call"),
    ],
)
def test_a_text_that_is_no_fault_is_refused(text: str, words: str) -> None:
    """Nothing of it is evaluated."""
    with pytest.raises(SettingError, match=words.replace("?", r"\?")):
        parse_fault(text)


def test_a_token_repeats_seed_and_faults_and_knows_its_test() -> None:
    """One damaged letter is enough to refuse it."""
    spec = replace(make_spec(2), faults=resolve(EXAMPLES[:3], size=3, seed=1), seed=77)
    text = token(spec)
    replay = read_token(text)
    assert (replay.seed, replay.size, replay.faults) == (77, 2, spec.faults)
    assert replay.is_of(spec.nodeid)
    assert not replay.is_of("another")
    with pytest.raises(SettingError, match="damaged"):
        read_token(text[:-3] + "AAA")


def test_a_token_names_the_services_that_a_replay_needs() -> None:
    """Also where the marker says otherwise by now; others are not named."""
    spec = make_spec(2)
    parts = {"clock": ServicePart(is_replayed=True), "other": ServicePart()}
    with_services = token(replace(spec, services=parts))
    assert read_token(with_services).services == ("clock",)
    assert read_token(token(spec)).services == ()
    assert len(token(spec)) < len(with_services)


def test_a_function_is_not_sought_where_it_cannot_be() -> None:
    """A class is refused with what to write instead."""
    assert "name a method" in str(target_problem("json:JSONDecoder"))
    assert target_problem("json:JSONDecoder.decode") is None


@pytest.mark.parametrize(
    ("pattern", "path", "is_match"),
    [
        ("*/ckpt/*", "/a/ckpt/b/c", True),
        ("ckpt/*", "/a/ckpt/b", True),
        ("/ckpt/*", "/a/ckpt/b", False),
        ("*", "/home/me/data", True),
        ("*", "/usr/lib/python3.11/json/__init__.py", False),
        ("*", "/proc/self/status", False),
    ],
)
def test_a_glob_matches_absolute_paths(pattern: str, path: str, is_match: bool) -> None:
    """The star alone spares what belongs to nobody's test."""
    assert matcher(pattern)(path) is is_match


def test_ranks_without_a_fault_of_their_own_hash_alike_in_every_run() -> None:
    """As if they were forked from one process; a fresh interpreter would draw another seed."""
    [fault] = resolve([faults.hash_seed(rank=1, seed=7)], size=4, seed=3)
    seeds = [hash_seed_of([fault], rank, 3) for rank in range(4)]
    assert seeds[1] == 7
    assert seeds[0] == seeds[2] == seeds[3] not in (None, 7)
    assert seeds == [hash_seed_of([fault], rank, 3) for rank in range(4)]


def test_nobody_has_a_seed_without_the_fault() -> None:
    """A test that asks for fresh interpreters alone gets what its hosts would."""
    assert hash_seed_of([faults.kill(rank=1)], 0, 3) is None


def test_the_descriptor_limit_leaves_as_many_free_as_was_said() -> None:
    """Numbers are handed out from below."""
    assert [descriptor_limit({0, 1, 2, 5}, headroom) for headroom in (0, 1, 2, 3)] == [3, 4, 6, 7]


def test_a_paused_rank_is_stopped_and_continued_by_the_clock() -> None:
    """A turn that comes late does not put off the next."""
    import signal

    pauses, stop, go = PauseSchedule(), signal.SIGSTOP, signal.SIGCONT
    pause = Pause(stopped_s=0.75, running_s=0.25, until_s=12.0)
    assert pauses.begin(1, pause, 10.0) == [(1, stop)]
    assert (pauses.wait_s(10.0), pauses.act(10.5)) == (0.75, [])
    assert (pauses.act(10.9), pauses.wait_s(10.9)) == ([(1, go)], pytest.approx(0.1))
    assert (pauses.act(11.0), pauses.act(12.5), pauses.act(13.0)) == ([(1, stop)], [(1, go)], [])
    assert pauses.wait_s(13.0) is None


def _fault(phase: str, **detail: Any) -> Event:  # noqa: ANN401 - of the event
    about = {"index": 0, "fault": "freeze", "phase": phase}
    return make_event(10.0, 1, "fault", {**about, **detail})


def test_what_is_still_to_come_is_known() -> None:
    """Until it is over, or should have been for a while; nobody thaws who is frozen for good."""
    begun = _fault("begun", until_s=15.0, pause={"running_s": 0, "until_s": 15.0})
    assert has_pending_actions([begun], 11.8)
    assert has_pending_actions([begun], 15.1)
    assert not has_pending_actions([begun], 17.0)
    assert not has_pending_actions([begun, _fault("ended")], 11.8)
    assert continued_by_plan([begun]) == {1}
    for_good = _fault("begun", pause={"running_s": 0})
    assert not has_pending_actions([for_good], 11.0)
    assert continued_by_plan([for_good]) == frozenset()
