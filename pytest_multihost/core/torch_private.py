"""All uses of private parts of torch; torch 2.9 to 2.13 are known.

Nothing is imported here: functions take the torch module, freshly imported. Constants
name the functions that the recorder wraps. If another version lacks a part, AttributeError is
raised or the result is empty. The recorder then records less, and a rank that waits in an
unrecorded operation counts as waiting in an unknown one.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, Final

Function = Callable[..., Any]

TorchObject = Any
"""An object or a class of torch, which the type checker does not know."""

Trace = Mapping[str, Any]
"""The content of the flight recorder, as torch writes it."""

Registry = Mapping[str, TorchObject | None]
"""Tensors of a module by their names, in the order of registering."""

DYNAMO: Final = "torch._dynamo"
"""A large module that `DistributedDataParallel`, FSDP and torch's optimizers import."""

MAKE_GROUP: Final = "_new_group_with_tag"
"""The function of `distributed_c10d` that makes all groups except the default one."""

BUILD_GROUP: Final = "_new_process_group_helper"
"""The function of `distributed_c10d` that builds every group except groups split off another.
Programs call it to make groups between several torch worlds."""

MEET_BY_STORE: Final = "_store_based_barrier"
"""The function of `distributed_c10d` that `new_group` calls last, even on ranks outside the group.
"""

ARCHIVE_WRITER: Final = "torch._C.PyTorchFileWriter"
"""The class with which `torch.save` opens and writes a file by its path."""

SPAWN: Final = "torch/multiprocessing/spawn.py"
SPAWNS: Final = ("start_processes", "spawn")
SPAWNED: Final = "_wrap"
"""The file of `spawn`, its functions that start `nprocs` processes, and the function run in each,
whose variable `i` is the process's number."""

BACKWARD: Final = ("torch/autograd/graph.py", "_engine_run_backward")
"""The function under which a backward pass runs in C++, and DDP's reducer with it."""

DDP: Final = "torch/nn/parallel/distributed.py"
"""The file of DistributedDataParallel, whose collectives are mostly of all ranks."""

START_COALESCING: Final = "_start_coalescing"
END_COALESCING: Final = "_end_coalescing"
"""Methods of `ProcessGroup` around operations that share one work."""

TAKE_WORK: Final = "_set_forward_pass_work_handle"
"""The method of DDP's reducer that takes a work for which C++ code will wait."""

CONNECT_WORKERS: Final = "_init_rpc_backend"
RUN_FOR_CALLER: Final = "_run_function"
CALL_WORKER: Final = "_invoke_rpc"
GATHER_FROM_WORKERS: Final = "_all_gather"
"""Functions of `torch.distributed.rpc`."""

TRANSPORTS: Final = "_transports"
"""The option of TensorPipe that names its transports."""

LOADER_PROCESS: Final = "torch.utils.data._utils.worker"
LOADER_LOOP: Final = "_worker_loop"
MAKE_LOADER_ITERATOR: Final = "__init__"
"""The module and main function of a data loader's process, and the method that makes an iterator.
"""

_INDEX_QUEUE_PLACE = 2

_BINDINGS = "torch._C._distributed_c10d"
_NCCL_JSON = "_dump_nccl_trace_json"
_NCCL_PICKLE = "_dump_nccl_trace"
"""Functions that a torch without NCCL lacks."""

_STORES = frozenset({"TCPStore", "FileStore", "HashStore"})
_COMPILER = "torch._inductor"


def reducer_class(c10d: ModuleType) -> type:
    """Return the class of DDP's reducer."""
    found: type = c10d.torch._C._distributed_c10d.Reducer
    return found


def tcp_store_class(c10d: ModuleType) -> TorchObject:
    """Return the class of stores that a rank hosts for the others."""
    return c10d.torch._C._distributed_c10d.TCPStore


