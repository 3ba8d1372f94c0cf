"""Operations that no recorder has seen: inferred from native frames, sockets and stacks.

Native frames: operations of a jitted function leave no other trace. The names are those of the C++
functions of XLA, gloo and c10d, as recorded from jax 0.10.2 and torch 2.13. They identify the
operation, but neither which call of it this is nor which ranks take part.

Stacks: when a rank starts a program from Python, it records the program's processes and the user's
line. The first call of each program goes through Python (jax 0.10.2: later calls stay in C++, those
of functions with side effects never do). The stack dumped at the end shows which of these lines the
rank is in, and so which ranks take part.

Sockets: a main thread that reads from a socket, or writes to a full one, waits for the rank that
holds the peer socket: this counts as a transfer. If another thread of that rank than its main one
may serve the peer socket, it is unknown what the answer depends on, and no rank is named. A main
thread that waits for a connection waits for any of the other ranks.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_multihost.core.jax_private import START_PROGRAM_FRAME
from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.operation import (
    CALLEE_SCOPE,
    RPC_KINDS,
    RUNTIME_SCOPE,
    SOCKET_SCOPE,
    Operation,
    OperationKind,
    program_scope,
    rpc_name,
)
from pytest_multihost.core.model.process import Descriptor, Endpoint, KernelSnapshot, Process
from pytest_multihost.core.model.result import RankSnapshot, WorldResult, WorldSnapshot
from pytest_multihost.core.model.stack import (
    Dump,
    Frame,
    NativeThread,
    ThreadStack,
    innermost_user_frame,
)
from pytest_multihost.core.model.verdict import OperationName, WaitsFor

_XLA = {symbol: each.name for each in COLLECTIVES for symbol in each.xla}
_GLOO = {each.gloo: each.name for each in COLLECTIVES if each.gloo}


@dataclass(frozen=True, slots=True)
class _Rule:
    """Maps the name of a function to the operation of a thread that is in it.

    Attributes:
        pattern: Regular expression for the whole plain name of a frame.
        kind: Kind of the operation.
        name: The operation; empty for a collective that the pattern's group names.
        detail: What the thread waits for there.
    """

    pattern: str
    kind: OperationKind
    name: str = ""
    detail: str = ""


_OF_PROGRAMS = frozenset({*_XLA.values(), "connect"})
"""Names of operations that run in a jitted function."""

_FULL_MESH = "(createAndConnectAllPairs|connectFullMesh|waitUntilConnected)"
_BOOTSTRAP = re.compile(rf".*(GlooKeyValueStore::\w+|{_FULL_MESH})")
_CONNECTING = "its first use: connecting"
_SERVICE = ".*CoordinationServiceAgent::"
_OF_SERVICE = [(each.service, each.name) for each in COLLECTIVES if each.service]

_RULES = (
    _Rule(rf".*xla::cpu::\w+Communicator::({'|'.join(_XLA)})", "collective"),
    _Rule(rf".*xla::cpu::({'|'.join(_XLA)})Thunk::\w+", "collective"),
    _Rule(rf"(?:.*\W)?gloo::(?:\{{anonymous\}}::)?({'|'.join(_GLOO)})v?", "collective"),
    _Rule(
        rf".*\bgloo::(rendezvous|transport)::.*{_FULL_MESH}", "collective", "connect", _CONNECTING
    ),
    *(_Rule(f"{_SERVICE}{function}", "collective", name) for function, name in _OF_SERVICE),
    _Rule(f"{_SERVICE}GetKeyValue", "wait", "blocking_key_value_get"),
    _Rule(".*c10d::ProcessGroupGloo::SendWork::wait", "transfer", "send"),
    _Rule(".*c10d::ProcessGroupGloo::RecvWork::wait", "transfer", "recv"),
    _Rule(r".*c10d::\w*Store::(wait|get|doWait|doGet)", "wait", "store.wait"),
    _Rule(r".*c10d::(\w+::)*Work\w*::wait", "collective", "work.wait"),
)
"""Rules for functions of collectives and of waits for an operation; the first match applies."""

_PRIVATE_STORE = "c10d::HashStore::"


def operation_of(
    threads: Sequence[NativeThread], *, group: tuple[int, ...], at_s: float
) -> Operation | None:
    """Return the operation that a rank with these threads is in, or None.

    None also for a rank that computes: waiting for its own devices is not an operation.

    Args:
        threads: All of the rank's.
        group: All ranks; the frames do not say who takes part.
        at_s: When the frames were read: the operation began before.
    """
    for rule, thread in itertools.product(_RULES, threads):
        if any(symbol.startswith(_PRIVATE_STORE) for symbol in thread.symbols):
            continue  # it waits for a store in its own process, so not for another rank
        # The outermost frame: an all_reduce may be built of other collectives.
        matches = (re.fullmatch(rule.pattern, symbol) for symbol in reversed(thread.symbols))
        if match := next(filter(None, matches), None):
            return Operation(
                name=rule.name or _XLA.get(match[1]) or _GLOO[match[1]],
                kind=rule.kind,
                group=group,
                has_members=False,
                sequence=0,
                detail=rule.detail if rule.name else _stage(thread),
                since_s=at_s,
                waited_s=at_s,
                thread=thread.thread,
                source="native-frames",
            )
    return None


def _stage(thread: NativeThread) -> str:
    """Return which stage of a collective a thread is in."""
    if any(_BOOTSTRAP.match(symbol) for symbol in thread.symbols):
        return _CONNECTING
    for end, text in (("::waitRecv", "waits to receive"), ("::waitSend", "waits to send")):
        if any(symbol.endswith(end) for symbol in thread.symbols):
            return text
    return ""


_OPENING, _CLOSING = "<(", ">)"
_KEPT = {"(anonymous namespace)": "{anonymous}", "operator()": "{call}", "operator<": "{less}"}


def plain_name(symbol: str) -> str:
    """Return a function's name without its arguments, templates and versions.

    ``gloo::allreduce(gloo::AllreduceOptions const&)`` is ``gloo::allreduce``.
    """
    symbol = symbol.replace("[abi:cxx11]", "")
    for text, replacement in _KEPT.items():
        symbol = symbol.replace(text, replacement)
    depth, kept = 0, ""
    for character in symbol.partition("@")[0]:
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif depth == 0:
            kept += character
    return kept.removesuffix(" const").strip().rpartition(" ")[2]


# Sockets

_Ends = tuple[Endpoint, ...]


def waits_at_sockets(snapshot: KernelSnapshot) -> dict[int, Operation]:
    """Return the operations in which main threads wait at sockets, by rank.

    Args:
        snapshot: A deep snapshot of the world.
    """
    holders = _holders(snapshot)
    found = {}
    for rank, process in snapshot.ranks.items():
        awaited = _awaited(process)
        endpoints = [each.endpoints[::-1] for each in awaited if each.kind != "listen"]
        peers = {holders.get(each) for each in endpoints} - {rank}
        known = {each for each in peers if each is not None}
        if any(each.kind == "listen" for each in awaited):
            found[rank] = _operation(process, snapshot, "wait", snapshot.ranks.keys())
        elif peers and known == peers:
            found[rank] = _operation(process, snapshot, "transfer", {rank, *known})
    return found


def _operation(
    process: Process, snapshot: KernelSnapshot, kind: OperationKind, group: Collection[int]
) -> Operation:
    main, others = process.threads[0], set(group) - {process.rank}
    return Operation(
        name=main.call,
        kind=kind,
        group=tuple(sorted(group)),
        sequence=0,
        scope=SOCKET_SCOPE if kind == "wait" else RUNTIME_SCOPE,
        peer=min(others) if kind == "transfer" and len(others) == 1 else None,
        detail=main.target,
        since_s=snapshot.at_s,
        waited_s=snapshot.at_s,
        thread=main.tid,
        source="proc",
    )


def _awaited(process: Process) -> list[Descriptor]:
    """Return the sockets that can end the main thread's wait; empty if anything else can, too."""
    main = process.main
    fds = (main.fds or ()) if main is not None and main.state == "S" else ()
    found = [process.descriptors.get(fd) for fd in fds]
    sockets = [each for each in found if each and (each.kind == "listen" or _is_inside(each))]
    return sockets if len(sockets) == len(found) else []


