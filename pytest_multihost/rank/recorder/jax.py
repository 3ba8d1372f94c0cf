"""Record what a rank does with other ranks through jax.

Wrapped is what jax calls from Python: the coordination service's barriers and key waits,
`multihost_utils`, `jax.distributed` itself. A jitted function's collective cannot be recorded: it
is C++ from the call on. With several local devices the call returns, and the rank waits where it
needs the result; that wait is recorded, as one for its own devices. With one local device the
collective runs inside the call, and `numpy.asarray` reads an array of one device through the
buffer protocol: nothing is recorded, and only native frames show the wait.

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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, ModuleType
from typing import Any

from pytest_multihost.model.operation import program_scope
from pytest_multihost.rank.recorder.after_import import after_import
from pytest_multihost.rank.recorder.recorder import Ranks, Recorder

Program = Any  # that jax has compiled
Namespace = Any  # a module or class in which something is wrapped
Argument = Any  # of a function: a client, a state, or what jax will refuse
Array = Any
"""Objects of jax's, which the type checker does not see."""

BARRIER_SCOPE = "barrier "
"""Begins the scope of a coordination service's barrier; the barrier's id follows."""

RUNTIME_SCOPE = "jax.distributed"
"""The scope of starting and shutting down."""

DEVICE_WAIT = "block_until_ready"
"""Name of the operation that waits for what this rank's own devices compute.

Its group is this rank alone. What the devices wait for, only native frames show.
"""

_DETAIL_CHARS = 120  # the slot page keeps texts for the rank's life and has little room
_LEAVES = 3

Call = Callable[..., Any]
Begin = Callable[[], int]
Describe = Callable[..., Begin | None]
"""Gets the arguments of a call; returns what records its begin, None if nothing is recorded."""


def install(recorder: Recorder) -> None:
    """Record what this rank does through jax from now on; jax may be imported later, or never.

    What is wrapped takes, returns and raises what it did before.
    """
    wrappers = _JaxRecorder(recorder)
    after_import("jaxlib._jax", wrappers.wrap_coordination)
    after_import("jaxlib.xla_client", wrappers.wrap_batches)
    after_import("jax._src.array", wrappers.wrap_arrays)
    after_import("jax._src.distributed", wrappers.wrap_runtime)
    after_import("jax._src.interpreters.pxla", wrappers.wrap_programs)
    after_import("jax.experimental.multihost_utils", wrappers.wrap_multihost_utils)


class _Thread(threading.local):
    """Whether this thread is inside a recorded operation."""

    is_inside = False


