"""Derives the operation that a thread is in from its Python frames and their arguments.

Frames show the function of torch or jax, the user's line, the peer of a transfer, the root of a
collective, and whether the group is the default one. They do not show which call of the function
this is, so a conclusion from frames alone is never certain.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from pytest_multihost.core.model.collectives import C10D, Collective, of_function
from pytest_multihost.core.model.operation import Operation, OperationKind
from pytest_multihost.core.model.stack import Frame, innermost_user_frame, is_library
from pytest_multihost.core.torch_private import BACKWARD, DDP, MEET_BY_STORE
from pytest_multihost.extensions.live.barriers import Barrier

UNNAMED = frozenset({"work.wait", "connect"})
"""Operations that may be a part of any collective."""

_LOGGED = "torch/distributed/c10d_logger.py"

_TRANSFERS = r"(send|recv)(_object_list)?|batch_isend_irecv"
_PEERS = ("dst", "src")
_WAITED = re.compile(r"\.wait\(")
"""A call in the user's line that may wait for work to end: the wait is in C++, without a frame."""

_RUNTIMES = ("/torch/", "/jax/", "/jaxlib/")
_GIVEN_GROUP = re.compile(r'ProcessGroup|"group": <')
_GROUP = re.compile(r"<[\w.]*ProcessGroup at 0x[0-9a-f]+>")
_GIVEN = re.compile(r"\bgroup\s*=\s*([^\W\d]\w*(?:\.\w+|\[[^\]]*\]|\([^()]*\))*)")
"""The expression of a group in a call."""
_ITEM = re.compile(r'(?:"(?P<key>[^"]*)": )?(?P<group><[\w.]*ProcessGroup at 0x[0-9a-f]+>)')
"""A group in a list or a dictionary."""
_CUT_OFF = "..."
_NUMBER, _NUMBERS = re.compile(r"\d{1,9}", re.ASCII), re.compile(r"\[[\d, ]+\]", re.ASCII)


@dataclass(frozen=True, slots=True)
class SeenWait:
    """The wait that the frames of a main thread show.

    Attributes:
        is_unclear: Whether the thread may be in an operation that Python frames do not show.
        is_apart: Whether the thread waits for another thread or process, which performs the
            operation and keeps its time: jax's threads wait without a timeout, and wake up.
        ends_in_s: After which time the runtime aborts such an operation at the earliest; None if
            that is unknown.
        spins: Whether the thread uses the processor while it waits, and was seen to be in the same
            place with the same variables each time.
        holders: The variables on the stack that hold the group of the operation, each with its
            function; also the expression of the user's line that gives it.
        barrier: The id of the barrier of jax's coordination service; empty if unknown.
    """

    operation: Operation | None = None
    is_unclear: bool = False
    is_apart: bool = False
    ends_in_s: float | None = None
    spins: bool = False
    holders: tuple[str, ...] = ()
    barrier: str = ""


def seen_operation(
    frames: Sequence[Frame],
    values: Sequence[Mapping[str, str]] = (),
    *,
    size: int,
    at_s: float,
    thread: int = 0,
) -> Operation | None:
    """Return the operation whose function is on a thread's stack, if there is one.

    Args:
        values: The variables of each frame as text; empty if unknown.
    """
    # The outermost function counts, because a barrier may be built from other collectives.
    for index in range(len(frames) - 1, -1, -1):
        collective = of_function(frames[index].file, frames[index].function)
        if collective is None and not _is_transfer(frames[index]):
            continue
        kind: OperationKind = "transfer" if collective is None else "collective"
        found = _operation(frames[index].function, kind, size=size, at_s=at_s)
        found = replace(found, frame=innermost_user_frame(frames), thread=thread)
        if not values:
            return found
        around = values[index + 1] if _is_logger(frames, index + 1) else None
        caller = values[index + 2] if around is not None and len(values) > index + 2 else {}
        if any(each.function == MEET_BY_STORE for each in frames[:index]):
            return replace(found, has_members=True)
        told = _with_arguments(found, collective, values[index], around, caller)
        return as_of_probably_all(told) if is_in_ddp(frames[index:]) else told
    return None


