"""Record the operations of a rank that go through jax.

The wrapped functions are called from Python: the coordination service's barriers and key waits,
`multihost_utils`, and `jax.distributed` itself. A compiled program is recorded as one collective if
it has collectives with other processes; it is kept from C++ code that would start it unseen. With
several local devices its start returns, and the rank later waits for the result; that wait is
recorded, too. `numpy.asarray` reads an array of one device through the buffer protocol: that wait
is not recorded, and only native frames show it.

Only the outermost of nested operations is recorded: `sync_global_devices` calls `assert_equal`,
which calls `process_allgather`. Otherwise ranks that enter the same collective by different names
would count differently.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.jax_private import (
    ARRAY,
    ARRAY_VALUE,
    ARRAYS,
    BINDINGS,
    CALLBACKS,
    CLIENT,
    CLUSTERS,
    COMPILED_FAST_PATH,
    EMIT_CALLBACK,
    FAST_PATH,
    PIPELINE,
    PROGRAMS,
    START_PROGRAM,
    STATE,
    STATES,
    UTILS,
    JaxObject,
    add_cluster,
    may_span_processes,
    processes_of,
    started_by,
    state,
)
from pytest_multihost.core.model.collectives import COLLECTIVES, MULTIHOST_UTILS
from pytest_multihost.core.model.operation import (
    BARRIER_KIND,
    JAX_SHUTDOWN,
    PROGRAM_START,
    RUNTIME_SCOPE,
    Scope,
    program_scope,
)
from pytest_multihost.core.rank.recorder.calls import replace_code
from pytest_multihost.core.rank.recorder.exception_paths import fails_test
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.recorder.jax_keys import JaxKeys
from pytest_multihost.core.rank.recorder.jax_programs import CompiledProgram, JaxPrograms
from pytest_multihost.core.rank.recorder.recorder import Ranks, Recorder

_JAX_SCOPE = Scope("jax.distributed")
"""The scope of start and shutdown."""

_DEVICE_WAIT = "block_until_ready"
"""Name of the operation that waits for a result of this rank's own devices.

Its group is this rank alone. The program that the devices run has a record of its own.
"""

_DETAIL_CHARS = 120  # the slot page keeps texts for the rank's life and has little room
_LEAVES = 3

_recorders: list[_JaxRecorder] = []

_KEYS = (
    *("key_value_set", "key_value_set_bytes", "key_value_try_get", "key_value_try_get_bytes"),
    *("key_value_dir_get", "key_value_dir_get_bytes", "key_value_increment", "key_value_delete"),
)
"""Methods of a client that use the coordination service's keys without waiting for a rank."""

Call = Callable[..., Any]
Begin = Callable[[], int]
Describe = Callable[..., Begin | None]
"""Gets the arguments of a call; returns a function that records its start, None to skip it."""


def install(recorder: Recorder) -> None:
    """Record this rank's operations in jax from now on; jax may be imported later, or never.

    Wrapped functions take, return and raise the same as before.
    """
    wrappers = _JaxRecorder(recorder, JaxPrograms(recorder))
    _recorders.append(wrappers)
    for module, calls in wrappers.calls().items():
        after_import(module, partial(wrappers.wrap, calls))
    after_import(BINDINGS, wrappers.wrap_keys)
    after_import(PROGRAMS, wrappers.wrap_programs)
    after_import(PIPELINE, partial(wrappers.keep_from_fast_path, FAST_PATH))
    after_import(CALLBACKS, wrappers.wrap_callbacks)
    after_import(CLUSTERS, add_cluster)
    after_import(UTILS, wrappers.wrap_multihost_utils)


def note_keys(file: str) -> None:
    """Note the keys that this rank sets in jax's coordination service in a file, from now on."""
    for each in _recorders:
        each.keys.open(file)


def record_jax_client(client: type) -> None:
    """Record the operations of another class of clients, as those of jax's own."""
    for each in _recorders:
        each.wrap_client(client)


class _JaxThread(threading.local):
    """Whether this thread is inside a recorded operation."""

    is_inside = False


