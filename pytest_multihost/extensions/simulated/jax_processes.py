"""The processes of jax in a simulated world: barriers, keys, broadcasts and gathers of values.

`jax.distributed.initialize` gets a client whose keys are in the exchange, as those of torch's
stores. Functions of `multihost_utils` run on no device here: their values meet in the exchange.

Each rank has a backend of XLA of its own, with its own devices. A program over the devices of
several processes is refused: it would return the values of one process.
"""

from __future__ import annotations

import inspect
import itertools
import math
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from types import ModuleType
from typing import Any, NoReturn

from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.jax_private import (
    BINDINGS,
    BRIDGE,
    GATHER_ARRAY,
    MAKE_BACKEND,
    UTILS,
    state,
)
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.rank.recorder.calls import replace_code, replace_original
from pytest_multihost.core.rank.recorder.imports import after_import
from pytest_multihost.core.rank.recorder.jax import record_jax_client
from pytest_multihost.extensions.simulated.link import links

Tree = Any
Array = Any
"""A tree of arrays, and an array of numpy or jax."""

Function = Callable[..., Any]

_ALL_DEVICES = ("devices", "device_count", "make_mesh")
_OVER_ALL_DEVICES = ("global_array_to_host_local_array", "host_local_array_to_global_array")
_PREFIX = "jax\0"


class NotSimulatedError(RuntimeError):
    """A program asks for something that simulated worlds do not have."""


def simulate_jax(rank: int, size: int) -> None:
    """Have jax's processes be simulated in this rank, now or once jax is imported."""
    here = _Processes(rank, size)
    after_import(BINDINGS, here.replace_bindings)
    after_import(BRIDGE, here.replace_bridge)
    after_import(UTILS, here.replace_utils)
    after_import("jax", here.refuse_all_devices)


@dataclass(slots=True, eq=False)
class _Processes:
    """The processes of jax, as this rank sees them."""

    rank: int
    size: int

    def replace_bindings(self, module: ModuleType) -> None:
        """Have `jax.distributed.initialize` make simulated parts, whose calls are recorded."""
        record_jax_client(SimulatedClient)
        parts: dict[str, Function] = {
            "get_distributed_runtime_service": lambda *_, **__: _Service(),
            "get_distributed_runtime_client": partial(SimulatedClient, self.rank, self.size),
            "create_preemption_sync_manager": _Preemptions,
        }
        for name, make in parts.items():
            setattr(module, name, make)

    def replace_bridge(self, module: ModuleType) -> None:
        """Have jax count the simulated processes, and make a backend of this process alone."""
        counts = {"process_index": self.rank, "process_count": self.size}
        for name, value in counts.items():
            replace_code(inspect.unwrap(getattr(module, name)), partial(_if_connected, value))
        replace_code(getattr(module, MAKE_BACKEND), _as_single)

    def replace_utils(self, module: ModuleType) -> None:
        """Have the functions of `multihost_utils` meet in the exchange."""
        setattr(module, GATHER_ARRAY, _gather_array)
        replace_original(module.broadcast_one_to_all, _broadcast_one_to_all)
        for name in _OVER_ALL_DEVICES:
            setattr(module, name, partial(_refuse, f"{UTILS}.{name}"))

    def refuse_all_devices(self, module: ModuleType) -> None:
        """Refuse questions of the user's code about the devices of all processes."""
        for name in _ALL_DEVICES:
            setattr(module, name, _refused_to_users(f"jax.{name}", getattr(module, name)))


class _Service:
    """The coordination service of the first process, whose part the exchange has."""

    def shutdown(self) -> None:
        """Do nothing."""


class _Preemptions:
    """Answers for `reached_preemption_sync_point`: no process is preempted."""

    def initialize(self, client: object) -> None:
        """Do nothing."""

    def reached_sync_point(self, _step: int) -> bool:
        """Return that no process is to end early."""
        return False

    def shutdown(self) -> None:
        """Do nothing."""


