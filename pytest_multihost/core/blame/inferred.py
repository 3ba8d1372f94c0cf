"""Operations that no recorder has seen, inferred from native frames.

Operations of a jitted function leave no other trace. The names are those of the C++ functions of
XLA, gloo and c10d, as recorded from jax 0.10.2 and torch 2.13. They identify the operation, but
neither which call of it this is nor which ranks take part.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.operation import Operation, OperationKind
from pytest_multihost.core.model.stack import NativeThread

_XLA = {symbol: each.name for each in COLLECTIVES for symbol in each.xla}
_GLOO = {each.gloo: each.name for each in COLLECTIVES if each.gloo}


@dataclass(frozen=True, slots=True)
class _NameRule:
    """Maps the name of a function to the operation of a thread that is in it.

    Attributes:
        pattern: Regular expression for the whole plain name of a frame.
        name: The operation; empty for a collective that the pattern's group names.
        detail: The awaited event.
    """

    pattern: str
    kind: OperationKind
    name: str = ""
    detail: str = ""


OF_PROGRAMS = frozenset({*_XLA.values(), "connect"})
"""Names of operations that run in a jitted function."""

_FULL_MESH = "(createAndConnectAllPairs|connectFullMesh|waitUntilConnected)"
_BOOTSTRAP = re.compile(rf".*(GlooKeyValueStore::\w+|{_FULL_MESH})")
_CONNECTING = "its first use: connecting"
SERVICE = "xla::CoordinationServiceAgent::"
"""How the names begin of functions that call jax's coordination service."""

_SERVICE = ".*CoordinationServiceAgent::"
_OF_SERVICE = [(each.service, each.name) for each in COLLECTIVES if each.service]

_RULES = (
    _NameRule(rf".*xla::cpu::\w+Communicator::({'|'.join(_XLA)})", "collective"),
    _NameRule(rf".*xla::cpu::({'|'.join(_XLA)})Thunk::\w+", "collective"),
    _NameRule(rf"(?:.*\W)?gloo::(?:\{{anonymous\}}::)?({'|'.join(_GLOO)})v?", "collective"),
    _NameRule(
        rf".*\bgloo::(rendezvous|transport)::.*{_FULL_MESH}", "collective", "connect", _CONNECTING
    ),
    *(_NameRule(f"{_SERVICE}{function}", "collective", name) for function, name in _OF_SERVICE),
    _NameRule(f"{_SERVICE}GetKeyValue", "wait", "blocking_key_value_get"),
    _NameRule(".*c10d::ProcessGroupGloo::SendWork::wait", "transfer", "send"),
    _NameRule(".*c10d::ProcessGroupGloo::RecvWork::wait", "transfer", "recv"),
    _NameRule(r".*c10d::\w*Store::(wait|get|doWait|doGet)", "wait", "store.wait"),
    _NameRule(r".*c10d::(\w+::)*Work\w*::wait", "collective", "work.wait"),
)
"""Rules for functions of collectives and of waits for an operation; the first match applies."""

_PEER = re.compile(r"gloo::transport::.*::wait(Recv|Send)")
_PRIVATE_STORE = "c10d::HashStore::"


def operation_of(
    threads: Sequence[NativeThread], *, group: tuple[int, ...], at_s: float
) -> Operation | None:
    """Return the operation that a rank with these threads is in, or None.

    None also for a rank that computes: waiting for its own devices is not an operation.

    Args:
        group: All ranks, because the frames do not say which take part.
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


def waits_for_peer(symbols: Sequence[str]) -> bool:
    """Return whether a thread waits in gloo for another rank's message: it keeps gloo's time.

    Args:
        symbols: The plain names of the functions on its stack, innermost first.
    """
    return bool(symbols) and _PEER.fullmatch(symbols[0]) is not None


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