def seen_wait(
    frames: Sequence[Frame],
    source: str,
    *,
    size: int,
    at_s: float,
    is_blocked: bool,
    values: Sequence[Mapping[str, str]] = (),
) -> SeenWait:
    """Return the wait that the frames of a rank's main thread show.

    Args:
        source: The text of the user's innermost line; empty if it cannot be read.
        is_blocked: Whether the thread waits for something other than a timer.
        values: The variables of each frame as text; empty if unknown.
    """
    found = seen_operation(frames, values, size=size, at_s=at_s)
    if found is not None:
        holders = () if found.has_members else tuple(_holders(frames, values, source))
        return SeenWait(found, is_apart=is_of_jax(frames), holders=holders)
    if not frames or not is_blocked:
        return SeenWait(is_unclear=not frames)
    if not is_library(frames[0].file):
        waited = as_of_some(_operation("work.wait", "collective", size=size, at_s=at_s))
        waited = replace(waited, frame=innermost_user_frame(frames))
        return SeenWait(waited) if _WAITED.search(source) else SeenWait()
    return SeenWait(is_unclear=any(each in frames[0].file for each in _RUNTIMES))


def _holders(
    frames: Sequence[Frame], values: Sequence[Mapping[str, str]], source: str
) -> Iterator[str]:
    """Yield the user's variables that hold the group given to an operation, with their functions.

    Args:
        source: The text of the user's innermost line.
    """
    users = [index for index, frame in enumerate(frames) if not is_library(frame.file)]
    if not users:
        return
    around = [each for each in values[: users[0]] if "args" in each or "kwargs" in each]
    given = {
        group
        for each in around
        for group in _GROUP.findall(each.get("args", "") + each.get("kwargs", ""))
    }
    for index in users if len(given) == 1 else ():
        function = f"{frames[index].file}:{frames[index].function}"
        for name, each in values[index].items():
            yield from (f"{function} {name}{place}" for place in _places_in(each, given))
    expressions = {each.replace(" ", "") for each in _GIVEN.findall(source)}
    own = values[users[0]] if values else {}
    # The variables of a module are not locals, so only its line shows which one is given.
    if len(expressions) == 1 and not expressions & own.keys():
        function = f"{frames[users[0]].file}:{frames[users[0]].function}"
        yield f"{function} {expressions.pop()}"


def _places_in(value: str, given: Collection[str]) -> Iterator[str]:
    """Yield where a variable has the given group: itself, or in one item of a list or dict."""
    if value in given:
        yield ""
    if value[:1] not in {"[", "(", "{"}:
        return
    items = [(each["key"], each["group"]) for each in _ITEM.finditer(value)]
    found = [at for at, (_, group) in enumerate(items) if group in given]
    if len(found) == 1:
        (at,) = found
        yield f"[{items[at][0] if value[0] == '{' else at}]"


def is_of_jax(frames: Sequence[Frame]) -> bool:
    """Return whether a frame of jax is on the stack."""
    return any("/jax/" in each.file for each in frames)


def _is_transfer(frame: Frame) -> bool:
    return frame.file.endswith(C10D) and re.fullmatch(_TRANSFERS, frame.function) is not None


def _is_logger(frames: Sequence[Frame], index: int) -> bool:
    return index < len(frames) and frames[index].file.endswith(_LOGGED)


def _operation(name: str, kind: OperationKind, *, size: int, at_s: float) -> Operation:
    # Frames alone show neither the members of the group nor the number of the call.
    return Operation(
        name=name,
        kind=kind,
        group=tuple(range(size)),
        has_members=False,
        sequence=0,
        since_s=at_s,
        waited_s=at_s,
        source="python-frames",
    )