def _holders(snapshot: KernelSnapshot) -> Mapping[_Ends, int]:
    """Return the rank that holds each end of a connection, if only its main thread uses it."""
    found: dict[_Ends, int] = {}
    shared: set[_Ends] = set()
    for process in snapshot.processes:
        beside = {fd for thread in process.threads[1:] for fd in thread.fds or ()}
        for each in filter(_is_inside, process.descriptors.values()):
            is_alone = process.is_rank and each.fd not in beside and each.endpoints not in found
            if is_alone and process.rank is not None:
                found[each.endpoints] = process.rank
            else:
                shared.add(each.endpoints)
    return {ends: rank for ends, rank in found.items() if ends not in shared}


def _is_inside(found: Descriptor) -> bool:
    is_connection = found.kind in {"tcp", "unix"} and found.endpoints != ()
    return is_connection and found.where == "inside" and not found.is_exempt


# Stacks


def with_stacks(
    snapshots: Sequence[WorldSnapshot], dumps: Sequence[Dump]
) -> tuple[WorldSnapshot, ...]:
    """Return the snapshots with the members of jitted collectives, and which ranks hold the GIL.

    Args:
        snapshots: Of the world.
        dumps: Stacks of its ranks at the end.
    """
    by_rank = {each.rank: each for each in dumps}

    def complete(seen: RankSnapshot) -> RankSnapshot:
        dump = by_rank.get(seen.rank)
        frames = dump.main.frames if dump is not None and dump.main is not None else ()
        # A main thread that computes in Python holds the GIL as well. Only if it ran no signal
        # handler when its stack was requested has it been in native code for long.
        is_native = seen.label != "RUNNING" or (dump is not None and dump.is_deaf)
        return with_members(replace(seen, holds_gil=seen.holds_gil and is_native), frames)

    return tuple(
        replace(snapshot, ranks=tuple(map(complete, snapshot.ranks))) for snapshot in snapshots
    )


