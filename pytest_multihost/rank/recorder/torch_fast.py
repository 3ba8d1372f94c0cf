"""Put the hot path in C before what torch_calls.py and torch_works.py have wrapped.

What it does not take on comes to their functions as before, and what it does, it does as they do.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import update_wrapper
from types import ModuleType
from typing import Any

from pytest_multihost.rank.recorder.torch_calls import COLLECTIVES, ROOTED, Calls
from pytest_multihost.rank.recorder.torch_groups import Function, Group
from pytest_multihost.rank.recorder.torch_works import WAITS, Works
from pytest_multihost.watch.slots import NO_RECORD, RECORD, RECORDS, Call, SlotPage

Prepared = tuple[Group, Call, Iterator[int] | None, str | None, bool]
"""A call's group, what notes it, its sequence unless it is the group's next collective, what comes
before the text for what is sent, and whether it returns at once."""

Prepare = Callable[[Any, int, int], Prepared]
"""Takes torch's group and what tells calls apart: a root, or a peer and a tag."""

_PLAIN, _ROOTED, _TRANSFER, _ANYSOURCE = range(4)
_TRANSFERS = {"send": _TRANSFER, "recv": _TRANSFER, "recv_anysource": _ANYSOURCE}


def put_before(library: ModuleType, calls: Calls, works: Works, bindings: ModuleType) -> None:
    """Put the wrappers in C before those in Python.

    Args:
        library: The hot path.
        calls: What has wrapped `ProcessGroup`.
        works: What has wrapped `Work`; its threads' state is the library's.
        bindings: `torch.distributed.distributed_c10d`.
    """
    core = library.Core(
        recorder=calls.recorder,
        works=works,
        held=works.held,
        details=calls.details.of,
        local=works.thread,
        page=SlotPage,
        format=RECORD.format,
        records=RECORDS,
        no_place=NO_RECORD,
        tensor=sys.modules["torch"].Tensor,
        work=bindings.Work,
    )
    works.gather = core.hand_over
    _keep_in_mind(library, works.thread, bindings)
    for method in WAITS:
        _replace(bindings.Work, method, lambda **both: library.Wait(core=core, **both))
    for method, (prepare, kind, sent) in _methods(calls).items():
        _replace(
            bindings.ProcessGroup,
            method,
            lambda prepare=prepare, kind=kind, sent=sent, **both: library.Method(
                core=core, prepare=prepare, kind=kind, sent=sent, **both
            ),
        )


def _keep_in_mind(library: ModuleType, local: Any, bindings: ModuleType) -> None:  # noqa: ANN401 - the library's
    """Have what options' `asyncOp` has just been set to at hand, for the call that they are for."""
    for name, options in vars(bindings).items():
        is_one = name.endswith("Options") and isinstance(options, type)
        field = vars(options).get("asyncOp") if is_one else None
        if type(field) is property:
            options.asyncOp = library.Field(local=local, original=field)


def _methods(calls: Calls) -> dict[str, tuple[Prepare, int, int]]:
    """Return how each method is prepared, of what kind it is, and which argument is sent."""
    collectives = {
        method: (_collective(calls, name), _ROOTED if name in ROOTED else _PLAIN, sent)
        for method, (name, sent) in COLLECTIVES.items()
    }
    transfers = {method: (_transfer(calls, method), kind, 0) for method, kind in _TRANSFERS.items()}
    return collectives | transfers


def _collective(calls: Calls, name: str) -> Prepare:
    def prepare(pg: Any, root: int, _: int) -> Prepared:  # noqa: ANN401 - torch's
        group = calls.groups.of(pg)
        call, sequence = group.collective(name, root)
        return group, call, None if group.is_ours else sequence, None, _goes_on(calls, pg)

    return prepare


def _transfer(calls: Calls, method: str) -> Prepare:
    name = method.removesuffix("_anysource")

    def prepare(pg: Any, peer: int, tag: int) -> Prepared:  # noqa: ANN401 - torch's
        group = calls.groups.of(pg)
        return group, *group.transfer(name, peer, tag), f"tag={tag}", _goes_on(calls, pg)

    return prepare


def _goes_on(calls: Calls, pg: Any) -> bool:  # noqa: ANN401 - torch's
    """Whether a call only tells a thread of gloo what to do; NCCL may first meet the others."""
    return bool(calls.groups.module.get_backend(pg) == "gloo")


def _replace(owner: type, method: str, make: Callable[..., Any]) -> None:
    """Let what `make` makes stand for a method that has been wrapped; others stay as they are."""
    noted: Function | None = vars(owner).get(method)
    original = getattr(noted, "__wrapped__", None)
    if noted is None or original is None:
        return
    fast = make(original=original, slow=noted, bound=owner)
    names = ("__doc__", "__module__", "__name__", "__qualname__")
    setattr(owner, method, update_wrapper(fast, original, assigned=names, updated=()))
