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
from pytest_multihost.rank.points import Binding, Points, Send, observe_files, set_points
from pytest_multihost.rank.recorder import Recorder
from pytest_multihost.rank.wrap_calls import wrap_calls

_BEFORE_THE_TEST = ("start_skew", "hash_seed")


def _is_before_the_test(fault: Fault) -> bool:
    return fault.kind in _BEFORE_THE_TEST or fault.at.point == "rendezvous"


def delay_start(spec: RankSpec, send: Send) -> None:
    """Come to the rendezvous as late as the faults say; send those that are performed already."""
    for index, fault in enumerate(spec.world.faults):
        if _is_before_the_test(fault) and spec.rank in fault.ranks:
            at = fault.at.record()
            send("fault", index=index, fault=fault.kind, at=at, phase="begun", **_detail(fault))
    if seconds := _start_skew_s(spec.world.faults, spec.rank):
        sleep(seconds)


def _start_skew_s(faults: Iterable[Fault], rank: int) -> float:
    """Return how many seconds late a rank is to come to the rendezvous."""
    skews = (each for each in faults if each.kind == "start_skew" and rank in each.ranks)
    return float(sum(each.params["seconds"] for each in skews))


def _detail(fault: Fault) -> dict[str, Any]:
    """Return the details of a fault of the network, which the server has performed."""
    after_s = fault.params.get("heals_after")
    until = {} if after_s is None else {"until_s": now() + after_s}
    return {"network": "before"} | until if fault.kind in NETWORK_KINDS else {}


def bind_faults(
    spec: RankSpec, kinds: Mapping[str, FaultKind], recorder: Recorder, send: Send
) -> Points:
    """Return the points of this rank, with its faults bound to them. Nothing is replaced yet.

    Args:
        spec: This rank.
        kinds: All kinds of faults, by name.
        recorder: Its listeners are called when operations begin.
        send: Sends an event to the controller.
    """
    bindings = [
        Binding(index, fault, kinds[fault.kind])
        for index, fault in enumerate(spec.world.faults)
        if spec.rank in fault.ranks and not _is_before_the_test(fault)
    ]
    points = Points(spec, send, bindings, sends_all=spec.world.tells_points)
    if bindings or points.sends_all:
        set_points(points)
        recorder.on_begin.append(points.begin_operation)
        points.healing.callback(recorder.on_begin.remove, points.begin_operation)
    return points


def start_faults(points: Points, more_modules: Iterable[Any] = ()) -> None:
    """Wrap the functions whose calls are points, and pass the start of the test.

    Args:
        points: This rank's.
        more_modules: Modules of the test that are not in `sys.modules`.

    Raises:
        SettingError: There is no such function; names the nearest.
    """
    faults = [each.fault for each in points.bindings]
    for target in _named(faults, "call"):
        on_call = partial(points.pass_point, "call", target)
        wrap_calls(load_target(target), on_call, points.healing, more_modules=more_modules)
    if patterns := ["*"] if points.sends_all else _named(faults, "io"):
        observe_files(points, patterns)
    if points.bindings:
        points.pass_point("start")


def _named(faults: Iterable[Fault], point: str) -> list[str]:
    return list(dict.fromkeys(each.at.name for each in faults if each.at.point == point))
