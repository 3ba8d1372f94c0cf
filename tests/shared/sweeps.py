"""A sweep made by hand: one of each sort of weakness, and what else a report of it must say."""

from __future__ import annotations

from dataclasses import replace

from pytest_multihost import at, faults
from pytest_multihost.extensions.sweep.result import (
    Disturbance,
    DisturbedRun,
    LeftOut,
    SweepPlan,
    SweepResult,
    UnsteadyRun,
    Weakness,
)
from pytest_multihost.testing import Fault, OperationName, Place, Point, RecordedPoint

PRIMARY, OTHERS = (0,), (1, 2, 3)
RENAMES = Place("ckpt.py", 31, "commit", "os.rename(tmp, final)")
LISTS = Place("ckpt.py", 52, "latest", "steps = os.listdir(root)")
DRAWS = Place("train.py", 12, "train", "for batch in loader:")
WAITS = Place("ckpt.py", 36, "save", "dist.barrier()")
REDUCES = Place("train.py", 14, "train", "dist.all_reduce(loss)")
READS = Place("ckpt.py", 60, "restore", "while not marker.exists():")
GATHERS = Place("ckpt.py", 55, "restore", "dist.all_gather_object(steps, mine)")
WORLD = (0, 1, 2, 3)


def disturbance(
    family: str, fault: Fault, role: tuple[int, ...], where: Place | None, number: int = 0
) -> Disturbance:
    """Return a disturbance of the first rank of a role."""
    passed = RecordedPoint(role[0], fault.at, span=number, where=where)
    return Disturbance(family, fault, role, passed, class_=number)


def hold(rank: int, point: Point) -> Fault:
    """Return a hold of a rank."""
    return faults.hold(rank=rank, at=point)


RENAME = at.io("*/ckpt/step_5.tmp", call="rename")
FAILS = DisturbedRun(
    disturbance=disturbance("fails", faults.fails(rank=0, at=RENAME), PRIMARY, RENAMES, 4),
    outcome="left waiting",
    culprit=RENAMES,
    waiting=WAITS,
    waiting_ranks=OTHERS,
    culprits=PRIMARY,
    operation=OperationName("barrier", 4, WORLD),
    kind="raised",
    summary="rank 0 raised OSError while ranks 1-3 wait for it in barrier #4 (world group)",
    error="OSError: [Errno 116] Stale file handle: '/tmp/run/ckpt/step_5.tmp'",
    detected_by="raise",
    seconds=0.7,
    token="7f3a",  # noqa: S106 - no secret
    directory="2026-11-23T00-00-00Z-4711/test_ckpt.py-test_save-4-gloo-1f3a/weakness-1",
)
LISTING = faults.shuffled_listing(
    rank=1, path="*/ckpt/*", at=at.io("*/ckpt", call="listdir", nth=2)
)
DIFFERS = DisturbedRun(
    disturbance=disturbance("differs", LISTING, OTHERS, LISTS, 6),
    outcome="hung",
    culprit=READS,
    waiting=GATHERS,
    waiting_ranks=(0, 2, 3),
    culprits=(1,),
    operation=OperationName("all_gather_object", 2, WORLD),
    kind="straggler",
    summary="rank 1 never reached all_gather_object #2 (world group)",
    detected_by="proof",
    seconds=2.4,
    token="88c1",  # noqa: S106 - no secret
)
LATE = DisturbedRun(
    disturbance=disturbance("late", hold(0, at.collective("all_reduce", nth=3)), PRIMARY, REDUCES),
    outcome="timed out",
    culprit=REDUCES,
    waiting=REDUCES,
    waiting_ranks=OTHERS,
    culprits=PRIMARY,
    operation=OperationName("all_reduce", 3, WORLD),
    kind="straggler",
    summary="rank 0 was late for all_reduce #3 (world group)",
    seconds=3.1,
    token="c0de",  # noqa: S106 - no secret
)