@dataclass(slots=True)
class _JaxRecorder:
    """Wraps functions of jax, and records their calls."""

    recorder: Recorder
    programs: JaxPrograms
    keys: JaxKeys = field(default_factory=JaxKeys)
    thread: _JaxThread = field(default_factory=_JaxThread)
    waits: Iterator[int] = field(default_factory=partial(itertools.count, 1))
    starts: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def calls(self) -> dict[str, dict[str, Describe]]:
        """Return the functions to wrap, by module, each with the function that describes its calls.

        `jax.block_until_ready` calls `batched_block_until_ready` for several arrays.
        """
        return {
            BINDINGS: {f"{CLIENT}.{name}": each for name, each in self.client_calls().items()},
            "jaxlib.xla_client": {"batched_block_until_ready": self._batch_wait},
            ARRAYS: dict.fromkeys(
                (f"{ARRAY}.{_DEVICE_WAIT}", f"{ARRAY}.item", ARRAY_VALUE), self._device_wait
            ),
            STATES: {
                f"{STATE}.initialize": self._initialize,
                f"{STATE}.shutdown": lambda state: self._collective(
                    state.client, JAX_SHUTDOWN, scope=_JAX_SCOPE
                ),
            },
        }

    def client_calls(self) -> dict[str, Describe]:
        """Return the methods of a client to wrap."""
        get, get_bytes = "blocking_key_value_get", "blocking_key_value_get_bytes"
        return {
            "wait_at_barrier": self._wait_at_barrier,
            "get_live_nodes": lambda client, process_ids: self._collective(
                client, "get_live_nodes", process_ids, Scope("live-nodes")
            ),
            get: partial(self._key_wait, get),
            get_bytes: partial(self._key_wait, get_bytes),
        }

    def wrap_client(self, client: type) -> None:
        """Wrap the methods of a class of clients."""
        self.wrap(self.client_calls(), client)
        self._notice_keys(client)

    def wrap(self, calls: Mapping[str, Describe], module: ModuleType | type) -> None:
        """Wrap functions, methods and properties of a module or class."""
        for path, describe in calls.items():
            with contextlib.suppress(Exception):  # another version of jax
                *classes, name = path.split(".")
                owner = functools.reduce(getattr, classes, module)
                call = getattr(owner, name)
                is_property = isinstance(call, property)
                wrapped = self._wrapped(call.fget if is_property else call, describe)
                setattr(owner, name, property(wrapped) if is_property else wrapped)

    def wrap_keys(self, module: ModuleType) -> None:
        """Wrap methods that only use keys: no rank waits in them, but faults can be bound there."""
        with contextlib.suppress(Exception):  # another version of jax
            self._notice_keys(getattr(module, CLIENT))

    def _notice_keys(self, owner: type) -> None:
        for name in _KEYS:
            with contextlib.suppress(Exception):  # another version of jax
                setattr(owner, name, self._noticed(name, getattr(owner, name)))

    def _noticed(self, name: str, call: Call) -> Call:
        thread, recorder, keys = self.thread, self.recorder, self.keys

        def noticed(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            if recorder.on_begin and not thread.is_inside:
                recorder.notify(name, "wait")
            result = call(*args, **kwargs)
            with contextlib.suppress(Exception):  # a full disk: nothing is noted
                keys.note(name, args, kwargs)
            return result

        return _named_as(call, noticed)

    def wrap_programs(self, module: ModuleType) -> None:
        """Wrap the start of programs."""
        with contextlib.suppress(Exception):  # another version of jax
            class_, _, method = START_PROGRAM.partition(".")
            owner = getattr(module, class_)
            call = getattr(owner, method)
            setattr(owner, method, _named_as(call, self._started(self._in_turn(call))))
        class_, _, method = COMPILED_FAST_PATH.partition(".")
        self.keep_from_fast_path(method, getattr(module, class_, None))

    def keep_from_fast_path(self, name: str, owner: object) -> None:
        """Wrap a function that hands programs to C++ code: not programs that are recorded."""
        with contextlib.suppress(Exception):  # another version of jax
            call = getattr(owner, name)
            setattr(owner, name, _named_as(call, self._unless_recorded(call)))

    def _unless_recorded(self, call: Call) -> Call:
        def handed_on(executable: JaxObject, *args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            with contextlib.suppress(Exception):  # no compiled program
                program = started_by(executable)
                if self._is_of_this_world(state().client) and self._known(program) is not None:
                    return None
            return call(executable, *args, **kwargs)

        return handed_on

    def wrap_callbacks(self, module: ModuleType) -> None:
        """Wrap the functions of the user that programs call on the host."""

        def emitting(original: Call) -> Call:
            def emit(ctx: JaxObject, callback: Call, *args: object, **kwargs: object) -> object:
                return original(ctx, self.programs.callback(callback), *args, **kwargs)

            return emit

        with contextlib.suppress(Exception):  # another version of jax
            replace_code(getattr(module, EMIT_CALLBACK), emitting)

    def _in_turn(self, call: Call) -> Call:
        """Wrap the start of a program, to wait for its result if operations run in streams.

        On GPUs processes connect at the first start: the call returns when all have started.
        """
        recorder = self.recorder

        def started(program: JaxObject, *args: object) -> object:
            __tracebackhide__ = True
            result = call(program, *args)
            if recorder.has_streams and may_span_processes(program):
                sys.modules["jax"].block_until_ready(result)
            return result

        return started

    def _started(self, call: Call) -> Call:
        """Wrap the start of a program, to record it."""
        thread = self.thread

        def recorded(program: JaxObject, *args: object) -> object:
            __tracebackhide__ = True
            begin, group = None, None
            if not thread.is_inside:
                with contextlib.suppress(Exception):  # another version of jax
                    begin, group = self._start_program(program)
            if begin is None:
                return call(program, *args)
            record = begin()
            thread.is_inside = True
            try:
                if group is None:
                    with self.recorder.during(record):
                        return call(program, *args)
                with self.programs.running(record, group) as returned:
                    result = call(program, *args)
                    returned(result)
                return result
            finally:
                thread.is_inside = False

        return recorded

    def wrap_multihost_utils(self, module: ModuleType) -> None:
        """Wrap the functions in place, because test modules have already imported them by name."""
        for each in COLLECTIVES:
            for name in each.functions if each.file == MULTIHOST_UTILS else ():
                detail = _DETAILS.get(name, lambda *_, **__: "")
                describe = partial(self._multihost_util, each.name, detail)
                with contextlib.suppress(Exception):  # another version of jax
                    replace_code(getattr(module, name), partial(self._wrapped, describe=describe))

    def _wrapped(self, call: Call, describe: Describe) -> Call:
        thread, recorder, programs = self.thread, self.recorder, self.programs
        is_device_wait = describe in (self._device_wait, self._batch_wait)

        def recorded(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            programs.settle()
            try:
                begin = None if thread.is_inside else describe(*args, **kwargs)
            except Exception:  # noqa: BLE001 - wrong arguments, a deleted array: the call raises
                begin = None
            if begin is None:
                return call(*args, **kwargs)
            record = begin()
            thread.is_inside = True
            try:
                with recorder.during(record):
                    if not is_device_wait:
                        return call(*args, **kwargs)
                    arrays: Any = args[:1] if describe == self._device_wait else args[0]
                    with programs.awaited([*arrays]):
                        return call(*args, **kwargs)
            finally:
                thread.is_inside = False

        return _named_as(call, recorded)

    def _start_program(self, program: JaxObject) -> tuple[Begin | None, int | None]:
        """Describe the start of a program; return also its group if its collectives are known.

        The processes on which it runs are recorded as well. If its collectives are unknown, the
        call itself is recorded only if its error fails the test, and no thread counts as waiting
        for it, because it may compute.
        """
        processes = processes_of(program)
        if len(processes) < 2 or not self._is_of_this_world(state().client):  # noqa: PLR2004
            return None, None
        page, scope = self.recorder.page, program_scope(*self.recorder.user_line())
        page.reach(page.group(self._ranks(processes), 0, scope), next(self.starts))
        must_pass = fails_test(get_frame(1), _directory())
        if (known := self._known(program)) is None:
            return (self._begin_start if must_pass else None), None
        group, detail = page.group(self._ranks(known.processes)), _shortened(known.detail)

        def begin() -> int:
            call = page.call(known.name, "collective", group)
            record = self.recorder.begin_call(call, 0, page.detail(detail))
            if must_pass:
                page.set_fails_test(record)
            return record

        return begin, group

    def _known(self, program: JaxObject) -> CompiledProgram | None:
        return self.programs.program(program, state().process_id)

    def _begin_start(self) -> int:
        page = self.recorder.page
        call = page.call(PROGRAM_START, "wait", page.group((self.recorder.rank,)))
        record = self.recorder.begin_call(call, next(self.waits))
        page.leave(record)
        page.set_fails_test(record)
        return record

    def _wait_at_barrier(
        self,
        client: object,
        barrier_id: str,
        timeout_in_ms: int,
        process_ids: Iterable[int] | None = None,
    ) -> Begin | None:
        scope, timeout_s = Scope(BARRIER_KIND, barrier_id), timeout_in_ms / 1000
        return self._collective(
            client, "wait_at_barrier", process_ids, scope, barrier_id, timeout_s
        )

    def _initialize(self, _: object, *args: object, **kwargs: object) -> Begin | None:
        name, begin, ranks = "jax.distributed.initialize", self.recorder.begin, self._own_ranks
        count = args[1] if len(args) > 1 else kwargs.get("num_processes")
        number = args[2] if len(args) > 2 else kwargs.get("process_id")  # noqa: PLR2004
        detail = ""
        if isinstance(count, int) and count > len(ranks) and number == self._own_number:
            detail = f"of {count} processes, but there are {len(ranks)} ranks"
        elif count not in {None, len(ranks)}:
            return None
        return partial(begin, name, "collective", ranks, scope=_JAX_SCOPE, detail=detail)

    @property
    def _own_ranks(self) -> Ranks:
        return self.recorder.role_ranks

    @property
    def _own_number(self) -> int:
        """The number of this process in jax, if its processes are the ranks of the role."""
        return self._own_ranks.index(self.recorder.rank)

    def _multihost_util(
        self, name: str, detail: Callable[..., str], /, *args: object, **kwargs: object
    ) -> Begin | None:
        """Describe a call that all processes make, unless this process is not one of several."""
        begin = self._collective(state().client, name, detail=detail(*args, **kwargs))
        if begin is None or not fails_test(get_frame(1), _directory()):
            return begin

        def begin_what_fails_test() -> int:
            record = begin()
            self.recorder.page.set_fails_test(record)
            return record

        return begin_what_fails_test

    def _collective(
        self,
        client: JaxObject,
        name: str,
        process_ids: Iterable[int] | None = None,
        scope: Scope = RUNTIME_SCOPE,
        detail: str = "",
        timeout_s: float | None = None,
    ) -> Begin | None:
        """Describe a collective of some or all processes; None for those of another jax world."""
        if not self._is_of_this_world(client):
            return None
        return partial(
            self.recorder.begin,
            name,
            "collective",
            self._ranks(process_ids) if process_ids else self.recorder.role_ranks,
            scope=scope,
            detail=_shortened(detail),
            timeout_s=timeout_s,
        )

    def _is_of_this_world(self, client: object) -> bool:
        """Return whether the client's processes are the ranks of the world, or of this rank's role.

        They have the same numbers there. A test may start other jax worlds, of some of the ranks or
        with separate clients.
        """
        here, own = state(), (self._own_number, len(self._own_ranks))
        process = (here.process_id, here.num_processes)
        return client is not None and client is here.client and process == own

    def _key_wait(self, name: str, _: object, /, key: str, *__: object, **___: object) -> Begin:
        return self._wait(name, self.recorder.role_ranks, key)

    def _ranks(self, process_ids: Iterable[int]) -> Ranks:
        """Return the ranks that are processes of jax."""
        ranks = self.recorder.role_ranks
        return tuple(sorted({ranks[each] for each in process_ids}))

    def _device_wait(self, array: JaxObject, *_: object) -> Begin | None:
        """Describe a wait for an array; None if it is ready, which costs well under a microsecond.

        `is_ready` of a deleted array ends the process (jax 0.10.2, SIGSEGV).
        """
        if array.is_deleted() or array.is_ready():
            return None
        return self._wait(_DEVICE_WAIT, (self.recorder.rank,), _shapes([array]))

    def _batch_wait(self, arrays: Iterable[JaxObject]) -> Begin | None:
        described = (self._device_wait(array) for array in arrays)
        return next((begin for begin in described if begin is not None), None)

    def _wait(self, name: str, group: Ranks, detail: str) -> Begin:
        sequence, begin = next(self.waits), self.recorder.begin
        return partial(begin, name, "wait", group, sequence=sequence, detail=_shortened(detail))


def _named_as(call: Call, wrapper: Call) -> Call:
    """Return a wrapper with the names of the wrapped function; C++ methods lack some of these."""
    named = [each for each in functools.WRAPPER_ASSIGNMENTS if getattr(call, each, None)]
    return functools.update_wrapper(wrapper, call, named)


def _directory() -> str:
    return f"{Path(sys.modules['jax'].__file__ or '').parent}/"


def _shapes(tree: object) -> str:
    """Return type and shape of the first arrays of `tree`; their values are not read."""
    leaves = sys.modules["jax"].tree_util.tree_leaves(tree)
    shown = [
        f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(getattr(leaf, 'shape', ()))}"
        for leaf in leaves[:_LEAVES]
    ]
    return ", ".join(shown + ["…"] * (len(leaves) > _LEAVES))


def _shortened(text: str) -> str:
    return text if len(text) <= _DETAIL_CHARS else f"{text[: _DETAIL_CHARS - 1]}…"


_DETAILS: dict[str, Callable[..., str]] = {
    "sync_global_devices": lambda name: name,
    "process_allgather": lambda in_tree, *_, **__: _shapes(in_tree),
    "broadcast_one_to_all": lambda in_tree, *_, **__: _shapes(in_tree),
    "assert_equal": lambda in_tree, fail_message="": fail_message or _shapes(in_tree),
}
"""The details of calls of `multihost_utils`, by function."""