def with_members(seen: RankSnapshot, frames: Sequence[Frame]) -> RankSnapshot:
    """Return a rank's snapshot with the line of its jitted collectives, and the members, if known.

    Args:
        seen: The rank.
        frames: Stack of its main thread, innermost first; empty if unknown.
    """
    programs = [
        (last, group, scope) for (group, _, scope), last in seen.entered if scope.kind == "program"
    ]
    # If the stack shows that a program is being started, it is the last one. Else it is one of the
    # programs started from the user's line in the stack; if there are none, any program.
    file, function = START_PROGRAM_FRAME
    if any(each.function == function and each.file.endswith(file) for each in frames):
        programs = [max(programs, key=lambda each: each[0])] if programs else []
    user = innermost_user_frame(frames)
    scope = program_scope(user.file, user.line) if user is not None else None
    here = [each for each in programs if each[2] == scope]
    groups = {group for _, group, _ in here or programs}
    operations = tuple(
        each
        if each.has_members or each.name not in _OF_PROGRAMS
        else replace(
            each,
            frame=each.frame or user,
            group=min(groups) if len(groups) == 1 else each.group,
            has_members=len(groups) == 1,
        )
        for each in seen.operations
    )
    return replace(seen, operations=operations)


# Functions that ranks run for others in threads of their own, called by torch.distributed.rpc.
#
# A diagnosis may be about such a thread. Then what the main thread does, such as a wait in
# rpc.shutdown, says nothing about the hang.


_CALLEE = "torch/distributed/rpc/internal.py"
_FETCH = "to_here"


def called_functions(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return those of a rank's operations that are functions which it runs for others."""
    return tuple(each for each in operations if each.is_open and each.scope == CALLEE_SCOPE)


def is_call_of(name: str, function: Operation) -> bool:
    """Return whether an operation of this name may be a call of that function."""
    return name in {_FETCH, *(rpc_name(kind, function.detail) for kind in RPC_KINDS)}


def operations_in_calls(
    result: WorldResult,
    culprits: Sequence[int],
    operation: OperationName | None,
    waits_for: Sequence[WaitsFor],
) -> Mapping[int, Operation]:
    """Return, of each rank whose thread for others a diagnosis is about, the operation there.

    Of a culprit that is the function which it runs, of another rank what that function waits in.

    Args:
        result: What was observed of the world.
        culprits: Those of the diagnosis.
        operation: That in which the others wait for the culprits.
        waits_for: The waits of the diagnosis.
    """
    found: dict[int, Operation] = {}
    for wait in waits_for:
        own = result.last_seen[wait.rank].operations if wait.rank in result.last_seen else ()
        threads = {each.thread for each in called_functions(own)}
        for each in own:
            name = OperationName(each.name, each.sequence, each.group)
            if each.is_open and each.thread in threads and name == wait.operation:
                found.setdefault(wait.rank, each)
    for rank in culprits if operation is not None else ():
        own = result.last_seen[rank].operations if rank in result.last_seen else ()
        for each in called_functions(own):
            if rank not in found and operation and is_call_of(operation.name, each):
                found[rank] = each
    return found


def thread_of(dump: Dump, operation: Operation) -> ThreadStack | None:
    """Return the thread of a dump that is in an operation which a function for others is in."""
    threads = [each for each in dump.threads if _runs_for_caller(each)]
    if operation.scope == CALLEE_SCOPE:
        known = (e for e in threads if any(f.function == operation.detail for f in e.frames))
    else:
        known = (e for e in threads if operation.frame in e.frames)
    return next(known, threads[0] if len(threads) == 1 else None)


def with_threads(dumps: Iterable[Dump], operations: Mapping[int, Operation]) -> tuple[Dump, ...]:
    """Return the dumps; of these ranks with the thread of the operation as the main one."""
    found = []
    for dump in dumps:
        operation = operations.get(dump.rank)
        thread = thread_of(dump, operation) if operation is not None else None
        shown = replace(dump, threads=(thread,), lacks_main=False) if thread is not None else dump
        found.append(shown)
    return tuple(found)


def _runs_for_caller(thread: ThreadStack) -> bool:
    return any(each.file.endswith(_CALLEE) for each in thread.frames)
