"""What pages of I/O rules tell, and what tests need of their launch: on hand-made facts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import world

from pytest_multihost import faults
from pytest_multihost.core.outcome import firings, frozen_for_good
from pytest_multihost.extensions.faults.clean_up import clean_up_faults, heal_files
from pytest_multihost.extensions.faults.io_shim import IoPage, IoRule
from pytest_multihost.extensions.faults.slow_io import io_rules, page_path, spared
from pytest_multihost.intercept.files import SYSTEM_FILES, matcher
from pytest_multihost.testing import (
    Event,
    Fault,
    RankSpec,
    WorldResult,
    make_event,
    make_spec,
)

pytestmark = pytest.mark.unit

SLOW = faults.slow_io(rank=1, seconds=1)


def fault_event(phase: str, at_s: float = 10.0, **detail: Any) -> Event:  # noqa: ANN401 - JSON
    """Return a word of rank 1 about its first fault."""
    about = {"index": 0, "fault": "slow_io", "at": {"point": "start"}, "phase": phase}
    return make_event(at_s, 1, "fault", {**about, **detail})


def result(*history: Event, fault: Fault = SLOW) -> WorldResult:
    """Return a world of two that has ended."""
    spec = replace(make_spec(2), faults=(fault,))
    return world(history=history, spec=spec, started_s=9.0, ended_s=20.0, ending="self")


def cleaned(result: WorldResult, scratch: Path) -> WorldResult:
    """Return a result with what its ranks have not reported."""
    return result.with_events(clean_up_faults(result.history, scratch))


def page_with(scratch: Path, *struck_ns: int) -> IoPage:
    """Make rank 1's page, with a rule for each moment at which one struck; 0 is never."""
    page = IoPage.create(page_path(scratch, 1))
    for moment in struck_ns:
        number = page.add(IoRule(path="*"))
        if moment:
            page.note(number, moment)
    return page


def test_what_only_a_page_has_seen_is_told(tmp_path) -> None:
    """The earlier of its rules counts, and stands between what the rank has told."""
    page_with(tmp_path, 0, 12_500_000_000, 11_500_000_000)
    parked = make_event(13.0, 1, "parked")
    settled = cleaned(result(fault_event("armed", rules=[0, 1, 2]), parked), tmp_path)
    assert firings(settled, 0) == {1: [11.5]}
    assert settled.history[-1] is parked


@pytest.mark.parametrize("rules", [[0], []], ids=["never struck", "no rules"])
def test_a_fault_that_did_not_happen_is_not_told(tmp_path, rules: list[int]) -> None:
    """Another fault's rule in the same page has struck."""
    page_with(tmp_path, 0, 12_000_000_000)
    armed = fault_event("armed", rules=rules)
    assert firings(cleaned(result(armed), tmp_path), 0) == {}


def test_what_the_rank_has_told_is_not_told_twice(tmp_path) -> None:
    """Python's files tell each time, and count as well."""
    page_with(tmp_path, 12_000_000_000)
    told = result(fault_event("armed", rules=[0]), fault_event("begun", 12.1))
    assert firings(cleaned(told, tmp_path), 0) == {1: [12.1]}


def test_a_page_that_is_gone_or_damaged_tells_nothing(tmp_path) -> None:
    """The test may have removed it."""
    armed = fault_event("armed", rules=[0])
    assert cleaned(result(armed), tmp_path).history == (armed,)
    page_path(tmp_path, 1).write_text("something else")
    assert cleaned(result(armed), tmp_path).history == (armed,)
    heal_files(tmp_path, [0, 1])


def test_rules_are_taken_from_outside(tmp_path) -> None:
    """What they have done stays."""
    page = page_with(tmp_path, 5)
    heal_files(tmp_path, [0, 1])
    assert page.add(IoRule(path="*")) == 0


def test_an_error_for_lack_of_room_is_for_those_who_write() -> None:
    """A delay beside it is for all."""
    [only] = io_rules({"path": "*", "error": "ENOSPC"}, ())
    assert (only.operations, only.error) == (("write", "sync"), 28)
    delay, full = io_rules({"path": "*", "error": "ENOSPC", "seconds": 1}, ())
    assert (delay.error, delay.seconds, full.error, full.seconds) == (0, 1, 28, 0)
    [broken] = io_rules({"path": "*", "error": "EIO", "seconds": 1}, ())
    assert (broken.error, broken.operations) == (5, IoRule(path="*").operations)


def test_the_shim_spares_what_python_level_spares(tmp_path) -> None:
    """And our own files, also in a directory whose name looks like a pattern."""
    place = RankSpec(
        world=make_spec(2),
        rank=1,
        directory="/w/.pytest_multihost/a",
        scratch="/t[1]",
        ports=(1, 2),
    )
    spare = spared("*", place)
    assert IoPage.create(tmp_path / "page").add(IoRule(path="*", spare=spare)) == 0

    def is_spared(path: str) -> bool:
        return any(matcher(each)(path) for each in spare)

    ours = [
        "/t[1]/rank-1.slots",
        "/t[1]/gloo-store",
        "/t[1]/service-clock",
        "/w/.pytest_multihost/a/rank-1.log",
    ]
    pythons = ["/usr/lib/x.so", "/v/lib/python3.11/json/tool.py", "/etc/hosts", "/proc/self/status"]
    users = ["/t[1]/rank-1/test_it0/ckpt", "/t[1]/shared/my-store", "/home/me/lib/data"]
    assert [is_spared(each) for each in (*ours, *pythons, *users)] == [True] * 8 + [False] * 3
    assert [matcher("*")(each) for each in (*pythons, *users)] == [False] * 4 + [True] * 3
    assert not set(SYSTEM_FILES) & set(spared("*/ckpt/*", place))


def test_who_is_frozen_for_good_is_known_after_the_end() -> None:
    """Not who is thawed later, nor who had died; that the harness ends it changes nothing."""
    fault = faults.freeze(rank=1)

    def begun(**detail: object) -> Event:
        return fault_event("begun", fault="freeze", pause={}, **detail)

    ended = make_event(12.0, 1, "exited", {"by_harness": True})
    assert frozen_for_good([fault], [begun(), ended]) == {1: fault}
    assert frozen_for_good([fault], [begun(), make_event(12.0, 1, "exited")]) == {}
    assert frozen_for_good([fault], [begun(until_s=15.0)]) == {}
    assert frozen_for_good([SLOW], [begun()]) == {}
