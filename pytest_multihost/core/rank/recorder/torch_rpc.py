"""Record torch.distributed.rpc: calls, the functions that run for others, and what all must enter.

A call is a transfer for which its callee does its part by running a function. That has a record of
its own, so that a callee at work is not taken for one that only waits itself.
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
"""All of TensorPipe's but shared memory, which hosts do not have in common: ranks stand for hosts.

Its thread never sleeps, whether or not there is anything to do, so nobody could tell from outside
if a message is on its way; and each rank would keep a processor busy.
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
    """Records what a worker does with others.

    Attributes:
        calls: Records functions from begin to end.
        works: The calls whose results are awaited later.
        is_of_world: Whether the workers are the world's ranks.
    """

    calls: Calls
    works: OpenWorks
    is_of_world: bool = False
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def wrap_options(self, module: ModuleType) -> None:
        """Have workers use transports that hosts can use, unless the test names others."""
        options = module.TensorPipeRpcBackendOptions
        original = options.__init__

        def init(this: object, **kwargs: object) -> None:
            if kwargs.get(TRANSPORTS) is None:
                kwargs[TRANSPORTS] = _OF_HOSTS
            original(this, **kwargs)

        options.__init__ = update_wrapper(init, original)

    def wrap_begin(self, module: ModuleType) -> None:
        """Wrap what connects the workers."""
        record = partial(self.calls.recorded_by_name, self._begin)
        replace_function(module, CONNECT_WORKERS, record)

    def wrap_callee(self, module: ModuleType) -> None:
        """Wrap what runs a function for another worker."""
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
                    page.leave(record)  # nobody waits in it
                with recorder.during(record):
                    return original(of)

            return recorded

        replace_function(module, RUN_FOR_CALLER, wrap)  # C++ looks it up by its name

    def wrap_calls(self, module: ModuleType) -> None:
        """Wrap what calls another worker, what waits for results, and what all workers enter."""
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
        self.is_of_world = (rank, world_size) == (recorder.rank, recorder.size)
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
        scope = _SCOPE if self.is_of_world else None
        return self.calls.begin(name, scope, timeout=timeout), lambda _: None

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
        """Wrap the wait for a future; where that was made of others, for all of them."""
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
        """Record the begin of a wait for a worker."""
        recorder = self.calls.recorder
        if peer == recorder.rank and self.is_of_world:
            return NO_RECORD
        return recorder.begin(
            name,
            "transfer" if self.is_of_world else "wait",
            recorder.all_ranks,
            # One for each caller: calls are no parts of each other.
            scope=Scope("rpc", str(recorder.rank)),
            sequence=next(self._numbers),
            peer=peer if self.is_of_world else -1,
            timeout_s=timeout_s or None,
        )
