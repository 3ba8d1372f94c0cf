"""Record the operations of a rank that go through torch.distributed.

The methods of the bound C++ class `ProcessGroup` are wrapped, not the functions of
`torch.distributed`. A test module with `from torch.distributed import all_reduce` holds the
function itself, and a wrapper in torch's module would not reach it. But every such function, DDP,
FSDP and the object collectives all call the class. So one operation is recorded for each call of
the class, and the other ranks must match it. Only torch's flight recorder sees calls from C++ to
C++. The functions that make groups, the waits of stores, and the rendezvous of torch's elastic
agents are also wrapped. `torch_rpc` wraps torch.distributed.rpc.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, update_wrapper
from types import ModuleType
from urllib.parse import urlsplit

from pytest_multihost.core.model.collectives import COLLECTIVES
from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.memberships import creation_scope
from pytest_multihost.core.model.operation import REQUEST_SCOPE, STORE_CLIENT, STORE_KIND, Scope
from pytest_multihost.core.model.rank_names import rank_numbers
from pytest_multihost.core.rank.recorder import torch_rpc
from pytest_multihost.core.rank.recorder.calls import (
    Begin,
    Calls,
    Described,
    replace_code,
    replace_function,
    seconds,
)
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.recorder.recorder import Recorder
from pytest_multihost.core.rank.recorder.torch_flight_recorder import FlightRecorderThread
from pytest_multihost.core.rank.recorder.torch_groups import (
    Argument,
    Function,
    Groups,
    ProcessGroup,
    copy_identity,
)
from pytest_multihost.core.rank.recorder.torch_process_groups import (
    OpenWorks,
    ProcessGroupRecorder,
)
from pytest_multihost.core.slots import NO_RECORD
from pytest_multihost.core.torch_private import (
    BUILD_GROUP,
    MAKE_GROUP,
    agree_in,
    default_store,
    file_store_class,
    gloo_class,
    is_of_this_process,
    reducer_class,
    tcp_store_class,
    where_is,
    where_is_port,
)


def record_elastic_agents(calls: Calls) -> None:
    """Record the rendezvous of elastic agents, now or once the module is imported.

    Their barriers are recorded as waits for the store.
    """

    def describe(**given: Argument) -> Described:
        """Describe how a node joins; with fewer than the most nodes, `last_call` ends the wait."""
        settings = given["self"].settings
        needs_all = settings.min_nodes == settings.max_nodes
        timeout = settings.timeout.join
        if not needs_all:
            timeout = min(timeout, settings.timeout.last_call)
        is_of_world = calls.recorder.are_all(settings.max_nodes)
        scope = Scope("rendezvous", settings.run_id)
        size = None
        if not is_of_world:
            scope, size = creation_scope(f"rendezvous {settings.run_id}"), settings.max_nodes
        begin = calls.begin("rendezvous", scope, size=size, detail=settings.run_id, timeout=timeout)
        return begin, lambda _: None

    def wrap(module: ModuleType) -> None:
        record = partial(calls.recorded_by_name, describe)
        replace_function(module.DynamicRendezvousHandler, "next_rendezvous", record)

    after_import("torch.distributed.elastic.rendezvous.dynamic_rendezvous", wrap)


CREATION_SCOPE = Scope("creation")
"""The scope of `init_process_group`: there is no group yet whose operations can be counted."""

_NAMES = "pytest-multihost/"
"""The prefix of the keys under which the members of a group agree on its name in its store."""

_STORE_WAITS = ("get", "wait", "multi_get", "queue_pop", "barrier")
_STORE_WRITES = ("set", "add", "append", "compare_set", "delete_key", "multi_set", "queue_push")
_OBJECT_CALLS = (
    *(name for each in COLLECTIVES if each.moves_objects for name in each.functions),
    *("recv_object_list", "send_object_list"),
)
_MAX_KEYS = 120
_MAX_STORES = 64
"""Of how many stores a rank notes that it uses them."""

_TRUE = frozenset({"y", "yes", "1", "t", "true"})
"""Values of an environment variable that torch takes for true."""

_TCP_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class _TorchClasses:
    """Classes whose operations are recorded, besides torch's own.

    Attributes:
        groups: Python subclasses of `ProcessGroup`.
        works: Python subclasses of `Work`.
        stores: Python subclasses of `Store`.
    """

    groups: Sequence[type]
    works: Sequence[type]
    stores: Sequence[type]


_known: list[_TorchClasses] = []
_recorders: list[Callable[[_TorchClasses], None]] = []


def record_torch_classes(
    *, groups: Sequence[type], works: Sequence[type], stores: Sequence[type]
) -> None:
    """Record the operations of a backend's own classes, as those of torch's; once in a process.

    Wrapping the bound classes does not reach methods that a Python subclass overrides.
    """
    found = _TorchClasses(tuple(groups), tuple(works), tuple(stores))
    if found not in _known:
        _known.append(found)
        for record in _recorders:
            record(found)


def install(recorder: Recorder) -> None:
    """Record this rank's torch.distributed operations, now or once it is imported.

    Wrapped functions take, return and raise the same as before.
    """
    calls = Calls(recorder)

    def wrap(module: ModuleType) -> None:
        works = OpenWorks(recorder)
        groups = Groups(recorder, module, lambda: works.streams.start(module.torch))
        flight = FlightRecorderThread(recorder, groups, works)
        with contextlib.suppress(Exception):  # another version of torch: the rest is wrapped
            works.wrap(module.Work)
        with contextlib.suppress(Exception):
            works.wrap_batch(module)
        with contextlib.suppress(Exception):
            works.wrap_reducer(reducer_class(module))
        process_groups = ProcessGroupRecorder(recorder, groups, works)
        with contextlib.suppress(Exception):
            process_groups.wrap(module.ProcessGroup)
        with contextlib.suppress(Exception):
            process_groups.wrap_backend(gloo_class(module))
        creations = GroupCreationRecorder(recorder, groups, flight, calls)
        with contextlib.suppress(Exception):
            creations.wrap(module)

        def record(found: _TorchClasses) -> None:
            for each in found.groups:
                process_groups.wrap(each)
            for each in found.works:
                works.wrap(each)
            for each in found.stores:
                creations.wrap_store(each)

        _recorders.append(record)
        for each in _known:
            record(each)

    after_import("torch.distributed.distributed_c10d", wrap)
    torch_rpc.install(calls)
    record_elastic_agents(calls)


@dataclass(slots=True, eq=False)
class GroupCreationRecorder:
    """Records the creation of groups, and waits for keys of stores.

    Writes to a store and the calls that move objects are points, but are not recorded: no rank
    waits in a write, and the collectives inside the other calls are recorded themselves.
    """

    recorder: Recorder
    groups: Groups
    flight: FlightRecorderThread  # started with the first group
    calls: Calls
    _sizes: dict[str, int] = field(default_factory=dict)
    _stores: dict[str, Scope] = field(default_factory=dict)

    def wrap(self, module: ModuleType) -> None:
        """Wrap the functions of `torch.distributed.distributed_c10d`, and its `Store`."""
        replace_function(
            module, "init_process_group", partial(self.calls.recorded_by_name, self._init)
        )
        replace_function(module, MAKE_GROUP, partial(self.calls.recorded_by_name, self._new_group))
        replace_function(module, "split_group", partial(self.calls.recorded_by_name, self._split))
        with contextlib.suppress(AttributeError):  # another version of torch
            build = getattr(module, BUILD_GROUP)  # programs import it by its name
            replace_code(build, self._recorded_build)
        self.wrap_store(module.Store)
        for name in _OBJECT_CALLS:
            replace_function(module, name, partial(self._noticed, name))
        tcp_store = tcp_store_class(module)
        connected = self.calls.recorded(self._connect, tcp_store.__init__)
        tcp_store.__init__ = copy_identity(tcp_store.__init__, connected)
        with contextlib.suppress(AttributeError):  # a torch without gloo
            gloo = gloo_class(module)
            joined = self.calls.recorded(self._join, gloo.__init__)
            gloo.__init__ = copy_identity(gloo.__init__, joined)
        file_store = file_store_class(module)
        file_store.__init__ = copy_identity(
            file_store.__init__, self._using(file_store.__init__, is_used_after=True)
        )

    def wrap_store(self, store: type) -> None:
        """Wrap the methods of a class of stores."""
        for name, original in list(vars(store).items()):
            if name in _STORE_WAITS:
                recorded = self.calls.recorded(partial(self._store_wait, name), original)
                setattr(store, name, copy_identity(original, recorded))
            elif name in _STORE_WRITES:
                noticed = self._noticed(f"store.{name}", original)
                setattr(store, name, copy_identity(original, self._using(noticed)))

    def _using(self, original: Function, *, is_used_after: bool = False) -> Function:
        """Wrap a method of a store, so that the rank notes that it uses the store.

        Args:
            is_used_after: Whether the method makes the store.
        """

        def used(store: Argument, *args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            if not is_used_after:
                self._scope_of(store)
            result = original(store, *args, **kwargs)
            if is_used_after:
                self._scope_of(store)
            return result

        return used

    def _scope_of(self, store: Argument) -> Scope | None:
        """Return the scope of waits at a store, and note that this rank uses it.

        It is None for the store of the default group, which all ranks use, for one whose place is
        unknown, and for a store that torch itself uses.
        """
        with contextlib.suppress(Exception):  # an error in recording must not fail the test
            return self._scope_at("" if self.calls.are_nested else where_is(store))
        return None

    def _scope_at(self, where: str) -> Scope | None:
        """Return the scope of waits at the store with a place; see `_scope_of`."""
        is_full = where not in self._stores and len(self._stores) == _MAX_STORES
        if not where or is_full or where == where_is(default_store(self.groups.module)):
            return None
        if where not in self._stores:
            self._stores[where] = Scope(STORE_KIND, where)
            self.recorder.page.group(self.recorder.all_ranks, 0, self._stores[where])
        return self._stores[where]

    def _noticed(self, name: str, original: Function) -> Function:
        def noticed(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            if not self.recorder.on_begin or self.calls.are_nested:
                return original(*args, **kwargs)
            self.recorder.notify(name, "wait")
            with self.recorder.inside():
                return original(*args, **kwargs)

        return noticed

    def _init(
        self,
        init_method: str | None = None,
        timeout: object = None,
        world_size: int = -1,
        rank: int = -1,
        store: Argument = None,
        **_: object,
    ) -> Described:
        self.recorder.claim()
        size = _declared(world_size, "WORLD_SIZE")
        rank_in_group = _declared(rank, "RANK")
        recorder = self.recorder

        def made(_: object) -> None:
            self.groups.get(self.groups.default)
            self._start_flight_recorder(self.groups.default)

        if recorder.is_numbered(rank_in_group, size):
            return self.calls.begin("init_process_group", CREATION_SCOPE, timeout=timeout), made
        where = _where_meets(init_method) if store is None else where_is(store)
        begin = self.calls.begin(
            "init_process_group", self._creation(where, size), size=size, timeout=timeout
        )
        return begin, made

    def _start_flight_recorder(self, made: ProcessGroup) -> None:
        """Let torch's flight recorder be asked, if it can know a group: not one of a backend."""
        if not isinstance(made, tuple(group for each in _known for group in each.groups)):
            self.flight.start()

    def _creation(self, where: str, size: int | None) -> Scope:
        """Return the scope in which a group of other processes than this world's ranks is made."""
        if where:
            self._sizes[where] = size or 0
        return creation_scope(where or f"rank {self.recorder.rank}")

    def _recorded_build(self, original: Function) -> Function:
        return update_wrapper(self.calls.recorded_by_name(self._build, original), original)

    def _build(
        self,
        group_size: int,
        group_rank: int,
        global_ranks_in_group: object,
        store: Argument,
        group_name: str = "",
        backend: object = None,
        **_: object,
    ) -> Described | None:
        """Describe how a group is built whose members have numbers of their own.

        That is a default group of other processes than the world's ranks, or a group that a program
        makes without one. Its members agree on a name for it.
        """
        self.recorder.claim()
        recorder, is_default = self.recorder, self.calls.are_nested
        has_ranks = recorder.is_numbered(group_rank, group_size)
        if global_ranks_in_group or group_size <= 0 or (is_default and has_ranks):
            return None
        name, is_agreed = self.groups.new_name(), False

        def begin() -> int:
            nonlocal name, is_agreed
            record = NO_RECORD
            with contextlib.suppress(Exception):
                if not is_default:  # the creation of a default group is recorded already
                    scope, page = self._creation(where_is(store), group_size), recorder.page
                    call = page.call(BUILD_GROUP, "collective", page.group((), group_size, scope))
                    record = recorder.begin_call(call, 0, 0, recorder.user_source(2))
            with contextlib.suppress(Exception), self.calls.nested():
                name = agree_in(store, f"{_NAMES}{group_name}", name)
                is_agreed = True
            self.groups.declare(group_rank, group_size, name)
            return record

        def made(result: Argument) -> None:
            self.groups.register_numbered(result[0], name)
            if is_agreed and str(backend) == "gloo" and not _meets_later():
                self.groups.complete(group_size, name)
            self._start_flight_recorder(result[0])

        return begin, made

    def _join(
        self, group: ProcessGroup, store: Argument, rank: int, size: int, *_: object, **__: object
    ) -> Described | None:
        """Describe how a program makes a group of gloo itself, whose members have own numbers."""
        if self.calls.are_nested or _meets_later():
            return None
        self.recorder.claim()
        with self.calls.nested():
            name = agree_in(store, f"{_NAMES}gloo", self.groups.new_name())

        def begin() -> int:
            self.groups.declare(rank, size, name)
            return NO_RECORD

        def made(_: object) -> None:
            self.groups.register_numbered(group, name)
            self.groups.complete(size, name)

        return begin, made

    def _new_group(
        self,
        ranks: Iterable[int] | None = None,
        timeout: object = None,
        backend: object = None,
        *,
        use_local_synchronization: bool = False,
        **_: object,
    ) -> Described:
        """Describe `new_group`, which every rank calls; only members wait for each other."""
        default = self.groups.get(self.groups.default)
        members = tuple(sorted(default.members if ranks is None else ranks))
        is_member = self.groups.default.rank() in members
        is_counted = is_member or not use_local_synchronization
        ordinal = self.groups.next_ordinal(members, default.torch_world) if is_counted else None
        made = partial(
            self.groups.register, ordinal=ordinal, is_for_cpu=str(backend).lower() == "gloo"
        )
        request = None
        if not use_local_synchronization and not default.torch_world:
            request = partial(self._note_request, default.members, members)
        if not is_member:
            return partial(self._requested, request, lambda: NO_RECORD), made
        begin = partial(
            self.recorder.begin,
            "new_group",
            "collective",
            members,
            scope=Scope("new_group", default.torch_world),
            detail=str(list(members))[:_MAX_KEYS],
            timeout_s=seconds(timeout),
        )
        return partial(self._requested, request, begin), made

    def _requested(self, request: Callable[[], None] | None, begin: Begin) -> int:
        """Begin to make a group, and record that all ranks are to ask for it."""
        record = begin()
        if request is not None:
            with contextlib.suppress(Exception):  # an error in recording must not fail the test
                request()
        return record

    def _note_request(self, ranks: tuple[int, ...], members: tuple[int, ...]) -> None:
        page = self.recorder.page
        call = page.call("new_group", "collective", page.group(ranks, 0, REQUEST_SCOPE))
        source = self.recorder.user_source(2)
        page.note(call, now_ns(), source, page.detail(rank_numbers(members)))

    def _split(self, parent_pg: ProcessGroup = None, **_: object) -> Described:
        """Describe `split_group` as the next collective of the existing group."""
        group = self.groups.get(self.groups.default if parent_pg is None else parent_pg)

        def begin() -> int:
            self.recorder.notify("split_group", "collective")
            call, sequence = group.prepare("split_group", "collective")
            return self.recorder.begin_call(call, next(sequence))

        made = partial(self.groups.register, parent=parent_pg)
        return begin, made

    def _connect(
        self,
        _store: object,
        _host: str = "",
        port: int = 0,
        world_size: int | None = None,
        is_master: bool = False,  # noqa: FBT001, FBT002 - torch's
        timeout: timedelta = _TCP_TIMEOUT,
        wait_for_workers: bool = True,  # noqa: FBT001, FBT002 - torch's
        **_: object,
    ) -> Described | None:
        """Describe how a store's host waits for its clients, and the clients for the host."""
        if self.calls.are_nested:
            return None
        scope, size, at = None, None, None
        if wait_for_workers and self.recorder.are_all(world_size):
            scope = Scope("store")
        elif wait_for_workers and world_size is not None:
            where, size = where_is_port(port) if port else "", world_size
            scope = self._creation(where, size)
        elif port and not is_master:
            at = self._scope_at(where_is_port(port))
        detail = "host" if is_master else "client"
        begin = self.calls.begin(
            STORE_CLIENT, scope, size=size, detail=detail, timeout=timeout, at=at
        )
        return begin, lambda _: self._scope_of(_store)

    def _store_wait(
        self, name: str, store: Argument, *args: Argument, **kwargs: Argument
    ) -> Described | None:
        """Describe a wait for keys, unless torch itself makes it or no other rank can end it."""
        if self.calls.are_nested or is_of_this_process(store):
            return None
        keys = args[0] if args else kwargs.get("key", "")
        text = keys if isinstance(keys, str) else ", ".join(map(str, keys))
        given = (each for each in (*args, *kwargs.values()) if isinstance(each, timedelta))
        timeout = next(given, getattr(store, "timeout", None))
        size = self._sizes.get(where_is(store)) if self._sizes else None
        begin = self.calls.begin(
            f"store.{name}",
            None,
            size=size,
            detail=text[:_MAX_KEYS],
            timeout=timeout,
            at=self._scope_of(store) if size is None else None,
        )
        return begin, lambda _: None


def _meets_later() -> bool:
    """Return whether the members of gloo's groups meet only when they need each other."""
    return os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() in _TRUE


def _where_meets(init_method: str | None) -> str:
    """Return where the processes meet that make a default group by `init_method`; see `where_is`.

    It is empty if that is unknown.
    """
    url = urlsplit(init_method or "env://")
    match url.scheme:
        case "env":
            port = os.environ.get("MASTER_PORT", "")
            return where_is_port(int(port)) if port.isdecimal() else ""
        case "tcp":
            return where_is_port(url.port) if url.port else ""
        case "file":
            return f"file {url.path}"
    return ""


def _declared(value: int, variable: str) -> int | None:
    """Return a size or rank given by the caller or else the environment; None if neither does."""
    if value >= 0:
        return value
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() else None
