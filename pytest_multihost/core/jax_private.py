"""All uses of private parts of jax and jaxlib; jax 0.8 to 0.10 are known.

Nothing is imported here: functions look modules up in `sys.modules`. Constants name the functions
that the recorder wraps, by module and path. If another version lacks one, it is not wrapped, or
the answer is "may be": a backend may be up, a program may span several processes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

JaxObject = Any
"""An object of jax, which the type checker does not know."""

BINDINGS: Final = "jaxlib._jax"
"""The module with the client of the coordination service."""

CLIENT: Final = "DistributedRuntimeClient"

ARRAYS: Final = "jax._src.array"
ARRAY: Final = "ArrayImpl"
ARRAY_VALUE: Final = "ArrayImpl._value"
"""The property behind float(), tolist(), __array__ and print."""

ARRAY_MAKERS: Final = (
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
)
"""The functions of this module that make an array from the data of each process."""

STATES: Final = "jax._src.distributed"
"""The module behind `jax.distributed`, whose functions are imported by name."""

STATE: Final = "State"

PROGRAMS: Final = "jax._src.interpreters.pxla"
START_PROGRAM: Final = "ExecuteReplicated.__call__"
"""The method by which Python starts a program: at its first call, and at later calls with effects.
"""

START_PROGRAM_FRAME: Final = ("jax/_src/interpreters/pxla.py", "__call__")
"""That method on a stack: the end of its file, and its name."""

PIPELINE: Final = "jax._src.pjit"
FAST_PATH: Final = "_get_fastpath_data"
"""The module behind `jax.jit`, and its function that hands a program to C++ code, which starts it
from then on; without the data that it returns, each start goes through `START_PROGRAM`."""

COMPILED_FAST_PATH: Final = "MeshExecutable.create_cpp_call"
"""The method of `PROGRAMS` that does so for programs that the user has compiled: AOT."""

CALLBACKS: Final = "jax._src.callback"
EMIT_CALLBACK: Final = "emit_python_callback"
"""The module with functions that programs call on the host, and its function that calls them."""

CLUSTERS: Final = "jax._src.clusters"
CLUSTER: Final = "ClusterEnv"
"""The module and the base class of environments in which `jax.distributed.initialize()` finds its
arguments; the first class present is used."""

TAKE_ARRAYS: Final = "_array_shard_arg"
TAKE_OTHERS: Final = "_shard_np_array"
"""The functions that copy values to the devices of a program: of `ARRAYS` for arrays of jax, and of
`PROGRAMS` for numbers and arrays of Python and numpy. They take lists of values and of shardings.
C++ code calls them unless a value is already on these devices."""

IMPORTED_LATE: Final = ("jaxlib.mlir.dialects.builtin", "jaxlib.mlir.dialects.mhlo")
"""Modules that jax imports when it compiles for the first time."""

UTILS: Final = "jax.experimental.multihost_utils"
GATHER_ARRAY: Final = "_handle_array_process_allgather"
"""The module whose functions all processes call, and its function that gathers an array."""

BRIDGE: Final = "jax._src.xla_bridge"
MAKE_BACKEND: Final = "make_cpu_client"
"""The module with jax's backends, and the function that makes the one for CPUs."""

SEARCH_PLUGINS: Final = "discover_pjrt_plugins"
"""The function of `BRIDGE` that searches for plugins for other devices, and imports them."""

PLUGINS: Final = "jax_plugins"
"""The namespace package and the group of entry points in which it searches."""


