"""Record torch.distributed.rpc: calls, functions run for callers, and operations of all workers.

A call is a transfer in which the callee takes part by running a function. The running function has
its own record, so that a callee at work is not mistaken for a rank that only waits.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial, update_wrapper
from types import ModuleType

from pytest_multihost.core.model.event import now_ns
from pytest_multihost.core.model.operation import CALLEE_SCOPE, Scope, rpc_name
from pytest_multihost.core.rank.recorder.calls import Calls, Described, replace_function
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.recorder.torch_groups import Argument, Function, copy_identity
from pytest_multihost.core.rank.recorder.torch_process_groups import OpenWorks
from pytest_multihost.core.slots import NO_RECORD
from pytest_multihost.core.torch_private import (
    CALL_WORKER,
    CONNECT_WORKERS,
    GATHER_FROM_WORKERS,
    RUN_FOR_CALLER,
    TRANSPORTS,
    future_class,
    number_of_worker,
)

_PACKAGE = "torch.distributed.rpc"
_SCOPE = Scope("rpc")
_OF_HOSTS = ["ibv", "uv"]
"""All transports of TensorPipe except shared memory.

Ranks stand for hosts, which share no memory. And the thread of that transport never sleeps, so
nothing shows from outside whether a message is on its way, and each rank keeps a processor busy.
"""


def install(calls: Calls) -> None:
    """Record this rank's calls, now or once the package is imported."""
    recorder = RpcRecorder(calls, OpenWorks(calls.recorder))
    after_import(f"{_PACKAGE}.options", recorder.wrap_options)
    after_import(f"{_PACKAGE}.internal", recorder.wrap_callee)
    after_import(f"{_PACKAGE}.api", recorder.wrap_calls)
    after_import(_PACKAGE, recorder.wrap_begin)


