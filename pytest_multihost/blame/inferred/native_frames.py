"""Which operation a rank is in, inferred from the native frames of its threads.

What runs in a jitted function leaves no other trace. The names are those of the C++ functions of
XLA, gloo and c10d, as recorded from jax 0.10.2 and torch 2.13; they say which operation, but not
which call of it, and not between whom.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_multihost.model.operation import Operation, OperationKind
from pytest_multihost.model.stack import NativeThread

SOURCE = "native-frames"

_XLA = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "AllToAll": "all_to_all",
    "RaggedAllToAll": "all_to_all",
    "ReduceScatter": "reduce_scatter",
    "CollectivePermute": "collective_permute",
    "CollectiveBroadcast": "broadcast",
    "Broadcast": "broadcast",
    "Barrier": "barrier",
}
_GLOO = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherv": "all_gather",
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all",
    "reduce_scatter": "reduce_scatter",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "gather": "gather",
    "gatherv": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}


@dataclass(frozen=True, slots=True)
class _Rule:
    """What the name of a function says of a thread that is in it.

    Attributes:
        pattern: Matches the whole plain name of a frame.
        kind: Who must do something for it to end.
        name: The operation; or None: the pattern's group, translated.
        detail: What it waits for there.
    """

    pattern: re.Pattern[str]
    kind: OperationKind
    name: str | None = None
    detail: str = ""


def _any(names: Iterable[str]) -> str:
    return "|".join(sorted(names, key=len, reverse=True))


_COLLECTIVES = (
    _Rule(re.compile(rf".*xla::cpu::\w+Communicator::({_any(_XLA)})"), "collective"),
    _Rule(re.compile(rf".*xla::cpu::({_any(_XLA)})Thunk::\w+"), "collective"),
    _Rule(re.compile(rf"(?:.*\W)?gloo::(?:\{{anonymous\}}::)?({_any(_GLOO)})"), "collective"),
)
"""Functions of the collectives themselves."""

OF_PROGRAMS = frozenset({*_XLA.values(), "connect"})
"""Names of what runs in a jitted function."""

_BOOTSTRAP = re.compile(
    r".*(GlooKeyValueStore::\w+|createAndConnectAllPairs|connectFullMesh|waitUntilConnected)"
)

_WAITS = (
    _Rule(
        re.compile(
            r".*\bgloo::(rendezvous|transport)::.*"
            r"(createAndConnectAllPairs|connectFullMesh|waitUntilConnected)"
        ),
        "collective",
        "connect",
        "its first use: connecting",
    ),
    _Rule(
        re.compile(r".*CoordinationServiceAgent::WaitAtBarrier"), "collective", "wait_at_barrier"
    ),
    _Rule(
        re.compile(r".*CoordinationServiceAgent::Shutdown\w*"),
        "collective",
        "jax.distributed.shutdown",
    ),
    _Rule(
        re.compile(r".*CoordinationServiceAgent::Connect"),
        "collective",
        "jax.distributed.initialize",
    ),
    _Rule(re.compile(r".*CoordinationServiceAgent::GetKeyValue"), "wait", "blocking_key_value_get"),
    _Rule(re.compile(r".*c10d::ProcessGroupGloo::SendWork::wait"), "transfer", "send"),
    _Rule(re.compile(r".*c10d::ProcessGroupGloo::RecvWork::wait"), "transfer", "recv"),
    _Rule(re.compile(r".*c10d::\w*Store::(wait|get|doWait|doGet)"), "wait", "store.wait"),
    _Rule(re.compile(r".*c10d::(\w+::)*Work\w*::wait"), "collective", "work.wait"),
)
"""Functions in which threads wait for an operation; the first that applies to a thread wins."""

_PRIVATE_STORE = "c10d::HashStore::"


def operation_of(
    threads: Sequence[NativeThread], *, group: tuple[int, ...], at_s: float
) -> Operation | None:
    """Return the operation that a rank with these threads is in; None where there is none.

    None as well for a rank that computes: waiting for its own devices is not an operation.

    Args:
        threads: All of the rank's.
        group: All ranks; the frames do not say who takes part.
        at_s: When the frames were read: the operation began before.
    """
    for found in (_collective(threads), _wait(threads)):
        if found is not None:
            name, kind, detail, thread = found
            return Operation(
                name=name,
                kind=kind,
                group=group,
                has_members=False,
                sequence=0,
                detail=detail,
                since_s=at_s,
                waited_s=at_s,
                thread=thread,
                source=SOURCE,
            )
    return None


_Found = tuple[str, OperationKind, str, int]


def _collective(threads: Sequence[NativeThread]) -> _Found | None:
    for rule in _COLLECTIVES:
        for thread in threads:
            match = _outermost_match(rule, thread)
            if match is not None:
                name = _XLA.get(match[1]) or _GLOO[match[1]]
                return name, rule.kind, _stage(thread), thread.thread
    return None


def _stage(thread: NativeThread) -> str:
    """Return how far a thread that is in a collective has got."""
    symbols = thread.symbols
    if any(_BOOTSTRAP.match(symbol) for symbol in symbols):
        return "its first use: connecting"
    for end, text in (("::waitRecv", "waits to receive"), ("::waitSend", "waits to send")):
        if any(symbol.endswith(end) for symbol in symbols):
            return text
    return ""


def _wait(threads: Sequence[NativeThread]) -> _Found | None:
    for rule in _WAITS:
        for thread in threads:
            if _outermost_match(rule, thread) is not None and not _is_in_private_store(thread):
                return rule.name or "", rule.kind, rule.detail, thread.thread
    return None


def _is_in_private_store(thread: NativeThread) -> bool:
    """Return whether a thread waits for a store within its own process, and so for no rank."""
    return any(symbol.startswith(_PRIVATE_STORE) for symbol in thread.symbols)


def _outermost_match(rule: _Rule, thread: NativeThread) -> re.Match[str] | None:
    """Return the match of the outermost frame: an all_reduce may be built of other collectives."""
    matches = (rule.pattern.fullmatch(symbol) for symbol in reversed(thread.symbols))
    return next((match for match in matches if match is not None), None)


_OPENING, _CLOSING = "<(", ">)"
_KEPT = {"(anonymous namespace)": "{anonymous}", "operator()": "{call}", "operator<": "{less}"}


def plain_name(symbol: str) -> str:
    """Return a function's name without its arguments, templates and versions.

    ``gloo::allreduce(gloo::AllreduceOptions const&)`` is ``gloo::allreduce``.
    """
    symbol = symbol.replace("[abi:cxx11]", "")
    for text, replacement in _KEPT.items():
        symbol = symbol.replace(text, replacement)
    depth, kept = 0, []
    for character in symbol.partition("@")[0]:
        if character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            depth -= 1
        elif depth == 0:
            kept.append(character)
    name = "".join(kept).removesuffix(" const").strip()
    return name.rpartition(" ")[2]
