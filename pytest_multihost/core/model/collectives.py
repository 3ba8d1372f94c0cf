"""The collectives that are known by name, one row each: their effect and their names.

A collective is an operation that every member of a group must enter. It appears under several
names: as a method of torch's `ProcessGroup`, as a Python function on a stack, in torch's flight
recorder, in the native frames of XLA and gloo. To add a collective is to add one row.

A name in no row is an unknown collective: it is matched by its name alone, and nothing else is
concluded from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from pytest_multihost.core.model.operation import JAX_SHUTDOWN, Operation, Payload, tensor_size

Runtime = Literal["torch", "jax", "harness"]

C10D: Final = "torch/distributed/distributed_c10d.py"
MULTIHOST_UTILS: Final = "jax/experimental/multihost_utils.py"
JAX_DISTRIBUTED: Final = "jax/_src/distributed.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective.

    Attributes:
        name: Its name in slot pages, points and reports.
        runtime: The runtime that performs it and raises its errors.
        matches: The collective that it can match, if that has another name.
        meets_all: Whether no member can leave it before every member has entered it.
        is_of_world: Whether all ranks are members by definition.
        is_synchronous: Whether it has no asynchronous form.
        fails_late: Whether programs call it so that it fails if a rank is late.
        has_one_size: Whether every member must pass tensors of the same size.
        has_root: Whether one member acts differently from the others.
        root_parameters: Names under which its Python function gets the root.
        root_argument: Position of the root among the arguments of a method of `ProcessGroup`,
            unless the options contain it.
        methods: Methods of `ProcessGroup` that perform it. No version of torch has all of them.
        sent_argument: Position of the sent tensors among the arguments of these methods.
        moves_objects: Whether it is a torch function that moves Python objects by other
            collectives, which are recorded themselves.
        file: End of the path of the file with its Python functions; empty if there are none.
        flight_names: Its names in torch's flight recorder, in lower case and without the leading
            underscore; empty if the recorder does not count it.
        xla: Names of it in XLA's communicators and thunks.
        service: Its function in jax's agent of the coordination service; a regular expression.
    """

    name: str
    runtime: Runtime = "torch"
    matches: str = ""
    meets_all: bool = False
    is_of_world: bool = False
    is_synchronous: bool = False
    fails_late: bool = False
    has_one_size: bool = False
    has_root: bool = False
    root_parameters: tuple[str, ...] = ()
    root_argument: int | None = None
    methods: tuple[str, ...] = ()
    sent_argument: int | None = None
    moves_objects: bool = False
    file: str = ""
    functions: tuple[str, ...] = ()
    flight_names: tuple[str, ...] = ()
    xla: tuple[str, ...] = ()
    gloo: str = ""
    service: str = ""

    @property
    def family(self) -> str:
        """The name by which it is matched."""
        return self.matches or self.name