@dataclass(slots=True)
class _JaxRecorder:
    """What is wrapped, and how its calls are recorded."""

    recorder: Recorder
    thread: _Thread = field(default_factory=_Thread)
    waits: Iterator[int] = field(default_factory=partial(itertools.count, 1))
    starts: Iterator[int] = field(default_factory=partial(itertools.count, 1))

    def wrap_coordination(self, module: ModuleType) -> None:
        """Wrap the client of the coordination service."""
        client = module.DistributedRuntimeClient
        for name in ("wait_at_barrier", "get_live_nodes"):
            self._wrap(client, name, getattr(self, f"_{name}"))
        for name in ("blocking_key_value_get", "blocking_key_value_get_bytes"):
            self._wrap(client, name, partial(self._key_wait, name))

    def wrap_runtime(self, module: ModuleType) -> None:
        """Wrap the class behind `jax.distributed`, whose functions are imported by name."""
        self._wrap(module.State, "initialize", self._initialize)
        self._wrap(module.State, "shutdown", self._shutdown)

    def wrap_multihost_utils(self, module: ModuleType) -> None:
        """Wrap the functions in place: test modules have already imported them by name."""
        for name, detail in _DETAILS.items():
            wrap = partial(self._wrapped, describe=partial(self._multihost_util, name, detail))
            with contextlib.suppress(Exception):  # another version of jax
                _replace_code(getattr(module, name), wrap)

    def wrap_arrays(self, module: ModuleType) -> None:
        """Wrap where Python code waits for an array."""
        arrays = module.ArrayImpl
        for name in (DEVICE_WAIT, "item"):
            self._wrap(arrays, name, self._device_wait)
        with contextlib.suppress(Exception):
            wait = self._wrapped(vars(arrays)["_value"].fget, describe=self._device_wait)
            arrays._value = property(wait)  # noqa: SLF001 - float(), tolist(), __array__ and print

    def wrap_batches(self, module: ModuleType) -> None:
        """Wrap what `jax.block_until_ready` calls with several arrays."""
        self._wrap(module, "batched_block_until_ready", self._batch_wait)

    def wrap_programs(self, module: ModuleType) -> None:
        """Wrap where Python starts a program: at its first call, and later ones with effects."""
        with contextlib.suppress(Exception):  # another version of jax
            start = module.ExecuteReplicated.__call__
            module.ExecuteReplicated.__call__ = self._wrapped_start(start)

    def _wrapped_start(self, start: Call) -> Call:
        @functools.wraps(start)
        def recorded(program: Program, *args: object) -> object:
            __tracebackhide__ = True
            with contextlib.suppress(Exception):  # an error in recording is no error of the test
                self._record_program(program)
            return start(program, *args)

        return recorded

    def _record_program(self, program: Program) -> None:
        """Record on which processes a program runs; a recorded operation has its own members."""
        shardings = (*program.out_handler.out_shardings, *program.in_handler.in_shardings)
        processes = {device.process_index for device in next(iter(shardings)).device_set}
        client = sys.modules["jax._src.distributed"].global_state.client
        if self.thread.is_inside or len(processes) == 1 or not self._is_of_this_world(client):
            return
        page, scope = self.recorder.page, program_scope(*self.recorder.user_line())
        page.reach(page.group(tuple(sorted(processes)), 0, scope), next(self.starts))

    def _wrap(self, owner: Namespace, name: str, describe: Describe) -> None:
        with contextlib.suppress(Exception):  # another version of jax
            setattr(owner, name, self._wrapped(getattr(owner, name), describe=describe))

    def _wrapped(self, call: Call, *, describe: Describe) -> Call:
        thread, recorder = self.thread, self.recorder

        def recorded(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
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
                    return call(*args, **kwargs)
            finally:
                thread.is_inside = False

        _copy_metadata(recorded, call)
        return recorded

    def _wait_at_barrier(
        self,
        client: object,
        barrier_id: str,
        timeout_in_ms: Argument = None,
        process_ids: Iterable[int] | None = None,
    ) -> Begin | None:
        scope = f"{BARRIER_SCOPE}{barrier_id}"
        begin = self._barrier(client, "wait_at_barrier", scope, process_ids, barrier_id)
        return begin and partial(self._begin_with_timeout, begin, timeout_in_ms)

    def _begin_with_timeout(self, begin: Begin, timeout_in_ms: Argument) -> int:
        record = begin()
        with contextlib.suppress(TypeError):  # what jax will refuse
            self.recorder.page.set_timeout(record, timeout_in_ms / 1000)
        return record

    def _get_live_nodes(self, client: object, process_ids: Iterable[int]) -> Begin | None:
        return self._barrier(client, "get_live_nodes", "live nodes", process_ids, "")

    def _barrier(
        self, client: object, name: str, scope: str, process_ids: Iterable[int] | None, detail: str
    ) -> Begin | None:
        if not self._is_of_this_world(client):
            return None
        group = tuple(sorted({*process_ids})) if process_ids else None
        return self._begin(name, group, scope=scope, detail=detail)

    def _key_wait(self, name: str, _: object, /, key: str, *__: object, **___: object) -> Begin:
        return self._begin_wait(name, self.recorder.all_ranks, _shortened(key))

    def _initialize(self, _: object, *args: object, **kwargs: object) -> Begin | None:
        count = args[1] if len(args) > 1 else kwargs.get("num_processes")
        if count not in {None, self.recorder.size}:
            return None
        return self._begin("jax.distributed.initialize", scope=RUNTIME_SCOPE)

    def _shutdown(self, state: Argument) -> Begin | None:
        if not self._is_of_this_world(state.client):
            return None
        return self._begin("jax.distributed.shutdown", scope=RUNTIME_SCOPE)

    def _multihost_util(
        self, name: str, detail: Callable[..., str], /, *args: object, **kwargs: object
    ) -> Begin | None:
        """Describe a call that all processes make; alone, each has nothing to wait for."""
        client = sys.modules["jax._src.distributed"].global_state.client
        if not self._is_of_this_world(client):
            return None
        return self._begin(name, detail=detail(*args, **kwargs))

    def _begin(
        self, name: str, group: Ranks | None = None, *, scope: str = "", detail: str = ""
    ) -> Begin:
        members, detail = group or self.recorder.all_ranks, _shortened(detail)
        begin = self.recorder.begin
        return partial(begin, name, "collective", members, scope=scope, detail=detail)

    def _begin_wait(self, name: str, group: Ranks, detail: str) -> Begin:
        sequence = next(self.waits)
        return partial(self.recorder.begin, name, "wait", group, sequence=sequence, detail=detail)

    def _device_wait(self, array: Array, *_: object) -> Begin | None:
        """Describe a wait for an array; one that is ready costs well under a microsecond.

        Asking a deleted array whether it is ready ends the process (jax 0.10.2, SIGSEGV).
        """
        if array.is_deleted() or array.is_ready():
            return None
        return self._begin_wait(DEVICE_WAIT, (self.recorder.rank,), _shapes([array]))

    def _batch_wait(self, arrays: Iterable[Array]) -> Begin | None:
        described = (self._device_wait(array) for array in arrays)
        return next((begin for begin in described if begin is not None), None)

    def _is_of_this_world(self, client: object) -> bool:
        """Whether the client's processes are this world's ranks, by the same numbers.

        A test may start other jax worlds, of some of the ranks or with separate clients.
        """
        state = sys.modules["jax._src.distributed"].global_state
        process = (state.process_id, state.num_processes)
        own = (self.recorder.rank, self.recorder.size)
        return client is not None and client is state.client and process == own


def _copy_metadata(wrapper: Namespace, call: Call) -> None:
    """Do what `functools.wraps` does, also for methods from C++ that lack a name or a module."""
    for attribute in functools.WRAPPER_ASSIGNMENTS:
        with contextlib.suppress(AttributeError, TypeError):
            setattr(wrapper, attribute, getattr(call, attribute))
    wrapper.__dict__.update(getattr(call, "__dict__", {}))
    wrapper.__wrapped__ = call


def _shapes(tree: object) -> str:
    """Return type and shape of the first arrays of `tree`; their values are not read."""
    leaves = sys.modules["jax"].tree_util.tree_leaves(tree)
    shown = [_shape(leaf) for leaf in leaves[:_LEAVES]]
    return ", ".join(shown + ["…"] * (len(leaves) > _LEAVES))


def _shape(leaf: object) -> str:
    shape = getattr(leaf, "shape", ())
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{list(shape)}"


def _shortened(text: str) -> str:
    return text if len(text) <= _DETAIL_CHARS else f"{text[: _DETAIL_CHARS - 1]}…"


_DETAILS: dict[str, Callable[..., str]] = {
    "sync_global_devices": lambda name: name,
    "process_allgather": lambda in_tree, *_, **__: _shapes(in_tree),
    "broadcast_one_to_all": lambda in_tree, *_, **__: _shapes(in_tree),
    "assert_equal": lambda in_tree, fail_message="": fail_message or _shapes(in_tree),
}
"""Functions of `multihost_utils` that all processes must call, and the details of their calls."""


def _trampoline(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - whatever jax's does
    __tracebackhide__ = True
    return _trampoline(*args, **kwargs)  # this name is replaced, see _replace_code


def _replace_code(function: FunctionType, wrap: Callable[[Call], Call]) -> None:
    """Make `function` run a wrapper of itself, but keep its identity for earlier imports.

    Its code is replaced by a trampoline that calls the wrapper under a new name in the module's
    globals; the wrapper calls a copy of the function with the original code.
    """
    key = f"_recorded_{function.__name__}"
    names = function.__globals__
    if key in names:
        names[key] = wrap(names[key])
        return
    defaults, closure = function.__defaults__, function.__closure__
    original = FunctionType(function.__code__, names, function.__name__, defaults, closure)
    original.__kwdefaults__ = function.__kwdefaults__
    functools.update_wrapper(original, function)
    del vars(original)["__wrapped__"]
    names[key] = wrap(original)
    vars(function)["__wrapped__"] = original  # for inspect.signature
    function.__code__ = _trampoline.__code__.replace(
        co_names=(key,), co_name=function.__name__, co_qualname=function.__qualname__
    )