@dataclass(slots=True, eq=False)
class RpcRecorder:
    """Records the operations of a worker.

    Attributes:
        works: The calls for whose results this rank may wait later.
        is_of_world: Whether the workers are the world's ranks.
        size: How many workers there are; 0: unknown.
    """

    calls: Calls
    works: OpenWorks
    is_of_world: bool = False
    size: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def wrap_options(self, module: ModuleType) -> None:
        """Have workers use transports that work between hosts, unless the test names others."""
        options = module.TensorPipeRpcBackendOptions
        original = options.__init__

        def init(this: object, **kwargs: object) -> None:
            if kwargs.get(TRANSPORTS) is None:
                kwargs[TRANSPORTS] = _OF_HOSTS
            original(this, **kwargs)

        options.__init__ = update_wrapper(init, original)

    def wrap_begin(self, module: ModuleType) -> None:
        """Wrap the function that connects the workers."""
        record = partial(self.calls.recorded_by_name, self._begin)
        replace_function(module, CONNECT_WORKERS, record)

    def wrap_callee(self, module: ModuleType) -> None:
        """Wrap the function that runs a function for another worker."""
        recorder = self.calls.recorder
        page = recorder.page

        def wrap(original: Function) -> Function:
            def recorded(of: Argument) -> object:
                __tracebackhide__ = True
                record = NO_RECORD
                with contextlib.suppress(Exception):
                    group = page.group((recorder.rank,), scope=CALLEE_SCOPE)
                    call, detail = page.call("run", "wait", group), page.detail(of.func.__name__)
                    tid, nowhere = threading.get_native_id(), (0, 0, 0)
                    record = page.begin(call, now_ns(), tid, nowhere, 1, detail)
                    page.leave(record)  # no thread waits in it
                with recorder.during(record):
                    return original(of)

            return recorded

        replace_function(module, RUN_FOR_CALLER, wrap)  # C++ looks it up by its name

    def wrap_calls(self, module: ModuleType) -> None:
        """Wrap calls of other workers, waits for results, and operations of all workers."""
        rref, future = module.PyRRef, future_class(module)
        self.works.wrap(future, "done")
        future.wait = copy_identity(future.wait, self._wait(future.wait))
        replace_function(module, CALL_WORKER, partial(self._invoke, module))
        replace_function(module, "shutdown", partial(self.calls.recorded_by_name, self._shutdown))
        gather = partial(self.calls.recorded_by_name, self._gather)
        replace_function(module, GATHER_FROM_WORKERS, gather)
        fetched = self.calls.recorded(self._fetch, rref.to_here)
        rref.to_here = copy_identity(rref.to_here, fetched)

    def _begin(
        self,
        rank: int = -1,
        world_size: int | None = None,
        rpc_backend_options: Argument = None,
        **_: object,
    ) -> Described:
        recorder = self.calls.recorder
        is_said = world_size is not None
        self.is_of_world = is_said and recorder.is_numbered(rank, world_size)
        self.size = world_size or 0
        return self._everybody("init_rpc", getattr(rpc_backend_options, "rpc_timeout", 0))

    def _shutdown(self, *, graceful: bool = True, timeout: float = 0) -> Described | None:
        if not graceful:
            return None
        self.works.wait_for_all()
        return self._everybody("rpc.shutdown", timeout)

    def _gather(
        self, worker_names: Argument = None, timeout: float = 0, **_: object
    ) -> Described | None:
        if self.calls.are_nested or worker_names:
            return None
        return self._everybody("rpc.all_gather", timeout)

    def _everybody(self, name: str, timeout_s: float) -> Described:
        timeout = timedelta(seconds=timeout_s) if timeout_s > 0 else None
        scope, size = (_SCOPE, None) if self.is_of_world else (None, self.size)
        return self.calls.begin(name, scope, size=size, timeout=timeout), lambda _: None

    def _invoke(self, api: ModuleType, original: Function) -> Function:
        recorder, works = self.calls.recorder, self.works

        def described(
            to: Argument, func: Argument, rpc_type: Argument, rpc_timeout: float = -1, **_: object
        ) -> int:
            timeout_s = api.get_rpc_timeout() if rpc_timeout < 0 else rpc_timeout
            name = rpc_name(rpc_type.value, func.__name__)
            return self._call(name, number_of_worker(api, to), timeout_s)

        bind = inspect.signature(original).bind

        def invoked(*args: object, **kwargs: object) -> object:
            __tracebackhide__ = True
            record = NO_RECORD
            if not self.calls.are_nested:
                with contextlib.suppress(Exception):
                    record = described(**bind(*args, **kwargs).arguments)
            try:
                future = original(*args, **kwargs)
            except BaseException as error:
                recorder.fail(record, error)
                raise
            with contextlib.suppress(Exception):
                works.launched(future, record, None, None)
            return future

        return invoked

    def _wait(self, original: Function) -> Function:
        """Wrap the wait for a future; a wait for an unknown one counts as a wait for all calls."""
        works = self.works

        def wait(future: Argument) -> object:
            __tracebackhide__ = True
            if not works.pending or id(future) in works.pending or future.done():
                return original(future)
            awaited = works.wait_for_all()
            try:
                return original(future)
            finally:
                works.leave(awaited)

        return wait

    def _fetch(self, rref: Argument, timeout: float = -1) -> Described | None:
        if rref.is_owner():
            return None
        return partial(self._call, "to_here", rref.owner().id, max(timeout, 0)), lambda _: None

    def _call(self, name: str, peer: int, timeout_s: float) -> int:
        """Record the start of a wait for a worker."""
        recorder = self.calls.recorder
        if peer == recorder.rank and self.is_of_world:
            return NO_RECORD
        return recorder.begin(
            name,
            "transfer" if self.is_of_world else "wait",
            recorder.all_ranks if self.is_of_world else self.size,
            # One scope for each caller, because a call matches no other call.
            scope=Scope("rpc", str(recorder.rank)),
            sequence=next(self._numbers),
            peer=peer if self.is_of_world else -1,
            timeout_s=timeout_s or None,
        )