COLLECTIVES: Final[tuple[Collective, ...]] = (
    # torch. Which of them match was measured on gloo.
    Collective(
        name="all_reduce",
        meets_all=True,
        has_one_size=True,
        methods=("allreduce",),
        sent_argument=0,
        file=C10D,
        functions=("all_reduce",),
        flight_names=("all_reduce", "allreduce", "all_reduce_sparse", "sparse_all_reduce"),
        xla=("AllReduce",),
        gloo="allreduce",
    ),
    Collective(
        name="all_reduce_coalesced",
        matches="all_reduce",
        meets_all=True,
        has_one_size=True,
        methods=("allreduce_coalesced",),
        sent_argument=0,
        file=C10D,
        functions=("all_reduce_coalesced",),
        flight_names=("all_reduce_coalesced", "allreduce_coalesced"),
    ),
    Collective(
        name="all_gather",
        meets_all=True,
        methods=("allgather",),
        sent_argument=1,
        file=C10D,
        functions=("all_gather",),
        flight_names=("all_gather", "allgather", "all_gather_v"),
        xla=("AllGather",),
        gloo="allgather",
    ),
    Collective(
        name="all_gather_coalesced",
        matches="all_gather",
        meets_all=True,
        methods=("allgather_coalesced",),
        sent_argument=1,
        file=C10D,
        functions=("all_gather_coalesced",),
        flight_names=("all_gather_coalesced", "allgather_coalesced"),
    ),
    Collective(
        name="all_gather_into_tensor",
        matches="all_gather",
        meets_all=True,
        has_one_size=True,
        methods=(
            "_allgather_base",
            "all_gather_single",
            "allgather_into_tensor_coalesced",
            "all_gather_single_coalesced",
        ),
        sent_argument=1,
        file=C10D,
        functions=("all_gather_into_tensor", "all_gather_single"),  # torch 2.13
        flight_names=(
            "all_gather_base",
            "allgather_base",
            "all_gather_into_tensor",
            "all_gather_into_tensor_coalesced",
            "all_gather_single",
            "all_gather_single_coalesced",
            "allgather_into_tensor_coalesced",
        ),
    ),
    Collective(
        name="all_gather_object",
        matches="all_gather",
        meets_all=True,
        is_synchronous=True,
        moves_objects=True,
        file=C10D,
        functions=("all_gather_object",),
    ),
    Collective(
        name="reduce_scatter",
        meets_all=True,
        methods=("reduce_scatter",),
        sent_argument=1,
        file=C10D,
        functions=("reduce_scatter",),
        flight_names=("reduce_scatter", "reduce_scatter_coalesced", "reduce_scatter_v"),
        xla=("ReduceScatter",),
        gloo="reduce_scatter",
    ),
    Collective(
        name="reduce_scatter_tensor",
        matches="reduce_scatter",
        meets_all=True,
        has_one_size=True,
        methods=(
            "_reduce_scatter_base",
            "reduce_scatter_single",
            "reduce_scatter_tensor_coalesced",
            "reduce_scatter_single_coalesced",
        ),
        sent_argument=1,
        file=C10D,
        functions=("reduce_scatter_tensor", "reduce_scatter_single"),  # torch 2.13
        flight_names=(
            "reduce_scatter_base",
            "reduce_scatter_single",
            "reduce_scatter_single_coalesced",
            "reduce_scatter_tensor",
            "reduce_scatter_tensor_coalesced",
        ),
    ),
    # Two members of an all_to_all may have nothing for each other, so neither waits for the other.
    Collective(
        name="all_to_all",
        methods=("alltoall",),
        sent_argument=1,
        file=C10D,
        functions=("all_to_all",),
        flight_names=("all_to_all", "alltoall"),
        xla=("AllToAll", "RaggedAllToAll"),
        gloo="alltoall",
    ),
    Collective(
        name="all_to_all_single",
        matches="all_to_all",
        methods=("alltoall_base", "all_to_all_single"),
        sent_argument=1,
        file=C10D,
        functions=("all_to_all_single",),
        flight_names=("all_to_all_single", "all_to_all_v_single", "alltoall_base"),
    ),
    Collective(
        name="broadcast",
        has_one_size=True,
        has_root=True,
        root_parameters=("src",),
        root_argument=1,
        methods=("broadcast",),
        sent_argument=0,
        file=C10D,
        functions=("broadcast",),
        flight_names=("broadcast",),
        xla=("CollectiveBroadcast", "Broadcast"),
        gloo="broadcast",
    ),
    Collective(
        name="broadcast_object_list",
        is_synchronous=True,
        has_root=True,
        root_parameters=("src",),
        moves_objects=True,
        file=C10D,
        functions=("broadcast_object_list",),
    ),
    Collective(
        name="reduce",
        has_one_size=True,
        has_root=True,
        root_parameters=("dst",),
        root_argument=1,
        methods=("reduce",),
        sent_argument=0,
        file=C10D,
        functions=("reduce",),
        flight_names=("reduce",),
        gloo="reduce",
    ),
    Collective(
        name="gather",
        has_root=True,
        root_parameters=("dst",),
        root_argument=2,
        methods=("gather",),
        sent_argument=1,
        file=C10D,
        functions=("gather",),
        flight_names=("gather",),
        gloo="gather",
    ),
    Collective(
        name="gather_object",
        is_synchronous=True,
        has_root=True,
        root_parameters=("dst",),
        moves_objects=True,
        file=C10D,
        functions=("gather_object",),
    ),
    Collective(
        name="scatter",
        has_root=True,
        root_parameters=("src",),
        root_argument=2,
        methods=("scatter",),
        sent_argument=0,
        file=C10D,
        functions=("scatter",),
        flight_names=("scatter",),
        gloo="scatter",
    ),
    Collective(
        name="scatter_object_list",
        is_synchronous=True,
        has_root=True,
        root_parameters=("src",),
        moves_objects=True,
        file=C10D,
        functions=("scatter_object_list",),
    ),
    Collective(
        name="barrier",
        meets_all=True,
        methods=("barrier",),
        file=C10D,
        functions=("barrier",),
        flight_names=("barrier", "all_reduce_barrier"),  # NCCL's barrier is an all_reduce
        xla=("Barrier",),
        gloo="barrier",
    ),
    # Rank 0 of the group receives from each member, and answers only after all have come
    # (ProcessGroupGloo::monitoredBarrier, torch 2.13). So it meets all, rank 0 acts differently
    # from the others, and its messages match no other barrier. The flight recorder has no entry for
    # it. Programs call it, mostly with a timeout, to learn which rank is late.
    Collective(
        name="monitored_barrier",
        meets_all=True,
        is_synchronous=True,
        fails_late=True,
        has_root=True,
        methods=("monitored_barrier",),
        file=C10D,
        functions=("monitored_barrier",),
    ),
    # torch: making and ending groups.
    Collective(
        name="init_process_group",
        is_of_world=True,
        is_synchronous=True,
        file=C10D,
        functions=("init_process_group",),
    ),
    Collective(
        name="destroy_process_group",
        is_of_world=True,
        is_synchronous=True,
        file=C10D,
        functions=("destroy_process_group",),
    ),
    Collective(name="new_group", is_synchronous=True, file=C10D, functions=("new_group",)),
    # It needs an accelerator; whether the flight recorder counts it is untested.
    Collective(name="split_group", is_synchronous=True, file=C10D, functions=("split_group",)),
    # jax. The first three are one program (jax 0.10.2).
    Collective(
        name="process_allgather",
        runtime="jax",
        meets_all=True,
        is_of_world=True,
        is_synchronous=True,
        file=MULTIHOST_UTILS,
        functions=("process_allgather",),
    ),
    Collective(
        name="assert_equal",
        runtime="jax",
        matches="process_allgather",
        meets_all=True,
        is_of_world=True,
        is_synchronous=True,
        file=MULTIHOST_UTILS,
        functions=("assert_equal",),
    ),
    Collective(
        name="sync_global_devices",
        runtime="jax",
        matches="process_allgather",
        meets_all=True,
        is_of_world=True,
        is_synchronous=True,
        file=MULTIHOST_UTILS,
        functions=("sync_global_devices",),
    ),
    # It has a root, but no parameter names it: each rank states whether it is the source.
    Collective(
        name="broadcast_one_to_all",
        runtime="jax",
        is_of_world=True,
        is_synchronous=True,
        has_root=True,
        file=MULTIHOST_UTILS,
        functions=("broadcast_one_to_all",),
    ),
    Collective(
        name="wait_at_barrier",
        runtime="jax",
        meets_all=True,
        is_synchronous=True,
        service="WaitAtBarrier",
    ),
    Collective(
        name=JAX_SHUTDOWN,
        runtime="jax",
        is_of_world=True,
        is_synchronous=True,
        file=JAX_DISTRIBUTED,
        functions=("shutdown",),
        service=r"Shutdown\w*",
    ),
    Collective(
        name="jax.distributed.initialize",
        runtime="jax",
        is_of_world=True,
        is_synchronous=True,
        file=JAX_DISTRIBUTED,
        functions=("initialize",),
        service="Connect",
    ),
    Collective(name="collective_permute", runtime="jax", xla=("CollectivePermute",)),
    # The harness's own, over its own channel.
    Collective(
        name="world.barrier",
        runtime="harness",
        meets_all=True,
        is_of_world=True,
        is_synchronous=True,
    ),
    Collective(
        name="world.gather",
        runtime="harness",
        meets_all=True,
        is_of_world=True,
        is_synchronous=True,
    ),
    Collective(
        name="world.broadcast",
        runtime="harness",
        is_of_world=True,
        is_synchronous=True,
        has_root=True,
    ),
)

