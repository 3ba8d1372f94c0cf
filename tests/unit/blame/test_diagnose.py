"""Who is to blame: a table of where ranks stood, and the one cause that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import builders
import pytest
from builders import operation, stands

from pytest_multihost.core.blame.cause import Cause
from pytest_multihost.core.blame.causes import find_causes
from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.blame.wait_graph import graph_of, with_clashes
from pytest_multihost.testing import (
    CALLEE_SCOPE,
    JAX_SHUTDOWN,
    KEY_WAITS,
    Child,
    Operation,
    Scope,
)

ALL = (0, 1, 2, 3)


collective = partial(builders.collective, group=ALL)


def transfer(name: str, peer: int | None, sequence: int = 1, **more: object) -> Operation:
    """Return a send or receive that a thread waits in."""
    return operation(name, kind="transfer", group=ALL, sequence=sequence, peer=peer, **more)


def key(detail: str, *, since_s: float = 1.0) -> Operation:
    """Return the wait for a key of a store."""
    return operation("store.get", kind="wait", group=ALL, detail=detail, since_s=since_s)


def done(operation: Operation) -> Operation:
    """Return the operation as one that is over."""
    return replace(operation, ended_s=operation.since_s + 0.1, waited_s=None)


@dataclass(frozen=True)
class Case:
    """Where the ranks stood, and what follows."""

    states: Iterable[RankState]
    kind: str
    culprits: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    cycle: tuple[int, ...] = ()
    confidence: str = "certain"


FIRST = collective(1)
SECOND = collective(2)
PAIR = collective(1, group=(0, 1))
BROKEN_PAIR = replace(done(PAIR), failed=True, error="DistStoreError: Too many open files")
BARRIER_OF_ALL = collective(1, name="barrier", group=(0, 1, 2))
OTHER_PAIR = collective(1, group=(1, 2))
BARRIER = collective(1, name="barrier")
TOOL = Child(9, program="sleep")
FROM_0 = collective(1, name="broadcast", root=0)
FROM_1 = collective(1, name="broadcast", root=1)
ASYNC = replace(FIRST, waited_s=None)
GIVEN_UP = replace(done(collective(1, group=ALL, ordinal=1)), failed=True)

SAVE = collective(1, name="wait_at_barrier", scope=Scope("barrier", "save"))
EVAL = collective(1, name="wait_at_barrier", scope=Scope("barrier", "eval"), since_s=2.0)
STEP = collective(1, name="jit_step", detail="all_reduce f32[8]")
STEP_OF_13 = replace(STEP, detail="all_reduce f32[13]")
TRAIN = replace(STEP, name="jit_train")

OWN_KEY = replace(key("ready"), scope=Scope("in-store", "port 1"))
DOOR = replace(key("socket:[7]"), name="accept4", sequence=0, scope=Scope("socket"))

SHUTDOWN = collective(1, name="rpc.shutdown", group=(0, 1, 2), scope=Scope("rpc"))

LEAVES = collective(1, name=JAX_SHUTDOWN, scope=Scope("jax.distributed"))


def jax_key(detail: str) -> Operation:
    """Return the wait for a key of jax's coordination service."""
    return replace(key(detail), name=KEY_WAITS[0])


SHUTDOWN_OF_TWO = replace(SHUTDOWN, group=(0, 1))


def call(caller: int, peer: int, **more: object) -> Operation:
    """Return the call of a function of another rank."""
    return transfer("rpc_sync(f)", peer, scope=Scope("rpc", str(caller)), **more)


def runs(thread: int = 7) -> Operation:
    """Return a function that another rank has called, while it runs."""
    return replace(key("f"), name="run", scope=CALLEE_SCOPE, waited_s=None, thread=thread)