@dataclass(slots=True, eq=False)
class SimulatedClient:
    """The client of the coordination service, which jax and orbax call.

    Keys are paths: a directory has all keys that begin with it and a slash.
    """

    rank: int
    size: int
    address: str = ""
    process: int = 0
    init_timeout: float = 300.0
    use_compression: bool = False
    heartbeat_timeout: float = 100.0
    _gathers: Iterator[int] = field(default_factory=itertools.count)
    _arrivals: dict[str, int] = field(default_factory=dict)
    _gathered: tuple[str, ...] = ()  # the keys of its last gather, which it deletes

    def connect(self) -> None:
        """Wait for all processes.

        Raises:
            NotSimulatedError: The processes are not the ranks of the world.
        """
        if (self.process, state().num_processes) != (self.rank, self.size):
            raise NotSimulatedError(
                f"process {self.process} of {state().num_processes} is not simulated: in a"
                f" simulated world jax's processes are its ranks, here {self.rank} of {self.size}."
            )
        self._meet("connect", self.init_timeout, range(self.size))

    def shutdown(self) -> None:
        """Wait for all processes."""
        self._meet("shutdown", math.inf, range(self.size))

    def wait_at_barrier(
        self, barrier_id: str, timeout_in_ms: int, process_ids: Sequence[int] | None = None
    ) -> None:
        """Wait for all or some processes."""
        among = range(self.size) if process_ids is None else sorted(process_ids)
        if self.rank not in among:
            _raise(f"INVALID_ARGUMENT: process {self.rank} is not in barrier {barrier_id}.")
        self._meet(f"barrier {barrier_id}", timeout_in_ms / 1000, among)

    def get_live_nodes(self, process_ids: Sequence[int]) -> dict[int, int]:
        """Wait for processes, and return their incarnations."""
        self._meet(f"live {sorted(process_ids)}", math.inf, process_ids)
        return dict.fromkeys(process_ids, 1)

    def key_value_set(self, key: str, value: str, allow_overwrite: bool = False) -> None:  # noqa: FBT001, FBT002 - jax's
        """Set a key."""
        self.key_value_set_bytes(key, value.encode(), allow_overwrite)

    def key_value_set_bytes(self, key: str, value: bytes, allow_overwrite: bool = False) -> None:  # noqa: FBT001, FBT002 - jax's
        """Set a key."""
        if allow_overwrite:
            _ask("set", _key(key), bytes(value))
        elif not _ask("set_new", _key(key), bytes(value)):
            _raise(f"ALREADY_EXISTS: key {key} already exists.")

    def key_value_try_get(self, key: str) -> str:
        """Return the value of a key that exists."""
        return self.key_value_try_get_bytes(key).decode()

    def key_value_try_get_bytes(self, key: str) -> bytes:
        """Return the value of a key that exists."""
        found = _ask("get_now", _key(key))
        if found is None:
            _raise(f"NOT_FOUND: key {key} not found.")
        return bytes(found)

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Return the value of a key, once it exists."""
        return self.blocking_key_value_get_bytes(key, timeout_in_ms).decode()

    def blocking_key_value_get_bytes(self, key: str, timeout_in_ms: int) -> bytes:
        """Return the value of a key, once it exists."""
        error, found = links[0].ask_store("get", (_key(key),), timeout_in_ms / 1000)
        if error:
            _raise(
                f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key} and duration:"
                f" {timeout_in_ms}ms"
            )
        return bytes(found)

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """Return the keys of a directory, with their values."""
        return [(name, value.decode()) for name, value in self.key_value_dir_get_bytes(key)]

    def key_value_dir_get_bytes(self, key: str) -> list[tuple[str, bytes]]:
        """Return the keys of a directory, with their values."""
        found, start = _ask("items", _key(f"{key.rstrip('/')}/")), len(_PREFIX)
        return [(name[start:], bytes(value)) for name, value in found]

    def key_value_increment(self, key: str, increment: int) -> int:
        """Add a number to the value of a key; return the sum."""
        return int(_ask("add", _key(key), int(increment)))

    def key_value_delete(self, key: str) -> None:
        """Delete a key, and the directory of that name."""
        for each in (_key(key), *_ask("list_keys", _key(f"{key.rstrip('/')}/"))):
            _ask("delete_key", each)

    def gather(self, what: str, data: bytes) -> Sequence[bytes]:
        """Return the data of all processes in order; wait for them.

        Args:
            what: Processes that gather different things do not meet.
        """
        name = _key(f"\0gather {next(self._gathers)} {what}")
        own = f"{name} {self.rank}"
        _ask("set", own, data)
        self._arrive(name, math.inf, range(self.size))
        found = _ask("multi_get", [f"{name} {each}" for each in range(self.size)])
        for key in self._gathered:  # all have read them: they have come to this gather
            _ask("delete_key", key)
        shared = (f"{name} arrived", f"{name} complete") if self.rank == 0 else ()
        self._gathered = (own, *shared)
        return [bytes(each) for each in found]

    def _meet(self, what: str, timeout_s: float, among: Sequence[int]) -> None:
        """Wait until processes have come as often as this one."""
        count = self._arrivals[what] = self._arrivals.get(what, 0) + 1
        arrived = self._arrive(_key(f"\0meet {what} {count}"), timeout_s, among)
        if arrived is not None:
            _raise(
                f"DEADLINE_EXCEEDED: Barrier timed out. Id: {what.removeprefix('barrier ')}."
                f" #Tasks arrived: {arrived} of {len(among)}."
            )

    def _arrive(self, name: str, timeout_s: float, among: Sequence[int]) -> int | None:
        """Wait until processes have come; return how many have if they do not come in time."""
        if int(_ask("add", f"{name} arrived", 1)) == len(among):
            _ask("set", f"{name} complete", b"1")
            return None
        error, _ = links[0].ask_store("get", (f"{name} complete",), timeout_s)
        return int(_ask("add", f"{name} arrived", 0)) if error else None


def _key(key: str) -> str:
    return f"{_PREFIX}{key}"


def _ask(method: str, *args: Any) -> Any:  # noqa: ANN401 - of a store's methods
    error, found = links[0].ask_store(method, args, math.inf)
    if error:
        _raise(f"INTERNAL: {error}")
    return found


def _raise(text: str) -> NoReturn:
    raise sys.modules["jax"].errors.JaxRuntimeError(text)


def _client(name: str) -> SimulatedClient:
    """Return this process's client.

    Raises:
        NotSimulatedError: There is none, so jax has one process.
    """
    client = state().client
    if not isinstance(client, SimulatedClient):
        raise NotSimulatedError(
            f"{name} is about several processes: call jax.distributed.initialize(address,"
            " world.size, world.rank) first; in a simulated world the address is not used."
        )
    return client


def _refuse(name: str, *_: object, **__: object) -> NoReturn:
    raise NotSimulatedError(
        f"{name} is not simulated: each rank has the devices of its own process, and what is over"
        " the devices of several processes would return the values of one. Use jax.local_devices(),"
        " or backend='jax' with fewer ranks."
    )


def _refused_to_users(name: str, original: Function) -> Function:
    """Return a function that answers libraries: they ask for their own process's devices."""

    def asked(*args: object, **kwargs: object) -> object:
        frame = get_frame(1)
        if state().client is not None and frame and not is_library(frame.f_code.co_filename):
            _refuse(name)
        return original(*args, **kwargs)

    return asked