def gloo_class(c10d: ModuleType) -> TorchObject:
    """Return the class of gloo's groups. A program may make one without a `ProcessGroup`."""
    return c10d.torch._C._distributed_c10d.ProcessGroupGloo


def file_store_class(c10d: ModuleType) -> TorchObject:
    """Return the class of stores in a file that ranks share."""
    return c10d.torch._C._distributed_c10d.FileStore


def default_store(c10d: ModuleType) -> TorchObject | None:
    """Return the store of the default group; None if there is no such group."""
    group = c10d._world.default_pg
    return None if group is None else c10d._world.pg_map[group][1]


def future_class(api: ModuleType) -> TorchObject:
    """Return the class of the results of remote calls; `api` is `torch.distributed.rpc.api`."""
    return api.torch._C.Future


def number_of_worker(api: ModuleType, worker: TorchObject) -> int:
    """Return the number of a worker of torch.distributed.rpc, from its number, name or info."""
    return int(api._to_worker_info(worker).id)


def group_names(c10d: ModuleType) -> dict[str, TorchObject]:
    """Return the process groups of this rank, by their names in the flight recorder."""
    return {str(name): pg for pg, name in list(c10d._world.pg_names.items())}


def is_of_this_process(store: TorchObject) -> bool:
    """Return whether a store certainly lies in this process, so that no other rank writes to it."""
    return type(_underlying(store)).__name__ == "HashStore"


def agree_in(store: TorchObject, key: str, value: str) -> str:
    """Return the value of a key that the first process has proposed; never waits for another.

    It takes one message to the store and back, as long as the store's host answers.

    Raises:
        TypeError: The store is not one of torch's own, so it may do anything.
    """
    of = type(_underlying(store))
    if of.__name__ not in _STORES or of.__module__ != _BINDINGS:
        message = f"{type(store)} is not a store of torch"
        raise TypeError(message)
    found: bytes = store.compare_set(key, "", value)
    return found.decode()


def where_is(store: TorchObject) -> str:
    """Return where the processes that use a store meet; empty if that is unknown."""
    underlying = _underlying(store)
    match type(underlying).__name__:
        case "TCPStore":
            return where_is_port(underlying.port)
        case "FileStore":
            return f"file {underlying.path}"
    return ""


def replace_rendezvous(by_address: Function, by_file: Function) -> None:
    """Have torch's rendezvous make other stores.

    Args:
        by_address: Returns the store at a host name and a port; both come first.
        by_file: Returns the store in the file at a path.
    """
    # The module's name is also that of a function in its package.
    module: TorchObject = sys.modules["torch.distributed.rendezvous"]
    module._create_c10d_store = by_address
    module.FileStore = by_file


def replace_groups(c10d: ModuleType, gloo: type, nccl: type) -> None:
    """Have torch make other groups for the backends gloo and nccl."""
    c10d.ProcessGroupGloo = gloo  # type: ignore[attr-defined]
    c10d.ProcessGroupNCCL = nccl  # type: ignore[attr-defined]
    c10d._GLOO_AVAILABLE = c10d._NCCL_AVAILABLE = True  # type: ignore[attr-defined]


def name_of_group(c10d: ModuleType, group: TorchObject) -> str:
    """Return torch's name of a process group; empty if it has none yet."""
    return str(c10d._world.pg_names.get(group, ""))


def rename_backend(c10d: ModuleType, group: TorchObject, backend: str) -> None:
    """Have torch say that a process group has another backend."""
    _, store = c10d._world.pg_map[group]
    c10d._world.pg_map[group] = (backend, store)
    c10d._world.pg_backend_config[group] = str(c10d.BackendConfig(backend))


def where_is_port(port: int) -> str:
    """Return where the processes meet that use the store at a port."""
    return f"port {port}"


def _underlying(store: TorchObject) -> TorchObject:
    return getattr(store, "_underlying_non_prefix_store", store)


def loader_iterator_class(dataloader: ModuleType) -> TorchObject:
    """Return the class of iterators over a data loader that has processes of its own."""
    return dataloader._MultiProcessingDataLoaderIter