BY_NAME: Final[Mapping[str, Collective]] = {each.name: each for each in COLLECTIVES}
BY_METHOD: Final[Mapping[str, Collective]] = {
    method: each for each in COLLECTIVES for method in each.methods
}
"""By the methods of torch's `ProcessGroup`."""

_BY_FUNCTION: Mapping[str, Mapping[str, Collective]] = {
    file: {name: each for each in COLLECTIVES if each.file == file for name in each.functions}
    for file in dict.fromkeys(each.file for each in COLLECTIVES if each.file)
}
_BY_FLIGHT_NAME = {name: each for each in COLLECTIVES for name in each.flight_names}
_BY_ANY_NAME = {name: each for each in COLLECTIVES for name in (*each.functions, each.name)}


def of_function(file: str, function: str) -> Collective | None:
    """Return the collective that a Python function performs, if it performs one."""
    for end, found in _BY_FUNCTION.items():
        if file.endswith(end):
            return found.get(function)
    return None


def of_flight_name(name: str) -> Collective | None:
    """Return the collective that has a name in torch's flight recorder; None if none has it."""
    return _BY_FLIGHT_NAME.get(name.lower().lstrip("_"))


def family(name: str) -> str:
    """Return the name by which a collective is matched; collectives of two families never match.

    Args:
        name: Its name in a slot page, on a Python stack or in the flight recorder.
    """
    found = _BY_ANY_NAME.get(name) or of_flight_name(name)
    return found.family if found is not None else name


def transferred(operation: Operation) -> Payload:
    """Return the payload that a transfer sends or receives."""
    return operation.payload or _payload_in(operation.detail.rpartition(" ")[2])


def payload_of(operation: Operation) -> Payload:
    """Return the payload of an operation, if all members must pass as much."""
    found = BY_NAME.get(operation.name)
    if operation.payload or found is None or not found.has_one_size:
        return operation.payload
    return _payload_in(operation.detail)


def _payload_in(detail: str) -> Payload:
    tensor = tensor_size(detail)
    return () if tensor is None else (tensor,)