def _with_arguments(
    found: Operation,
    collective: Collective | None,
    own: Mapping[str, str],
    around: Mapping[str, str] | None,
    caller: Mapping[str, str],
) -> Operation:
    """Return an operation with the peer or root and the group that its arguments show.

    Args:
        collective: The collective of the function; None for a transfer.
        around: Variables of torch's wrapper around it, which still hold the caller's arguments.
        caller: Variables of the function that has called it.
    """
    if collective is None:
        return replace(found, peer=_only_number(own, _PEERS))
    if collective.has_root:
        found = replace(found, root=_only_number(own, collective.root_parameters))
    if collective.is_of_world:
        return replace(found, has_members=True)
    if found.name == "new_group":
        ranks = own.get("ranks", "")
        members = map(int, _NUMBER.findall(ranks)) if _NUMBERS.fullmatch(ranks) else ()
        group = tuple(sorted({*members} & {*found.group}))
        return replace(found, group=group or found.group, has_members=bool(group))
    return _with_group(found, around, caller)


def _with_group(
    found: Operation, around: Mapping[str, str] | None, caller: Mapping[str, str]
) -> Operation:
    """Return a collective in the default group, unless the caller may have given another one.

    A group that was given is known by the variable in which the caller has it.
    """
    given = "" if around is None else around.get("args", "") + around.get("kwargs", "")
    is_default = around is not None and _CUT_OFF not in given and not _GIVEN_GROUP.search(given)
    if is_default:
        return replace(found, has_members=True)
    groups = {*_GROUP.findall(given)}
    names = [name for name, value in caller.items() if groups == {value} and name.isidentifier()]
    return as_of_some(replace(found, detail=names[0] if len(names) == 1 else ""))


def as_of_some(found: Operation) -> Operation:
    """Return an operation in an unknown group, unless all members of its group are known.

    Each function gets an unknown group of its own. Two different functions are then never compared
    as the same call, so they are never a mismatch.
    """
    if found.has_members or found.kind != "collective":
        return found
    variable = found.detail if found.source == "python-frames" else ""
    ordinal = 1 + zlib.crc32(found.name.encode()) % 1000
    title = f"group `{variable}` of some of" if variable else "a group of some of"
    return replace(found, ordinal=ordinal, group_title=title)


def as_of_probably_all(found: Operation) -> Operation:
    """Return a collective that DDP or a program of jax has begun: likely of all ranks."""
    if found.has_members or found.kind != "collective":
        return found
    return replace(found, ordinal=0, detail="", group_title="probably all of")


def with_barrier(wait: SeenWait, barrier: Barrier | None, age_s: float) -> SeenWait:
    """Return a wait at a barrier of jax's coordination service with its id, members and end.

    Args:
        age_s: For how long the first process has waited there at most.
    """
    found = wait.operation
    if found is None or barrier is None or not {*(barrier.ranks or ())} <= {*found.group}:
        return wait
    group = barrier.ranks or found.group
    told = replace(found, group=group, has_members=True, group_title="", ordinal=0)
    ends_in_s = None if barrier.limit_s is None else barrier.limit_s - age_s
    return replace(wait, operation=told, barrier=barrier.name, ends_in_s=ends_in_s)


def is_in_ddp(frames: Sequence[Frame]) -> bool:
    """Return whether a thread is in code of DDP, or in a backward pass, which DDP's reducer joins.

    The broadcast of buffers and the exchange of shapes are begun by DDP's C++ code. An operation of
    the user's own module is not DDP's, although DDP has called the module.
    """
    end, function = BACKWARD
    return any(
        each.file.endswith(DDP) or (each.file.endswith(end) and each.function == function)
        for each in takewhile(lambda frame: is_library(frame.file), frames)
    )


def _only_number(values: Mapping[str, str], names: Iterable[str]) -> int | None:
    """Return the number that one of the named variables holds; None unless exactly one does."""
    numbers = [number for name in names if (number := _number(values.get(name))) is not None]
    return numbers[0] if len(numbers) == 1 else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and _NUMBER.fullmatch(text) else None
