"""Where native code holds the GIL: the call in the user's words, and its file."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import cause, in_tests
from builders import world as built

from pytest_multihost import faults
from pytest_multihost.core.blame.native_call import native_call
from pytest_multihost.testing import (
    Activity,
    Dump,
    Frame,
    RankSnapshot,
    SourceContext,
    ThreadStack,
    WorldResult,
    WorldSnapshot,
    make_event,
    make_spec,
)

LIBRARY = "/venv/lib/python3.11/site-packages"
SAVE = (
    Frame(f"{LIBRARY}/torch/serialization.py", 811, "__init__"),
    Frame(f"{LIBRARY}/torch/serialization.py", 781, "_open_zipfile_writer"),
    Frame(f"{LIBRARY}/torch/serialization.py", 966, "save"),
)
OWN = Frame("/t/train.py", 7, "checkpoint")
OPENS = Activity("openat", "/data/run 1/ckpt.pt")


def world(frames: tuple[Frame, ...], activity: Activity | None, **more: object) -> WorldResult:
    """Return a world whose rank 0 holds the GIL at these frames."""
    dump = Dump(0, "faulthandler", (ThreadStack("main", frames, current=True),))
    label = "SLEEPING" if activity is not None and activity.name == "sleep" else "IO"
    seen = RankSnapshot(rank=0, label=label, activity=activity, holds_gil=True)  # type: ignore[arg-type]
    shots = (WorldSnapshot(at_s=9.0, reason="end", ranks=(seen,)),)
    return built(2, **{"history": in_tests(2), "dumps": (dump,), "snapshots": shots, **more})


def words(result: WorldResult, source: str, kind: str = "gil_held") -> str:
    """Return what is said of rank 0 if the user's line has this text."""
    found = cause(kind, [0], waiting=(1,))
    return native_call(found, result, SourceContext("/t", lambda *_: source))


@pytest.mark.parametrize(
    ("frames", "source", "told"),
    [
        ((*SAVE, OWN), "torch.save(model.state_dict(), path)", "in torch.save"),
        ((*SAVE, OWN), "save(model.state_dict(), path)", "in save"),
        ((*SAVE, OWN), "fabric.checkpoint(state)", "in torch.serialization.save"),
        ((*SAVE[:2], OWN), "torch.save(state, path)", "at train.py:7"),
        ((OWN,), "libc.pause()", "in libc.pause"),
        ((OWN,), "libc.read(fd, byref(one), 1)", "at train.py:7"),
        ((OWN,), "", "at train.py:7"),
        ((), "", ""),
    ],
)
def test_the_call_has_the_users_name(frames: tuple[Frame, ...], source: str, told: str) -> None:
    """Or its module's, if his line calls it through something else; a guess is not made."""
    assert words(world(frames, None), source) == told


@pytest.mark.parametrize(
    ("activity", "told"),
    [
        (OPENS, "in torch.save (file ckpt.pt)"),
        (Activity("read", "pipe:[123]"), "in torch.save"),
        (Activity("futex"), "in torch.save"),
        (Activity("sleep", ends_in_s=600.0), "in torch.save"),
    ],
)
def test_the_file_is_the_one_that_the_kernel_shows(activity: Activity, told: str) -> None:
    """A pipe or a lock is none."""
    assert words(world((*SAVE, OWN), activity), "torch.save(state, path)") == told


def test_a_fault_that_slows_a_file_down_names_it() -> None:
    """The rank sleeps before the call, so the kernel does not show the file."""
    slow = faults.slow_io(rank=0, seconds=600, path="*ckpt.pt")
    spec = replace(make_spec(2), faults=(slow,))
    struck = make_event(1.0, 0, "fault", {"index": 0, "fault": "slow_io", "phase": "begun"})
    asleep, reads = Activity("sleep", ends_in_s=600.0), Activity("read", "socket:[1]")
    told = "in torch.save (file *ckpt.pt, which faults.slow_io slows down)"
    for history, activity, expected in (
        ([*in_tests(2), struck], asleep, told),
        ([*in_tests(2), struck], reads, "in torch.save"),
        (in_tests(2), asleep, "in torch.save"),
    ):
        result = world((*SAVE, OWN), activity, spec=spec, history=history)
        assert words(result, "torch.save(state, path)") == expected


def test_another_kind_of_hang_has_no_native_call() -> None:
    """Its culprit is not in native code that holds the GIL."""
    assert words(world((*SAVE, OWN), OPENS), "torch.save(state, path)", "straggler") == ""
