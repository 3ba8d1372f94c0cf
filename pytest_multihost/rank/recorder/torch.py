"""Record what a rank does with other ranks through torch.distributed.

The methods of the bound C++ class `ProcessGroup` are wrapped, not the functions of
`torch.distributed`. A test module that says `from torch.distributed import all_reduce` holds the
function itself, and putting a wrapper into torch's module would not reach it; but every such
function, DDP, FSDP and the object collectives all call the class. So one operation is recorded for
each call of the class: it is what the other ranks must match. What C++ calls in C++ only torch's
flight recorder sees. The functions that make groups are wrapped too, and the waits of the stores.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, update_wrapper
from types import ModuleType

from pytest_multihost.rank.recorder.after_import import after_import
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.rank.recorder.torch_flight_recorder import FlightRecorderThread
from pytest_multihost.rank.recorder.torch_groups import (
    Argument,
    Function,
    Groups,
    ProcessGroup,
    Store,
    copy_identity,
)
from pytest_multihost.rank.recorder.torch_process_groups import (
    OpenWorks,
    ProcessGroupRecorder,
)
from pytest_multihost.slots import NO_RECORD

CREATION_SCOPE = "creation"
"""The scope of the making of groups by their members alone: there is no group yet to count in."""

_STORE_WAITS = ("get", "wait", "multi_get", "queue_pop", "barrier")
_MAX_KEYS = 120
_SIZE_AT, _RANK_AT, _INIT_TIMEOUT_AT = 3, 4, 2  # arguments of init_process_group
_NEW_TIMEOUT_AT = 1  # of new_group


def install(recorder: Recorder) -> None:
    """Record this rank's torch.distributed operations, now or once it is imported.

    Wrapped functions take, return and raise what they did before.
    """
    name = "torch.distributed.distributed_c10d"
    after_import(name, lambda module: _wrap(recorder, module))


def _wrap(recorder: Recorder, module: ModuleType) -> None:
    groups = Groups(recorder, module)
    works = OpenWorks(recorder)
    calls = ProcessGroupRecorder(recorder, groups, works)
    flight = FlightRecorderThread(recorder, groups, works)
    creation = GroupCreationRecorder(recorder, groups, flight)
    with contextlib.suppress(Exception):  # another version of torch: the rest is wrapped
        works.wrap(module.Work)
    with contextlib.suppress(Exception):
        calls.wrap(module.ProcessGroup)
    with contextlib.suppress(Exception):
        creation.wrap(module)


class _Depth(threading.local):
    """How many creations of groups this thread is in: their store traffic is not the user's."""

    count = 0