_RANK_VARIABLES = {"PYTEST_MULTIHOST_RANK", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"}


def state() -> JaxObject:
    """Return the state of `jax.distributed` in this process.

    Raises:
        Exception: jax is not imported, or has no such state.
    """
    return sys.modules[STATES].global_state


def processes_of(program: JaxObject) -> set[int]:
    """Return the processes on whose devices a program runs.

    Raises:
        Exception: This version of jax has no such attributes.
    """
    shardings = (*program.out_handler.out_shardings, *program.in_handler.in_shardings)
    return {device.process_index for device in next(iter(shardings)).device_set}


def may_span_processes(program: JaxObject) -> bool:
    """Return whether a program may run on the devices of several processes."""
    try:
        return len(processes_of(program)) > 1
    except Exception:  # noqa: BLE001 - another version may raise anything
        return True


def devices_of(program: JaxObject) -> tuple[JaxObject, ...]:
    """Return the devices of a program, in the order in which XLA numbers them.

    Raises:
        Exception: This version of jax has no such attributes.
    """
    shardings = (*program.out_handler.out_shardings, *program.in_handler.in_shardings)
    return tuple(next(iter(shardings))._device_assignment)


def text_of(program: JaxObject) -> tuple[str, str]:
    """Return the name of a compiled program, such as ``jit_step``, and XLA's text of it.

    Raises:
        Exception: This version of jax has no such attributes, or the program has no text.
    """
    (module,) = program.xla_executable.hlo_modules()
    return module.name, module.to_string()


def started_by(executable: JaxObject) -> JaxObject:
    """Return the starter of a compiled program, an object of `START_PROGRAM`'s class."""
    return executable.unsafe_call


def add_cluster(module: ModuleType) -> None:
    """Have `jax.distributed.initialize()` find its arguments in the variables of a rank.

    They are torchrun's. jax itself knows launchers such as Slurm, whose variables a rank may have
    inherited, so this environment comes first.
    """
    base = getattr(module, CLUSTER)

    def of_variable(name: str) -> classmethod[Any, Any, int]:
        return classmethod(lambda _: int(os.environ[name]))

    def address(_: object, /, *__: object, **___: object) -> str:
        return f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"

    methods = {
        "name": "pytest-multihost",
        "is_env_present": classmethod(lambda _: _RANK_VARIABLES.issubset(os.environ)),
        "get_coordinator_address": classmethod(address),
        "get_process_count": of_variable("WORLD_SIZE"),
        "get_process_id": of_variable("RANK"),
        "get_local_process_id": classmethod(lambda _: None),  # each rank has all its devices
    }
    known = base._cluster_types
    if not any(each.name == methods["name"] for each in known):
        type("RankCluster", (base,), methods)
        known.insert(0, known.pop())


def may_have_backend() -> bool:
    """Return whether jax may have initialised a backend in this process; imports nothing."""
    bridge: ModuleType | None = sys.modules.get(BRIDGE)
    if bridge is None:
        return "jax" in sys.modules
    is_initialized = getattr(bridge, "backends_are_initialized", None)
    return is_initialized is None or bool(is_initialized())


def search_plugins_once() -> None:
    """Search for plugins of jax now; if there are none, forked ranks do not search again.

    The search reads the metadata of every installed package, which takes a rank 30 ms of CPU.
    Ranks search themselves if there are plugins, or if `sys.path` has changed. Nothing is done if
    jax has not been imported.
    """
    from importlib.metadata import entry_points  # here, because it imports a parser of e-mails

    bridge: Any = sys.modules.get(BRIDGE)
    search = getattr(bridge, SEARCH_PLUGINS, None)
    if search is None or search.__module__ == __name__:  # the second: it was made before
        return
    if find_spec(PLUGINS) is not None or entry_points(group=PLUGINS):
        return
    searched = tuple(sys.path)

    def search_elsewhere() -> None:
        if tuple(sys.path) != searched:
            search()

    setattr(bridge, SEARCH_PLUGINS, search_elsewhere)


def advertise_to_gloo(address: str) -> None:
    """Have gloo's collectives advertise this address to the other ranks.

    By default they advertise the address to which the host's name resolves: a loopback address on
    Debian, and none at all in many containers. jax has no setting for it.
    """
    with contextlib.suppress(AttributeError, KeyError):  # another version
        library = sys.modules[BRIDGE]._jax
        library.make_gloo_tcp_collectives = functools.partial(
            library.make_gloo_tcp_collectives, hostname=address
        )
