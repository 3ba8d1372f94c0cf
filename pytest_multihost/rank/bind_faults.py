"""Bind a world's faults to the points that this rank passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from time import sleep  # by name: the test may replace it in its module
from typing import Any

from pytest_multihost.model.clock import now
from pytest_multihost.model.fault import NETWORK_KINDS, Fault
from pytest_multihost.model.spec import RankSpec
from pytest_multihost.nemesis import FaultKind
from pytest_multihost.nemesis.interpose import load_target
from pytest_multihost.rank.points import Binding, Points, Tell, enter_points, watch_files
from pytest_multihost.rank.recorder import Recorder
from pytest_multihost.rank.wrap_calls import watch_calls

_BEFORE_THE_TEST = ("start_skew", "hash_seed")


def _is_before_the_test(fault: Fault) -> bool:
    return fault.kind in _BEFORE_THE_TEST or fault.at.point == "rendezvous"


def come_late(spec: RankSpec, tell: Tell) -> None:
    """Come to the rendezvous as late as the world's faults want it; tell of what came before."""
    for index, fault in enumerate(spec.world.faults):
        if _is_before_the_test(fault) and spec.rank in fault.ranks:
            at = fault.at.record()
            tell("fault", index=index, fault=fault.kind, at=at, phase="begun", **_detail(fault))
    if seconds := _start_skew_s(spec.world.faults, spec.rank):
        sleep(seconds)


def _start_skew_s(faults: Iterable[Fault], rank: int) -> float:
    """Return how many seconds late a rank is to come to the rendezvous."""
    skews = (each for each in faults if each.kind == "start_skew" and rank in each.ranks)
    return float(sum(each.params["seconds"] for each in skews))


def _detail(fault: Fault) -> dict[str, Any]:
    """Return what is to be told of a fault of the network that the server has let happen."""
    after_s = fault.params.get("heals_after")
    until = {} if after_s is None else {"until_s": now() + after_s}
    return {"network": "before"} | until if fault.kind in NETWORK_KINDS else {}


def arm(spec: RankSpec, kinds: Mapping[str, FaultKind], recorder: Recorder, tell: Tell) -> Points:
    """Return the points of this rank, with its faults bound to them. Nothing is replaced yet.

    Args:
        spec: Its place in the world.
        kinds: What faults there are, by name.
        recorder: Knows when operations begin.
        tell: Tells the controller.
    """
    bindings = [
        Binding(index, fault, kinds[fault.kind])
        for index, fault in enumerate(spec.world.faults)
        if spec.rank in fault.ranks and not _is_before_the_test(fault)
    ]
    points = Points(spec, tell, bindings, tells_all=spec.world.tells_points)
    if bindings or points.tells_all:
        enter_points(points)
        recorder.on_begin.append(points.begin_operation)
        points.healing.callback(recorder.on_begin.remove, points.begin_operation)
    return points


def start(points: Points, beside: Iterable[Any] = ()) -> None:
    """Replace the functions that have to be watched, and pass the start of the test.

    Args:
        points: This rank's.
        beside: Modules of the test that are not in `sys.modules`.

    Raises:
        SettingError: There is no such function; names the nearest.
    """
    faults = [each.fault for each in points.bindings]
    for target in _named(faults, "call"):
        on_call = partial(points.pass_point, "call", target)
        watch_calls(load_target(target), on_call, points.healing, beside=beside)
    if patterns := ["*"] if points.tells_all else _named(faults, "io"):
        watch_files(points, patterns)
    if points.bindings:
        points.pass_point("start")


def _named(faults: Iterable[Fault], point: str) -> list[str]:
    return list(dict.fromkeys(each.at.name for each in faults if each.at.point == point))