def queue_of_batches(iterator: TorchObject, *_: object) -> TorchObject:
    """Return the queue for which a new iterator waits again and again; None if it gives up."""
    return iterator._data_queue if not iterator._timeout else None


def queue_of_indices(*args: TorchObject, **kwargs: TorchObject) -> TorchObject:
    """Return the queue from which a data loader's process takes its work, from its arguments."""
    return kwargs["index_queue"] if "index_queue" in kwargs else args[_INDEX_QUEUE_PLACE]


def registries_of(module: TorchObject) -> Iterator[tuple[str, Registry, Registry]]:
    """Yield the name of each module in a module, and the registries of its parameters and buffers.

    A registry is the module's own, so later registrations and assignments are in it.
    """
    for name, each in module.named_modules():
        yield name, each._parameters, each._buffers


def archive_writer_class(serialization: ModuleType) -> TorchObject:
    """Return the class by which `torch.save` writes files; there is no public one."""
    return serialization._open_zipfile_writer_file


def uses_nccl(c10d: ModuleType, group: TorchObject) -> bool:
    """Return whether a process group has NCCL for tensors of some device."""
    return "nccl" in str(getattr(c10d._world, "pg_backend_config", {}).get(group, ""))


def number_of_gpu(torch: TorchObject, device: TorchObject = None) -> int:
    """Return the number of a GPU: of a device, its name or number; None: of the current one."""
    if device is None:
        return int(torch._C._cuda_getDevice())
    return int(torch.cuda._get_device_index(device, optional=True))


def current_stream(torch: TorchObject, gpu: int) -> int:
    """Return the address of this thread's current stream of a GPU; fast."""
    return int(torch._C._cuda_getCurrentRawStream(gpu))


def is_capturing(torch: TorchObject) -> bool:
    """Return whether this thread records a CUDA graph. Asking for an event's end would break it."""
    return bool(torch._C._cuda_isCurrentStreamCapturing())


def has_flight_recorder() -> bool:
    """Return whether the flight recorder of this process can be read."""
    return hasattr(sys.modules[_BINDINGS], "_dump_fr_trace_json")


def flight_traces() -> Sequence[Trace]:
    """Return the contents of the flight recorders, without stacks: gloo's, and NCCL's if any."""
    bindings: TorchObject = sys.modules[_BINDINGS]
    dumps = [getattr(bindings, name, None) for name in ("_dump_fr_trace_json", _NCCL_JSON)]
    return [json.loads(dump()) for dump in dumps if dump is not None]


def flight_traces_with_stacks() -> Sequence[Trace]:
    """Return the contents of the flight recorders with the stacks, which their JSON lacks."""
    bindings: TorchObject = sys.modules[_BINDINGS]
    dumps = [getattr(bindings, name, None) for name in ("_dump_fr_trace", _NCCL_PICKLE)]
    with _without_compiler():
        return [pickle.loads(dump()) for dump in dumps if dump is not None]  # noqa: S301 - own


@contextlib.contextmanager
def _without_compiler() -> Iterator[None]:
    """Keep torch from importing its compiler, which takes seconds.

    Accessing `torch._inductor` imports it, and torch accesses it to make stacks.
    """
    if _COMPILER in sys.modules:
        yield
        return
    modules: dict[str, Any] = sys.modules
    modules[_COMPILER] = None  # an import fails at once, and torch continues without it
    try:
        yield
    finally:
        if modules.get(_COMPILER, ...) is None:
            del modules[_COMPILER]


PROFILERS: Final = ("_ZN9libkineto12ConfigLoader18updateConfigThreadEv",)
"""Mangled names of the functions in which threads of torch's profiler (Kineto) wait: once a program
has used it, such a thread looks every few minutes whether the settings have changed. In a version
that has none of them the thread counts as one with a timeout of its own."""