CASES = {
    "one of four is at another barrier: it is the odd one": Case(
        [stands(0, SAVE), stands(1, EVAL), stands(2, SAVE), stands(3, SAVE)],
        "mismatch",
        (1,),
        (0, 2, 3),
    ),
    "one of four is at a barrier, the others in a collective of the runtime": Case(
        [stands(0, FIRST), stands(1, FIRST), stands(2, FIRST), stands(3, SAVE)],
        "mismatch",
        (3,),
        (0, 1, 2),
    ),
    "one of four shuts down, the others wait for one key: it will not set that": Case(
        [stands(0, LEAVES), *(stands(rank, jax_key("weights/2")) for rank in (1, 2, 3))],
        "mismatch",
        (0,),
        (1, 2, 3),
        confidence="likely",
    ),
    "three of four shut down: the key of the last one may be wrong": Case(
        [*(stands(rank, LEAVES) for rank in (0, 1, 2)), stands(3, jax_key("weights/2"))],
        "deadlock",
        waiting=ALL,
        cycle=(3, 1),
        confidence="likely",
    ),
    "one of four is at a barrier, the others wait for a key: it may set that later": Case(
        [stands(0, SAVE), *(stands(rank, jax_key("weights/2")) for rank in (1, 2, 3))],
        "deadlock",
        waiting=ALL,
        cycle=(0, 1),
        confidence="likely",
    ),
    "two of four are at another barrier: either pair may be right": Case(
        [stands(0, SAVE), stands(1, EVAL), stands(2, SAVE), stands(3, EVAL)],
        "deadlock",
        waiting=ALL,
        cycle=(0, 1, 2, 3),
    ),
    "one of four is at another barrier, and one has not come to either": Case(
        [stands(0, SAVE), stands(1, EVAL), stands(2, SAVE), stands(3, label="SLEEPING")],
        "straggler",
        (3,),
        (0, 1, 2),
    ),
    "a rank at the barrier of three is late for one of all: the others wait in it": Case(
        [
            stands(0, SAVE),
            stands(1, collective(1, group=(0, 1, 2), scope=Scope("barrier", "of three"))),
            stands(2, SAVE),
            stands(3, SAVE),
        ],
        "deadlock",
        waiting=ALL,
        cycle=(1, 2),
    ),
    "a program is late, and is called otherwise on another rank": Case(
        [stands(0, STEP), stands(1, TRAIN), stands(2, STEP), stands(3, label="SLEEPING")],
        "straggler",
        (3,),
        (0, 1, 2),
    ),
    "a program of one rank has other sizes": Case(
        [stands(0, STEP), stands(1, STEP), stands(2, STEP_OF_13), stands(3, STEP)],
        "mismatch",
        (2,),
        (0, 1, 3),
    ),
    "one rank is in a program, and the others at a barrier of the same group": Case(
        [stands(0, BARRIER), stands(1, BARRIER), stands(2, STEP), stands(3, BARRIER)],
        "mismatch",
        (2,),
        (0, 1, 3),
    ),
    "a rank has raised, and others look for what it would have done": Case(
        [
            stands(0, condition="raised", since_s=1.0),
            stands(1, label="SLEEPING", polls=True),
            stands(2, label="SLEEPING", polls=True),
            stands(3, label="SLEEPING"),
        ],
        "raised",
        (0,),
        (1, 2),
        confidence="likely",
    ),
    "a rank was killed as planned, and all others look for what it would have done": Case(
        [
            stands(0, condition="died", is_killed=True, since_s=1.0),
            stands(1, label="SLEEPING", polls=True),
            stands(2, label="SLEEPING", polls=True),
        ],
        "died",
        (0,),
        (1, 2),
        confidence="likely",
    ),
    "a rank was killed as planned, and who looks for something may look for another's": Case(
        [
            stands(0, condition="died", is_killed=True, since_s=1.0),
            stands(1, label="SLEEPING", polls=True),
            stands(2, label="SLEEPING"),
        ],
        "stuck",
        (1, 2),
        (),
        confidence="likely",
    ),
    "a rank was killed as planned, and nobody waits for it": Case(
        [
            stands(0, FIRST),
            stands(1, label="SLEEPING"),
            stands(2, done(FIRST), condition="died", is_killed=True, since_s=1.0),
        ],
        "straggler",
        (1,),
        (0,),
    ),
    "of two that have failed the first is what others look for": Case(
        [
            stands(0, condition="raised", since_s=2.0),
            stands(1, condition="died", since_s=1.0),
            stands(2, label="SLEEPING", polls=True),
        ],
        "died",
        (1,),
        (2,),
    ),
    "a called function runs, while its rank waits for the caller": Case(
        [stands(0, call(0, 1)), stands(1, SHUTDOWN, runs()), stands(2, SHUTDOWN)],
        "straggler",
        (1,),
        (0, 2),
    ),
    "a called function that calls back waits itself": Case(
        [
            stands(0, call(0, 1)),
            stands(1, SHUTDOWN, runs(), call(1, 0, thread=7)),
            stands(2, SHUTDOWN),
        ],
        "deadlock",
        waiting=(0, 1, 2),
        cycle=(0, 1),
    ),
    "a called function calls back one that runs: its rank's shutdown is beside the point": Case(
        [
            stands(0, call(0, 1), runs(8)),
            stands(1, SHUTDOWN_OF_TWO, runs(), call(1, 0, thread=7)),
        ],
        "straggler",
        (0,),
        (1,),
    ),
    "both run a function that calls the other, which has no thread left": Case(
        [
            stands(0, call(0, 1), runs(), call(0, 1, sequence=2, thread=7)),
            stands(1, call(1, 0), runs(), call(1, 0, sequence=2, thread=7)),
        ],
        "deadlock",
        waiting=(0, 1),
        cycle=(0, 1),
    ),
    "a called function is in a collective that all have entered": Case(
        [
            stands(0, call(0, 1), PAIR),
            stands(1, SHUTDOWN_OF_TWO, runs(), replace(PAIR, thread=7)),
        ],
        "transport",
        waiting=(0, 1),
        confidence="likely",
    ),
    "a called function runs for good, but another rank keeps the others": Case(
        [stands(0), stands(1, SHUTDOWN, runs()), stands(2, call(2, 1))],
        "straggler",
        (0,),
        (1, 2),
    ),
    "all have called: a function runs, and nothing else is missing": Case(
        [stands(0, SHUTDOWN, call(0, 1)), stands(1, SHUTDOWN, runs())],
        "straggler",
        (1,),
        (0,),
    ),
    "late": Case([stands(0), *(stands(r, FIRST) for r in (1, 2, 3))], "straggler", (0,), (1, 2, 3)),
    "two late": Case(
        [stands(0), stands(1), stands(2, FIRST), stands(3, FIRST)], "straggler", (0, 1), (2, 3)
    ),
    "late for the second": Case(
        [stands(0, done(FIRST)), *(stands(r, done(FIRST), SECOND) for r in (1, 2, 3))],
        "straggler",
        (0,),
        (1, 2, 3),
    ),
    "late and restless": Case(
        [stands(0, is_restless=True), stands(1, FIRST), stands(2, FIRST), stands(3, FIRST)],
        "livelock",
        (0,),
        (1, 2, 3),
    ),
    "finished": Case(
        [stands(0, done(FIRST), condition="finished", since_s=2.0), stands(1, done(FIRST), SECOND)],
        "finished",
        (0,),
        (1,),
    ),
    "finished, and nobody waits for it: the other is stuck": Case(
        [stands(0, condition="finished", since_s=2.0), stands(1, label="BLOCKED")],
        "stuck",
        (1,),
        confidence="likely",
    ),
    "raised": Case(
        [stands(0, condition="raised", since_s=1.5), stands(1, FIRST), stands(2, FIRST)],
        "raised",
        (0,),
        (1, 2),
    ),
    "raised inside the operation": Case(
        [
            stands(0, replace(done(FIRST), failed=True), condition="raised", since_s=1.5),
            stands(1, FIRST),
        ],
        "raised",
        (0,),
        (1,),
    ),
    "raised after the operation: not for that": Case(
        [stands(0, done(FIRST), condition="raised", since_s=9.0), stands(1, FIRST)],
        "transport",
        (),
        (1,),
        confidence="likely",
    ),
    "died": Case(
        [stands(0, FIRST), stands(1, condition="died", since_s=3.0), stands(2, FIRST)],
        "died",
        (1,),
        (0, 2),
    ),
    "died inside the operation": Case(
        [stands(0, FIRST), stands(1, FIRST, condition="died", since_s=3.0)], "died", (1,), (0,)
    ),
    "died, and nobody waited": Case(
        [stands(0, label="RUNNING"), stands(1, condition="died", since_s=3.0)], "died", (1,)
    ),
    "the first of two that died": Case(
        [
            stands(0, condition="died", since_s=3.0),
            stands(1, condition="died", since_s=2.0),
            stands(2),
        ],
        "died",
        (1,),
    ),
    "stopped inside the operation": Case(
        [stands(0, FIRST), stands(1, FIRST, condition="stopped"), stands(2, FIRST)],
        "stopped",
        (1,),
        (0, 2),
    ),
    "the first rank is stopped inside the operation": Case(
        [stands(0, FIRST, condition="stopped"), stands(1, FIRST), stands(2, FIRST)],
        "stopped",
        (0,),
        (1, 2),
    ),
    "the first two ranks are stopped inside the operation": Case(
        [
            stands(0, FIRST, condition="stopped"),
            stands(1, FIRST, condition="stopped"),
            stands(2, FIRST),
        ],
        "stopped",
        (0, 1),
        (2,),
    ),
    "stopped before the operation": Case(
        [stands(0, FIRST), stands(1, condition="stopped")], "stopped", (1,), (0,)
    ),
    "native code holds the GIL": Case(
        [stands(0, FIRST), stands(1, condition="gil_held")], "gil_held", (1,), (0,)
    ),
    "a chain over two groups": Case(
        [stands(0, PAIR), stands(1, OTHER_PAIR), stands(2, label="SLEEPING")],
        "straggler",
        (2,),
        (0, 1),
    ),
    "order over two groups": Case(
        [
            stands(0, collective(1, group=(0, 1))),
            stands(1, collective(1, group=(1, 2))),
            stands(2, collective(1, group=(0, 2))),
        ],
        "deadlock",
        (),
        (0, 1, 2),
        (0, 1, 2),
    ),
    "a bystander of a deadlock waits too": Case(
        [
            stands(0, collective(1, group=(0, 1))),
            stands(1, collective(1, group=(0, 1), ordinal=1)),
            stands(2, collective(1, group=(1, 2))),
        ],
        "deadlock",
        (),
        (0, 1, 2),
        (0, 1),
    ),
    "mismatch": Case(
        [stands(0, FIRST), stands(1, BARRIER), stands(2, FIRST), stands(3, FIRST)],
        "mismatch",
        (1,),
        (0, 2, 3),
    ),
    "mismatch, and one has raised before": Case(
        [
            stands(0, FIRST),
            stands(1, condition="raised", since_s=3.0),
            stands(2, BARRIER),
            stands(3, FIRST),
        ],
        "raised",
        (1,),
        (0, 2, 3),
    ),
    "mismatch, and one has died before": Case(
        [
            stands(0, FIRST),
            stands(1, condition="died", since_s=3.0),
            stands(2, BARRIER),
            stands(3, FIRST),
        ],
        "died",
        (1,),
        (0, 2, 3),
    ),
    "mismatch after transfers, which are counted apart": Case(
        [
            stands(0, done(transfer("send", 1)), FIRST),
            stands(1, done(transfer("recv", 0)), FIRST),
            stands(2, BARRIER),
        ],
        "mismatch",
        (2,),
        (0, 1),
    ),
    "mismatch, a tie": Case([stands(0, FIRST), stands(1, BARRIER)], "mismatch", (), (0, 1)),
    "different roots": Case(
        [stands(0, FROM_0), stands(1, FROM_1), stands(2, FROM_0)], "mismatch", (1,), (0, 2)
    ),
    "different roots, and some have left": Case(
        [
            stands(0, FROM_0),
            stands(1, done(FROM_0), condition="finished"),
            stands(2, FROM_1),
            stands(3, done(FROM_0), label="SLEEPING"),
        ],
        "mismatch",
        (2,),
        (0,),
    ),
    "different roots, and all others have left": Case(
        [
            stands(0, done(FROM_0), condition="finished"),
            stands(1, FROM_1),
            stands(2, done(FROM_0), condition="finished"),
        ],
        "mismatch",
        (1,),
        (),
    ),
    "one root and none told": Case(
        [stands(0, FROM_0), stands(1, replace(FROM_0, root=None))],
        "transport",
        (),
        (0, 1),
        confidence="likely",
    ),
    "variants of all_gather can meet": Case(
        [
            stands(0, collective(1, name="all_gather")),
            stands(1, collective(1, name="all_gather_into_tensor")),
        ],
        "transport",
        (),
        (0, 1),
        confidence="likely",
    ),
    "the harness's barriers of different names": Case(
        [
            stands(0, collective(1, name="world.barrier", scope=Scope("harness"), detail="a")),
            stands(1, collective(1, name="world.barrier", scope=Scope("harness"), detail="b")),
        ],
        "mismatch",
        (),
        (0, 1),
    ),
    "everybody is there": Case(
        [stands(r, FIRST) for r in ALL], "transport", (), ALL, confidence="likely"
    ),
    "one has left by an exception of its own, and waits elsewhere": Case(
        [
            stands(0, BROKEN_PAIR, BARRIER_OF_ALL, broke=(BROKEN_PAIR,)),
            stands(1, PAIR),
            stands(2, BARRIER_OF_ALL),
        ],
        "transport",
        (0,),
        (1, 2),
        confidence="likely",
    ),
    "one has left another operation by an exception of its own": Case(
        [
            stands(0, BROKEN_PAIR, BARRIER_OF_ALL, broke=(replace(BROKEN_PAIR, ordinal=1),)),
            stands(1, PAIR),
            stands(2, BARRIER_OF_ALL),
        ],
        "transport",
        (),
        (0, 1, 2),
        confidence="likely",
    ),
    "a receive without a send": Case(
        [stands(0, transfer("recv", 1)), stands(1, label="SLEEPING")], "straggler", (1,), (0,)
    ),
    "a receive whose send is there": Case(
        [stands(0, transfer("recv", 1)), stands(1, done(transfer("send", 0)))],
        "transport",
        (),
        (0,),
        confidence="likely",
    ),
    "a receive whose send went to another group": Case(
        [stands(0, transfer("recv", 1, ordinal=1)), stands(1, done(transfer("send", 0)))],
        "straggler",
        (1,),
        (0,),
    ),
    "a receive from a rank whose only message one from any rank has taken": Case(
        [
            stands(0, done(transfer("recv", None)), transfer("recv", 2)),
            stands(1, label="SLEEPING"),
            stands(2, done(transfer("send", 0)), condition="finished", since_s=2.0),
        ],
        "finished",
        (2,),
        (0,),
    ),
    "a receive whose message one from any rank has taken, as the other is still to be sent": Case(
        [
            stands(0, done(transfer("recv", None)), transfer("recv", 2)),
            stands(1, transfer("send", 0)),
            stands(2, done(transfer("send", 0)), condition="finished", since_s=2.0),
        ],
        "finished",
        (2,),
        (0, 1),
    ),
    "a receive whose message one from any rank need not have taken": Case(
        [
            stands(0, done(transfer("recv", None)), transfer("recv", 2)),
            stands(1, done(transfer("send", 0))),
            stands(2, done(transfer("send", 0)), condition="finished", since_s=2.0),
        ],
        "transport",
        (),
        (0,),
        confidence="likely",
    ),
    "of those who might have connected one has failed, and another has long left": Case(
        [
            stands(0, DOOR),
            stands(1, condition="raised", since_s=2.0),
            stands(2, condition="finished", since_s=1.0),
        ],
        "raised",
        (1,),
        (0,),
        confidence="likely",
    ),
    "one that gave up because it was not answered is not who should have connected": Case(
        [
            stands(0, DOOR),
            stands(1, transfer("recv", 0, sequence=0), is_lost=True),
            stands(2, condition="finished", since_s=1.0),
        ],
        "finished",
        (2,),
        (0, 1),
        confidence="likely",
    ),
    "two receives face each other": Case(
        [stands(0, transfer("recv", 1)), stands(1, transfer("recv", 0))],
        "deadlock",
        (),
        (0, 1),
        (0, 1),
    ),
    "a ring of sends": Case(
        [stands(r, transfer("send", (r + 1) % 4)) for r in ALL], "deadlock", (), ALL, ALL
    ),
    "a key that the only other rank does not set": Case(
        [stands(0, label="SLEEPING"), stands(1, key("ready"))],
        "straggler",
        (0,),
        (1,),
        confidence="likely",
    ),
    "a key that a finished rank has not set": Case(
        [stands(0, condition="finished", since_s=1.0), stands(1, key("ready"))],
        "finished",
        (0,),
        (1,),
        confidence="likely",
    ),
    "a key of a store that no other rank has used": Case(
        [stands(0, FIRST), stands(1, OWN_KEY), stands(2, FIRST), stands(3, FIRST)],
        "straggler",
        (1,),
        (0, 2, 3),
        confidence="likely",
    ),
    "keys of one name, each of a store of its own": Case(
        [stands(0, OWN_KEY), stands(1, replace(OWN_KEY, scope=Scope("in-store", "port 2")))],
        "unknown",
        confidence="unknown",
    ),
    "a key of a store that one other rank has used, and that this one does not set": Case(
        [
            stands(0, FIRST),
            stands(1, OWN_KEY),
            stands(2, FIRST),
            stands(3, label="SLEEPING", entered={(ALL, 0, OWN_KEY.scope): 0}),
        ],
        "straggler",
        (3,),
        (0, 1, 2),
    ),
    "a key of a store that the late rank has not come to": Case(
        [stands(0, OWN_KEY), stands(1, FIRST), stands(2, FIRST), stands(3, label="SLEEPING")],
        "straggler",
        (3,),
        (0, 1, 2),
    ),
    "a key of a store that one who has left never used": Case(
        [stands(0, OWN_KEY), *(stands(r, condition="finished", since_s=1.0) for r in (1, 2, 3))],
        "stuck",
        (0,),
        confidence="likely",
    ),
    "a lock of a file": Case(
        [stands(0, FIRST), stands(1, lock_holders=(0,))], "deadlock", (), (0, 1), (0, 1)
    ),
    "who sleeps with a lock is late": Case(
        [stands(0, label="SLEEPING"), stands(1, lock_holders=(0,))], "straggler", (0,), (1,)
    ),
    "a lock that only a child of a rank that waits itself has": Case(
        [stands(0, FIRST), stands(1, lock_holders=(0,), lock_children=((0, TOOL),))],
        "straggler",
        (1,),
        (0,),
    ),
    "a lock that only a child has, whose rank waits for the lock of the other": Case(
        [
            stands(0, label="BLOCKED", lock_holders=(1,)),
            stands(1, label="BLOCKED", lock_holders=(0,), lock_children=((0, TOOL),)),
        ],
        "straggler",
        (1,),
        (0,),
    ),
    "a lock that only a child has, which is in the operation of its rank": Case(
        [
            stands(0, replace(FIRST, child=Child(9, "worker"))),
            stands(1, lock_holders=(0,), lock_children=((0, TOOL),)),
        ],
        "deadlock",
        (),
        (0, 1),
        (0, 1),
    ),
    "a lock that only a child has, while another child is in the operation of its rank": Case(
        [
            stands(0, replace(FIRST, child=Child(8, "worker"))),
            stands(1, lock_holders=(0,), lock_children=((0, TOOL),)),
        ],
        "straggler",
        (1,),
        (0,),
    ),
    "a lock that only a child has, whose rank is late": Case(
        [
            stands(0, label="SLEEPING"),
            stands(1, lock_holders=(0,), lock_children=((0, TOOL),)),
            stands(2, FIRST),
        ],
        "straggler",
        (0,),
        (1, 2),
    ),
    "a lock that only a child has, whose rank nobody else waits for": Case(
        [stands(0, label="SLEEPING"), stands(1, lock_holders=(0,), lock_children=((0, TOOL),))],
        "straggler",
        (0,),
        (1,),
        confidence="likely",
    ),
    "a lock that a rank has that waits for the others, and a child of one of these": Case(
        [
            stands(0, FIRST),
            stands(1, FIRST),
            stands(2, lock_holders=(0, 1), lock_children=((1, TOOL),)),
        ],
        "deadlock",
        (),
        (0, 1, 2),
        (0, 2),
    ),
    "a lock of its own that its child has": Case(
        [stands(0, FIRST), stands(1, lock_holders=(1,), lock_children=((1, TOOL),))],
        "straggler",
        (1,),
        (0,),
    ),
    "a lock that another rank tries to get again and again": Case(
        [stands(0, FIRST), stands(1, lock_holders=(0,), tries_lock=True, is_restless=True)],
        "deadlock",
        (),
        (0, 1),
        (0, 1),
        confidence="likely",
    ),
    "who sleeps with a lock that others poll for is late": Case(
        [
            stands(0, label="SLEEPING"),
            stands(1, lock_holders=(0,), tries_lock=True, is_restless=True),
        ],
        "straggler",
        (0,),
        (1,),
        confidence="likely",
    ),
    "blocked alone": Case(
        [stands(0, label="BLOCKED"), stands(1, condition="finished", since_s=1.0)],
        "stuck",
        (0,),
        confidence="likely",
    ),
    "busy alone": Case(
        [stands(0, label="RUNNING"), stands(1, condition="finished", since_s=1.0)],
        "stuck",
        (0,),
        confidence="likely",
    ),
    "busy at this instant, beside one that is blocked": Case(
        [stands(0, label="RUNNING"), stands(1, label="BLOCKED")],
        "stuck",
        (0, 1),
        confidence="likely",
    ),
    "two try again and again what one has never entered": Case(
        [
            stands(0, label="BLOCKED"),
            stands(1, GIVEN_UP, label="SLEEPING", is_restless=True, retries=GIVEN_UP),
            stands(2, GIVEN_UP, label="RUNNING", is_restless=True, retries=GIVEN_UP),
        ],
        "straggler",
        (0,),
        (1, 2),
        confidence="likely",
    ),
    "one tries again and again what all have entered": Case(
        [
            stands(0, replace(GIVEN_UP, failed=False), label="BLOCKED"),
            stands(1, GIVEN_UP, label="SLEEPING", is_restless=True, retries=GIVEN_UP),
        ],
        "stuck",
        (0, 1),
        confidence="likely",
    ),
    "given up more than once, and then a long sleep": Case(
        [
            stands(0, label="BLOCKED"),
            stands(1, GIVEN_UP, label="SLEEPING", retries=GIVEN_UP),
        ],
        "stuck",
        (0, 1),
        confidence="likely",
    ),
    "given up more than once, and now the others wait for it elsewhere": Case(
        [
            stands(0, BARRIER),
            stands(1, GIVEN_UP, label="RUNNING", is_restless=True, retries=GIVEN_UP),
        ],
        "livelock",
        (1,),
        (0,),
    ),
    "work that runs beside is no wait": Case(
        [stands(0, ASYNC, label="SLEEPING"), stands(1, FIRST, SECOND)],
        "straggler",
        (0,),
        (1,),
    ),
    "another group's traffic is no mismatch": Case(
        [
            stands(0, collective(1, group=(0, 1)), label="BLOCKED"),
            stands(1, label="SLEEPING"),
            stands(2, done(collective(1, group=(2, 3), name="barrier"))),
            stands(3, done(collective(1, group=(2, 3), name="barrier"))),
        ],
        "straggler",
        (1,),
        (0,),
    ),
    "an unknown place in the sequence: those in none are late": Case(
        [
            stands(0, label="SLEEPING"),
            stands(1, replace(FIRST, sequence=0)),
            stands(2, replace(FIRST, sequence=0)),
        ],
        "straggler",
        (0,),
        (1, 2),
        confidence="likely",
    ),
    "unknown places, known members: each has begun with another pair": Case(
        [
            stands(0, collective(0, group=(0, 1))),
            stands(1, collective(0, group=(1, 2))),
            stands(2, collective(0, group=(0, 2))),
        ],
        "deadlock",
        waiting=(0, 1, 2),
        cycle=(0, 1, 2),
        confidence="likely",
    ),
    "one that nobody connects to is late for those who wait for it": Case(
        [stands(0, DOOR), *(stands(r, FIRST) for r in (1, 2, 3))], "straggler", (0,), (1, 2, 3)
    ),
    "one that waits for a connection waits for who is about something else": Case(
        [stands(0, DOOR), stands(1, FIRST), stands(2, FIRST), stands(3, label="SLEEPING")],
        "straggler",
        (3,),
        (0, 1, 2),
    ),
    "members not known: who has left the test is blamed where nobody else is late": Case(
        [
            stands(0, condition="finished", since_s=1.0),
            stands(1, collective(0, group=(0, 1), has_members=False, since_s=2.0)),
        ],
        "finished",
        (0,),
        (1,),
        confidence="likely",
    ),
    "members not known: who has left the test may have had no part in it": Case(
        [
            stands(0, condition="finished", since_s=1.0),
            stands(1, label="SLEEPING"),
            stands(2, collective(0, group=(0, 1, 2), has_members=False, since_s=2.0)),
        ],
        "straggler",
        (1,),
        (2,),
        confidence="likely",
    ),
    "unknown places, members not known of all: they may be in the same": Case(
        [
            stands(0, collective(0, group=(0, 1))),
            stands(1, collective(0, group=(0, 1, 2), has_members=False)),
            stands(2, collective(0, group=(0, 1, 2), has_members=False)),
        ],
        "transport",
        waiting=(0,),
        confidence="likely",
    ),
    "an unknown place in the sequence: not at one that only the other has come to": Case(
        [
            stands(0, collective(1, name="process_allgather", group=(0, 1))),
            stands(1, collective(0, name="all_reduce", group=(0, 1))),
        ],
        "deadlock",
        (),
        (0, 1),
        (0, 1),
        "likely",
    ),
    "one program under three names": Case(
        [
            stands(0, collective(1, name="process_allgather")),
            stands(1, collective(1, name="assert_equal")),
            stands(2, collective(1, name="sync_global_devices")),
            stands(3),
        ],
        "straggler",
        (3,),
        (0, 1, 2),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_cause_is_exactly_this(name: str) -> None:
    """Kind, culprits, who waits, and how sure that is: no name more than the evidence carries."""
    case = CASES[name]
    found = find_causes(tuple(case.states))[0]
    assert (found.kind, found.culprits, found.waiting, found.confidence) == (
        case.kind,
        case.culprits,
        case.waiting,
        case.confidence,
    )
    assert found.cycle == case.cycle


@pytest.mark.parametrize("name", CASES)
def test_the_order_of_the_ranks_does_not_matter(name: str) -> None:
    """What ranks told first is chance."""
    states = tuple(CASES[name].states)
    assert _told(find_causes(states[::-1])) == _told(find_causes(states))


def _told(causes: Iterable[Cause]) -> list[tuple[Any, ...]]:
    return [(each.kind, each.culprits, each.waiting) for each in causes]


def test_of_two_causes_the_earlier_is_told() -> None:
    """The other one is there for the notes."""
    states = (
        stands(0, collective(5, group=(0, 1))),
        stands(1, done(collective(4, group=(0, 1))), label="SLEEPING"),
        stands(2, collective(1, group=(2, 3))),
        stands(3, label="SLEEPING"),
    )
    assert [each.culprits for each in find_causes(states)] == [(3,), (1,)]


def test_of_several_calls_the_one_whose_function_runs_is_told() -> None:
    """The others may have been answered."""
    calls = [transfer(f"rpc_async({name})", 1, scope=Scope("rpc", "0")) for name in "ef"]
    [cause] = find_causes([stands(0, *calls), stands(1, runs())])
    assert (cause.culprits, cause.operation) == ((1,), calls[1])


def test_a_clash_is_told_whatever_the_main_threads_do_meanwhile() -> None:
    """Other threads wait in what can never match: nobody is only late."""
    states = [stands(0, FIRST), *(stands(rank, BARRIER, pending=()) for rank in (1, 2))]
    [cause] = find_causes(with_clashes(states))
    assert (cause.kind, cause.culprits, cause.waiting) == ("mismatch", (0,), (1, 2))


def test_what_another_thread_waits_in_does_not_clear_a_main_thread_that_is_late() -> None:
    """It matches what the others are in, or is of another place: it may still end."""
    late = stands(1, FIRST, pending=())
    assert with_clashes([stands(0, FIRST), late])[1] == late
    assert with_clashes([stands(0, replace(BARRIER, sequence=2)), late])[1] == late


def test_a_called_function_is_told_where_it_waits_not_where_its_rank_does() -> None:
    """Whichever its rank was in first: the function that calls back, or the shutdown."""
    nested = call(1, 0, thread=7)
    for known in ((SHUTDOWN_OF_TWO, runs(), nested), (runs(), nested, SHUTDOWN_OF_TWO)):
        [cause] = find_causes([stands(0, call(0, 1)), stands(1, *known)])
        assert [each.operation for each in cause.waits if each.rank == 1] == [nested]


def test_all_passed_have_no_cause() -> None:
    """Ranks that are done and waited for by nobody have done nothing."""
    assert find_causes([stands(r, condition="finished", since_s=1.0) for r in ALL]) == ()


def test_a_world_of_one_rank_can_only_be_stuck() -> None:
    """There is nobody who could wait for it."""
    assert [each.kind for each in find_causes([stands(0, label="BLOCKED")])] == ["stuck"]


def test_a_graph_of_64_ranks_in_a_chain_ends_in_one_sink() -> None:
    """Whatever the length, it is the last one."""
    states = [
        *(stands(r, collective(1, group=(r, r + 1)), known=(), entered={}) for r in range(63)),
        stands(63),
    ]
    [cause] = find_causes(states)
    assert (cause.culprits, len(cause.waiting)) == ((63,), 63)


def test_an_empty_graph_has_no_sinks() -> None:
    """Nothing to say about no ranks."""
    assert graph_of((), ()).sinks() == ()


def test_who_asks_for_the_end_of_launched_work_waits_for_it() -> None:
    """Where nobody is seen to wait, a rank may be polling what it has launched."""
    [cause] = find_causes([stands(0, ASYNC, label="SLEEPING"), stands(1, label="SLEEPING")])
    assert (cause.kind, cause.culprits, cause.waiting, cause.confidence) == (
        "straggler",
        (1,),
        (0,),
        "likely",
    )


def test_launched_work_does_not_clear_a_rank_that_others_wait_for() -> None:
    """It sleeps; that its work waits for another rank keeps nobody."""
    barrier = collective(1, name="barrier", group=(0, 1), ordinal=1)
    first = find_causes([stands(0, ASYNC, label="SLEEPING"), stands(1, barrier)])[0]
    assert (first.kind, first.culprits) == ("straggler", (0,))


@pytest.mark.parametrize(("tag", "title"), [(0, "send #1"), (7, "send #1 (tag 7)")])
def test_a_tag_is_shown_unless_it_is_the_usual_one(tag: int, title: str) -> None:
    """Two ranks that use different tags wait for each other in what seems to match."""
    assert transfer("send", 1, tag=tag).title == title
