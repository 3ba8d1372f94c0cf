"""Gates: all ranks pass them together, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_multihost.testing import Step, exited, raised, well_behaved

Run = Callable[..., Any]


def late(rank: int, *, at: int, after_s: float) -> list[Step]:
    """Return a well-behaved rank whose step number `at` and all after it come later."""
    steps = well_behaved(rank)
    moved = [
        Step(step.rank, step.kind, step.detail, after_s=after_s, on=step.on)
        for step in steps[at:]
        if step.on == steps[at].on
    ]
    return [step for step in steps if step.on != steps[at].on or step in steps[:at]] + moved


READY, PARKED, DONE = 2, 7, 10
"""Where these steps stand in the script of a well-behaved rank."""


def test_each_rank_passes_the_gates_in_order(run: Run) -> None:
    """Every rank is let through go, teardown and exit once each, in this order."""
    ran = run([*well_behaved(0), *well_behaved(1), *well_behaved(2)], size=3)
    for rank in range(3):
        assert [gate for _, gate in ran.gates(rank=rank)] == ["go", "teardown", "exit"]


@pytest.mark.parametrize(("step", "gate"), [(READY, "go"), (PARKED, "teardown"), (DONE, "exit")])
def test_a_gate_opens_for_all_when_the_last_rank_stands_before_it(
    run: Run, step: int, gate: str
) -> None:
    """Nobody passes before the last rank has come, and then all pass at once."""
    ran = run([*well_behaved(0), *well_behaved(1), *late(2, at=step, after_s=3.0)], size=3)
    opened = {(at_s, rank) for at_s, rank, name in ran.gates() if name == gate}
    assert opened == {(3.0, 0), (3.0, 1), (3.0, 2)}


def test_a_dead_rank_holds_no_gate_shut(run: Run) -> None:
    """The others go through teardown and exit without a rank that died."""
    death = Step(1, "exited", exited(signal=9), after_s=0.5, on="go")
    ran = run([*well_behaved(0), *well_behaved(1, stays_in="call"), death])
    assert ran.gates(rank=0) == [(0.0, "go"), (0.5, "teardown"), (0.5, "exit")]
    # Its end is in the history before the gates: nothing may be sent to a process that is gone.
    assert ran.gates(rank=1) == [(0.0, "go")]


def test_an_interrupted_rank_holds_no_gate_shut(run: Run) -> None:
    """A rank that an error outside of pytest's phases has ended only waits for the exit."""
    interrupted = Step(1, "interrupted", {"error": raised("Exit: enough")}, on="go")
    leaves = Step(1, "exited", exited(), on="exit")
    ran = run([*well_behaved(0), *well_behaved(1, stays_in="call"), interrupted, leaves])
    assert [gate for _, gate in ran.gates(rank=0)] == ["go", "teardown", "exit"]
    assert ran.result.ending == "self"


def test_all_ranks_leave_at_once(run: Run) -> None:
    """Without a service in rank 0 nobody waits for anybody at the exit."""
    slow_exit = [*well_behaved(1)[:-1], Step(1, "exited", exited(), after_s=2.0, on="exit")]
    ran = run([*well_behaved(0), *slow_exit])
    assert ran.gates(rank=0)[-1] == ran.gates(rank=1)[-1] == (0.0, "exit")


def test_the_primary_leaves_last_where_it_hosts_a_service(run: Run) -> None:
    """Rank 0 may leave only when the processes of all others have ended."""
    slow_exit = [*well_behaved(1)[:-1], Step(1, "exited", exited(), after_s=2.0, on="exit")]
    ran = run([*well_behaved(0), *slow_exit], primary_leaves_last=True)
    assert ran.gates(rank=1)[-1] == (0.0, "exit")
    assert ran.gates(rank=0)[-1] == (2.0, "exit")


def test_a_lone_primary_can_leave(run: Run) -> None:
    """In a world of one there is nobody to wait for."""
    ran = run(well_behaved(0), size=1, primary_leaves_last=True)
    assert ran.result.ending == "self"