def harmless(outcome: str, family: str = "late", nth: int = 1) -> DisturbedRun:
    """Return a run that shows no weakness."""
    fault = hold(0, at.collective("all_reduce", nth=nth))
    made = disturbance(family, fault, PRIMARY, REDUCES, nth)
    return DisturbedRun(disturbance=made, outcome=outcome, seconds=0.1)  # type: ignore[arg-type]


RUNS = (
    FAILS,
    replace(FAILS, disturbance=disturbance("late", hold(0, RENAME), PRIMARY, RENAMES, 4)),
    DIFFERS,
    LATE,
    *(harmless("survived", nth=nth) for nth in range(1, 6)),
    harmless("told", "fails"),
    harmless("split", "differs"),
    harmless("not reached", nth=9),
)
PLAN = SweepPlan(
    roles=(PRIMARY, OTHERS),
    point_count=31,
    disturbances=tuple(each.disturbance for each in RUNS),
    brute_force=240,
)
SWEEP = SweepResult(
    run_id="2026-11-23T00-00-00Z-4711",
    nodeid="test_ckpt.py::test_save[4-gloo]",
    backend="gloo",
    world_size=4,
    seed=8123,
    status="failed",
    points={"io": (9, 4, 4, 4), "collective": (4, 2, 2, 2)},
    plan=PLAN,
    runs=RUNS,
    weaknesses=(
        Weakness(witness=FAILS, shown_by=(0, 1), repeated=(5, 5)),
        Weakness(witness=DIFFERS, shown_by=(2,), repeated=(5, 4)),
        Weakness(
            witness=LATE, shown_by=(3,), repeated=(5, 5), accepted="the job ends after 30 min"
        ),
    ),
    left_out=(LeftOut("budget", "late", 7), LeftOut("budget", "differs", 2)),
    unmet_acceptances=("test_ckpt.py: barrier at ckpt.py:80",),
    budget_s=60.0,
    duration_s=58.24,
    lanes=2,
    started_at="2026-11-23T00:00:00Z",
    environment={"python": "3.11.7", "torch": "2.13.0", "jax": None},
)
UNSURE = replace(
    SWEEP,
    status="passed",
    weaknesses=(
        Weakness(
            witness=DIFFERS,
            shown_by=(1, 2),
            repeated=(5, 0),
            unsteady=(UnsteadyRun(1, (3, 0)),),
        ),
    ),
    left_out=(),
    unmet_acceptances=(),
)
SOUND = replace(
    SWEEP, status="passed", runs=RUNS[4:9], weaknesses=(), left_out=(), unmet_acceptances=()
)
MISMATCHED = replace(
    DIFFERS,
    outcome="mismatched",
    culprit=GATHERS,
    culprits=(1,),
    waiting=REDUCES,
    waiting_ranks=(0, 2, 3),
    operation=OperationName("all_reduce", 3, WORLD),
    kind="mismatch",
    summary=(
        "rank 1 entered all_gather f32[4], ranks 0,2-3 entered all_reduce f32[4] as 3rd collective"
        " of the world group"
    ),
    error=None,
    detected_by=None,
    directory=None,
)
BROKEN = replace(
    FAILS,
    outcome="wrong",
    wrong_by="files",
    culprit=Place("ckpt.py", 33, "commit", "except OSError:"),
    has_decided=True,
    waiting=None,
    waiting_ranks=(),
    operation=None,
    kind=None,
    summary="ckpt/step_5 lacks shard-0.pt, although ckpt/latest names it",
    error=None,
    detected_by=None,
    directory=None,
)
WRONG = replace(
    SWEEP,
    runs=(BROKEN, MISMATCHED),
    weaknesses=(
        Weakness(witness=BROKEN, shown_by=(0,), repeated=(5, 5)),
        Weakness(witness=MISMATCHED, shown_by=(1,), repeated=(5, 5)),
    ),
    left_out=(),
    unmet_acceptances=(),
)
NOT_SWEPT = replace(
    SOUND, status="not swept", runs=(), reason="the test does not pass undisturbed: 1 rank failed"
)