@dataclass(slots=True, eq=False)
class GroupCreationRecorder:
    """Records what makes groups, and waits for keys."""

    recorder: Recorder
    groups: Groups
    flight: FlightRecorderThread  # started with the first group
    _depth: _Depth = field(default_factory=_Depth)
    _waits: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def wrap(self, module: ModuleType) -> None:
        """Wrap the functions of `torch.distributed.distributed_c10d`, and its `Store`."""
        _replace(module, "init_process_group", self._wrap_init)
        _replace(module, "_new_group_with_tag", self._wrap_new_group)
        _replace(module, "split_group", self._wrap_split)
        methods = vars(module.Store)
        for name in _STORE_WAITS:
            if name in methods:
                setattr(module.Store, name, self._wrap_store_wait(methods[name], name))

    def _wrap_init(self, original: Function) -> Function:
        def init_process_group(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            timeout = _argument(args, kwargs, _INIT_TIMEOUT_AT, "timeout")
            begin = partial(self._begin_init, args, kwargs)
            result = self._during(begin, original, args, kwargs, timeout)
            with contextlib.suppress(Exception):
                self.groups.register(self.groups.default)
                self.flight.start()
            return result

        return init_process_group

    def _begin_init(self, args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> int:
        is_of_world = True
        with contextlib.suppress(Exception):  # arguments that torch will refuse
            size = _declared(_argument(args, kwargs, _SIZE_AT, "world_size"), "WORLD_SIZE")
            rank = _declared(_argument(args, kwargs, _RANK_AT, "rank"), "RANK")
            is_of_world = size in (None, self.recorder.size) and rank in (None, self.recorder.rank)
        return self._begin("init_process_group", CREATION_SCOPE if is_of_world else None)

    def _begin(self, name: str, scope: str | None, detail: str = "") -> int:
        """Record an operation of all ranks; without a scope, a wait for unknown ranks."""
        all_ranks = self.recorder.all_ranks
        if scope is None:
            sequence = next(self._waits)
            return self.recorder.begin(name, "wait", all_ranks, sequence=sequence, detail=detail)
        return self.recorder.begin(name, "collective", all_ranks, scope=scope, detail=detail)

    def _wrap_new_group(self, original: Function) -> Function:
        def _new_group_with_tag(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            ordinal, begin = None, lambda: NO_RECORD
            with contextlib.suppress(Exception):
                ordinal, begin = self._prepare_new_group(args, kwargs)
            timeout = _argument(args, kwargs, _NEW_TIMEOUT_AT, "timeout")
            pg = self._during(begin, original, args, kwargs, timeout)
            with contextlib.suppress(Exception):  # no member
                self.groups.register(pg, ordinal)
            return pg

        update_wrapper(_new_group_with_tag, original)
        return _new_group_with_tag

    def _prepare_new_group(
        self, args: Sequence[Argument], kwargs: Mapping[str, Argument]
    ) -> tuple[int | None, Callable[[], int]]:
        """Return the new group's ordinal, and what records that it is being made."""
        default = self.groups.get(self.groups.default)
        ranks = args[0] if args else kwargs.get("ranks")
        members = tuple(sorted(ranks)) if ranks is not None else tuple(sorted(default.members))
        detail = str(list(members))[:_MAX_KEYS]
        is_member = self.recorder.rank in members
        # Every rank calls it, so all count alike; but only members wait for each other.
        is_counted = is_member or not kwargs.get("use_local_synchronization")
        ordinal = self.groups.next_ordinal(members) if is_counted else None
        if not is_member or not default.is_of_world:
            return ordinal, lambda: NO_RECORD
        name, begin = "new_group", self.recorder.begin
        return ordinal, partial(begin, name, "collective", members, scope=name, detail=detail)

    def _begin_split(self, parent: ProcessGroup) -> int:
        """Record the next collective of the existing group."""
        self.recorder.notify("split_group", "collective")
        with contextlib.suppress(Exception):  # torch will complain of the group
            call, sequence = self.groups.get(parent).collective("split_group")
            return self.recorder.begin_call(call, next(sequence))
        return NO_RECORD

    def _wrap_split(self, original: Function) -> Function:
        def split_group(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            parent = args[0] if args else kwargs.get("parent_pg")
            parent = self.groups.default if parent is None else parent
            pg = self._during(partial(self._begin_split, parent), original, args, kwargs)
            with contextlib.suppress(Exception):  # no member
                self.groups.register(pg)
            return pg

        return split_group

    def _wrap_store_wait(self, original: Function, name: str) -> Function:
        def recorded(store: Store, *args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            if self._depth.count or _is_private(store):
                return original(store, *args, **kwargs)
            keys = ""
            with contextlib.suppress(Exception):  # arguments that torch will refuse
                keys = _keys(args, kwargs)
            given = [each for each in (*args, *kwargs.values()) if isinstance(each, timedelta)]
            timeout = given[0] if given else getattr(store, "timeout", None)
            begin = partial(self._begin, f"store.{name}", None, keys)
            return self._during(begin, original, (store, *args), kwargs, timeout)

        return copy_identity(original, recorded, name)

    def _during(
        self,
        begin: Callable[[], int],
        original: Function,
        args: Sequence[Argument],
        kwargs: Mapping[str, Argument],
        timeout: object = None,
    ) -> object:
        """Call `original` within an operation; the store's operations inside are not recorded."""
        __tracebackhide__ = True
        record = begin()
        if isinstance(timeout, timedelta):
            self.recorder.page.set_timeout(record, timeout.total_seconds())
        self._depth.count += 1
        try:
            with self.recorder.during(record):
                return original(*args, **kwargs)
        finally:
            self._depth.count -= 1


def _argument(
    args: Sequence[Argument], kwargs: Mapping[str, Argument], at: int, name: str
) -> Argument:
    return args[at] if len(args) > at else kwargs.get(name)


def _declared(value: int | None, variable: str) -> int | None:
    """Return a size or rank from the caller or the environment; None if neither gives it."""
    if value is not None and value >= 0:
        return value
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None


def _is_private(store: Store) -> bool:
    """Whether a store, below any prefixes, lies in this process.

    No other rank sets its keys or ends a wait for one: that is a wait for another thread.
    """
    with contextlib.suppress(Exception):  # another version of torch
        store = getattr(store, "_underlying_non_prefix_store", store)
    return type(store).__name__ == "HashStore"


def _keys(args: Sequence[Argument], kwargs: Mapping[str, Argument]) -> str:
    keys = args[0] if args else kwargs.get("key", "")
    text = keys if isinstance(keys, str) else ", ".join(map(str, keys))
    return text[:_MAX_KEYS]


def _replace(module: ModuleType, name: str, wrap: Callable[[Function], Function]) -> None:
    """Wrap a function of torch's, also where it has been imported by name.

    torch's decorators keep the decorated function in a closure cell. Whoever imported the
    decorated one by name calls through that cell, so the cell's content is replaced.
    """
    function = getattr(module, name, None)
    if function is None:
        return
    while True:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        cell = cells.get("func")
        if cell is None:
            setattr(module, name, update_wrapper(wrap(function), function))
            return
        inner = cell.cell_contents
        if "func" not in inner.__code__.co_freevars:
            cell.cell_contents = update_wrapper(wrap(inner), inner)
            return
        function = inner