def _if_connected(value: int, original: Function) -> Function:
    def count(*args: object, **kwargs: object) -> object:
        return original(*args, **kwargs) if state().client is None else value

    return count


def _as_single(make: Function) -> Function:
    """Return the maker of a backend such that it has no other process to wait for."""

    def made(*args: object, **kwargs: object) -> object:
        here = state()
        kept = here.client, here.process_id, here.num_processes
        here.client, here.process_id, here.num_processes = None, 0, 1
        try:
            return make(*args, **kwargs)
        finally:
            here.client, here.process_id, here.num_processes = kept

    return made


def _gather_array(array: Array, tiled: bool) -> Array:  # noqa: FBT001 - jax's
    """Return the arrays of all processes, stacked, or if `tiled` one after the other."""
    import numpy as np

    own = _canonical(array)
    if own.ndim == 0 or not tiled:
        own = np.expand_dims(own, axis=0)
    client = _client(f"{UTILS}.process_allgather")
    found = client.gather(f"process_allgather {_signature(own)}", own.tobytes())
    return np.concatenate([np.frombuffer(e, own.dtype).reshape(own.shape) for e in found])


def broadcast(in_tree: Tree, is_source: bool | None) -> Tree:  # noqa: FBT001 - jax's
    """Return the tree of the process that is the source, by default the first one.

    Several sources are added, as jax does.
    """
    import numpy as np

    tree_util = sys.modules["jax"].tree_util
    client = _client(f"{UTILS}.broadcast_one_to_all")
    leaves, shape = tree_util.tree_flatten(in_tree)
    own = [_canonical(each) for each in leaves]
    sends = client.rank == 0 if is_source is None else is_source
    what = f"broadcast_one_to_all {[*map(_signature, own)]}"
    found = client.gather(what, pickle.dumps(own) if sends else b"")
    sources = [pickle.loads(each) for each in found if each]  # noqa: S301 - of this world's ranks
    sums = [reduce(np.add, arrays) for arrays in zip(*sources, strict=True)]
    return tree_util.tree_unflatten(shape, sums or [np.zeros_like(each) for each in own])


def _broadcast_one_to_all(in_tree: Tree, is_source: bool | None = None) -> Tree:  # noqa: FBT001 - jax's
    """Run in place of jax's function, in whose module nothing of this one is known."""
    from pytest_multihost.extensions.simulated.jax_processes import broadcast as simulated

    return simulated(in_tree, is_source)


def _canonical(array: Array) -> Array:
    """Return an array as jax has it on a device: with 32 bits, unless 64 are enabled."""
    import numpy as np

    found = np.asarray(array)
    return found.astype(sys.modules["jax"].dtypes.canonicalize_dtype(found.dtype), copy=False)


def _signature(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
