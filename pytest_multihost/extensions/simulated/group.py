"""A process group whose operations go through the exchange.

torch's C++ code calls these methods, too: those of functional collectives, DTensor and DDP's
reducer. So the group is a subclass of torch's bound class, with the methods that this has.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, ReduceOp

from pytest_multihost.core.torch_private import name_of_group, rename_backend
from pytest_multihost.extensions.simulated.arguments import (
    require_alike,
    require_one_for_each_member,
    require_parts,
    require_split,
)
from pytest_multihost.extensions.simulated.exchange import (
    AHEAD,
    JOIN,
    TRANSFERS,
    lost_by_timeout,
)
from pytest_multihost.extensions.simulated.launches import Blob, Completion, SimulatedLaunch
from pytest_multihost.extensions.simulated.link import links
from pytest_multihost.extensions.simulated.semantics import (
    ABORTS,
    BOUND_DEVICES,
    COMMUNICATORS,
    NCCL,
    NO_TAGS,
    STREAMS,
    Rule,
)
from pytest_multihost.extensions.simulated.tensors import (
    fill,
    fill_each,
    to_blob,
    to_joined_blob,
    to_split_blob,
)
from pytest_multihost.extensions.simulated.works import (
    OnTimeout,
    SimulatedWork,
    SimulatedWorks,
    Take,
    send_together,
)

__tracebackhide__ = True  # pytest leaves the frames of this module out of tracebacks

Tensor = Any
Tensors = Any
"""A tensor, or several in lists: torch's methods take both."""

Opts = Any
Rest = Any
Work = SimulatedWork

_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_NAME_KEY = "pytest-multihost/simulated"
"""The key under which the members of a group agree on its name in its store."""


class _Options:
    """The options of a group, with the names that torch's have."""

    backend = "gloo"

    def __init__(
        self,
        is_high_priority_stream: bool = False,  # noqa: FBT001, FBT002 - torch's
        timeout: timedelta | None = None,
    ) -> None:
        self._timeout = timeout or dist.default_pg_timeout  # torch's name
        self.global_ranks_in_group: list[int] = []
        self.group_name = ""
        self.is_high_priority_stream = is_high_priority_stream
        self.config: Any = None


class _NcclOptions(_Options):
    """The same for a group of NCCL."""

    backend = "nccl"


class SimulatedGroup(ProcessGroup):  # type: ignore[misc]
    """A process group of a simulated world."""

    BACKEND = "gloo"
    """torch's name of the backend for which it stands."""

    Options = _Options

    def __init__(
        self,
        store: Any,  # noqa: ANN401 - torch's
        rank: int,
        size: int,
        options: Any = None,  # noqa: ANN401 - torch's
        timeout: timedelta | None = None,
    ) -> None:
        """Make a group; `_set_sequence_number_for_group` joins its other members.

        Args:
            store: The store in which the members meet.
            rank: This rank's number in the group.
        """
        super().__init__(rank, size)
        given = timeout or getattr(options, "_timeout", None) or dist.default_pg_timeout
        self._store, self._timeout = store, given
        self._own_options = options if options is not None else self.Options(timeout=given)
        self._sequence = itertools.count(1)
        self._transfers: defaultdict[tuple[object, ...], Iterator[int]] = defaultdict(
            lambda: itertools.count(1)
        )
        self._lock = threading.Lock()
        self._batch = threading.local()
        self._key = ""
        self._communicators: set[str] = set()

    # The properties that torch asks a group for, besides operations.

    @property
    def options(self) -> Any:  # noqa: ANN401 - torch's
        """Its options."""
        return self._own_options

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return its own name: under gloo's, torch would take it for gloo's class in C++."""
        return "simulated"

    def name(self) -> str:
        """Return its name."""
        return "simulated"

    @property
    def group_name(self) -> str:
        """Torch's name for the group."""
        return name_of_group(dist.distributed_c10d, self)

    @property
    def supports_splitting(self) -> bool:
        """Whether another group can be split off in C++."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """Whether transfers can be launched as one."""
        return self.BACKEND == "nccl"

    @property
    def supports_time_estimate(self) -> bool:
        """Whether the time of an operation can be estimated: there is no network."""
        return False

    def _get_backend(self, device: Any = None) -> SimulatedGroup:  # noqa: ANN401, ARG002 - torch's
        return self

    def _get_backend_name(self) -> str:
        return self.getBackendName()

    def _set_default_backend(self, backend: object) -> None:
        """Do nothing: it has only one."""

    def get_group_store(self) -> Any:  # noqa: ANN401 - torch's
        """Return the store in which its members have met."""
        return self._store

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of later operations."""
        self._timeout = timeout

    _set_default_timeout = set_timeout

    def shutdown(self) -> None:
        """Leave the group, as its destructor does with gloo: others see closed connections."""
        if self._key and self.size() > 1 and ABORTS not in self._rules:
            rank = links[0].rank
            links[0].lose(self._key, self.rank(), f"rank {rank} has destroyed the group")

    def abort(self) -> None:
        """Do nothing: it holds nothing."""

    def _shutdown(self) -> None:
        """Do nothing: it holds nothing."""

    def _wait_for_pending_works(self) -> None:
        """Do nothing: works are waited for by their callers."""

    def _has_hooks(self) -> bool:
        return False

    def _enable_collectives_timing(self) -> None:
        """Do nothing: operations take no time."""

    def _is_initialized(self) -> bool:
        return bool(self._key)

    def _get_sequence_number_for_group(self) -> int:
        """Return how many collectives have been launched."""
        return int(repr(self._sequence).split("(")[1].rstrip(")")) - 1

    def _set_sequence_number_for_group(self) -> None:
        """Join the other members; torch calls it when it has made the group.

        gloo connects all members here, so a group of gloo waits for them. NCCL connects them at
        their first operation.
        """
        if self._key:
            return
        link = links[0]
        proposed = f"{link.rank}.{next(_proposals)}"
        self._key = self._store.compare_set(_NAME_KEY, "", proposed).decode()
        self._key += f"/{_times_joined(self._key)}"
        if self.BACKEND == "gloo" and self.size() > 1:
            self._join(self._key, self.rank(), self.size())
        self._connect()

    def _connect(self) -> None:
        """Make the communicator of a group of NCCL, if the program wants that at once."""
        if COMMUNICATORS in self._rules and self._is_bound:
            self._stream("barrier", None, 0)

    @property
    def is_unused(self) -> bool:
        """Whether no operation of it has been launched."""
        return self._get_sequence_number_for_group() == 0 and not self._transfers

    def become(
        self, backend: str | None, timeout: timedelta | None, *, is_bound: bool = False
    ) -> None:
        """Take the backend's name and the timeout with which a program makes it once more.

        Args:
            is_bound: Whether the program names its device.
        """
        name = str(dist.Backend(backend or "undefined"))
        rename_backend(dist.distributed_c10d, self, name)
        self.BACKEND = "nccl" if name == "nccl" else "gloo"
        default = dist.distributed_c10d.default_pg_nccl_timeout if name == "nccl" else None
        self._timeout = timeout or default or self._timeout
        links[0].is_bound = is_bound
        self._connect()

    # Operations.

    def allreduce(self, tensors: Tensors, opts: Opts = None, *args: Rest, **kwargs: Rest) -> Work:
        """Combine the tensors of all members."""
        return self._all_reduce(_listed(tensors), _reduction_options(opts, args, kwargs))

    def allreduce_coalesced(self, tensors: Tensors, opts: Opts = None) -> Work:
        """Combine several tensors of all members."""
        return self._all_reduce(tensors, opts)

    def _all_reduce(self, tensors: Sequence[Tensor], opts: Opts) -> Work:
        blobs = tuple(map(to_blob, tensors))
        return self._collective("all_reduce", blobs, tensors, opts, reduction=self._reduction(opts))

    def reduce(self, tensors: Tensors, opts: Opts = None, *args: Rest, **kwargs: Rest) -> Work:
        """Combine the tensors of all members at the root."""
        root = _root(opts, kwargs, "root")
        tensors = _listed(tensors)
        opts = _reduction_options(opts, args, kwargs)
        blobs = tuple(map(to_blob, tensors))
        return self._collective(
            "reduce", blobs, tensors, opts, root=root, reduction=self._reduction(opts)
        )

    def broadcast(self, tensors: Tensors, opts: Opts = None, **kwargs: Rest) -> Work:
        """Copy the root's tensors to all members."""
        root = _root(opts, kwargs, "root")
        tensors = _listed(tensors)
        blobs = tuple(map(to_blob, tensors)) if root == self.rank() else ()
        return self._collective("broadcast", blobs, tensors, opts, root=root)

    def allgather(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Opts = None, **_: Rest
    ) -> Work:
        """Copy the tensors of all members to all members."""
        outputs, inputs = output_tensors, input_tensors
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        for tensor, tensors in zip(inputs, outputs, strict=True):
            self._require_list(tensors, tensor)
        return self._all_gather(outputs, inputs, opts)

    def allgather_coalesced(
        self, output_lists: Tensors, input_list: Tensors, opts: Opts = None
    ) -> Work:
        """Copy several tensors of all members; `output_lists` has one list for each member."""
        require_one_for_each_member(self.size(), output_lists)
        return self._all_gather(list(zip(*output_lists, strict=True)), input_list, opts)

    def _allgather_base(self, output: Tensor, input: Tensor, opts: Opts = None) -> Work:  # noqa: A002
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Opts = None) -> Work:  # noqa: A002
        """Copy a tensor of each member to all members, into one tensor."""
        return self.allgather_into_tensor_coalesced([output], [input], opts)

    def allgather_into_tensor_coalesced(
        self, output_lists: Tensors, input_list: Tensors, opts: Opts = None
    ) -> Work:
        """Copy several tensors of each member to all members, each into one tensor."""
        for whole, part in zip(output_lists, input_list, strict=True):
            require_parts(whole, part, self.size())
        return self._all_gather([[each] for each in output_lists], input_list, opts)

    def all_gather_single_coalesced(
        self, output_lists: Tensors, input_list: Tensors, opts: Opts = None
    ) -> Work:
        """Copy several tensors of each member to all members, each into one tensor."""
        return self.allgather_into_tensor_coalesced(output_lists, input_list, opts)

    def _all_gather(
        self, outputs: Sequence[Sequence[Tensor]], inputs: Sequence[Tensor], opts: Opts
    ) -> Work:
        def take(completion: Completion) -> None:
            for tensors, blob in zip(outputs, completion.blobs, strict=True):
                _fill_parts(tensors, blob)

        flat = [tensor for each in outputs for tensor in each]
        return self._collective("all_gather", tuple(map(to_blob, inputs)), flat, opts, take=take)

    def gather(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Opts = None, **kwargs: Rest
    ) -> Work:
        """Copy the tensors of all members to the root."""
        root = _root(opts, kwargs, "root")
        outputs, inputs = output_tensors, _listed(input_tensors)
        if outputs and isinstance(outputs[0], torch.Tensor):
            outputs = [outputs]
        if root == self.rank():
            for tensor, tensors in zip(inputs, outputs, strict=True):
                self._require_list(tensors, tensor)

        def take(completion: Completion) -> None:
            for tensors, blob in zip(outputs, completion.blobs, strict=False):
                _fill_parts(tensors, blob)

        flat = [tensor for each in outputs or () for tensor in each]
        blobs = tuple(map(to_blob, inputs))
        return self._collective("gather", blobs, flat, opts, root=root, take=take)

    def scatter(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Opts = None, **kwargs: Rest
    ) -> Work:
        """Copy one of the root's tensors to each member."""
        root = _root(opts, kwargs, "root")
        outputs, inputs = _listed(output_tensors), input_tensors
        if inputs and not isinstance(inputs[0], torch.Tensor):
            inputs = inputs[0]
        if root == self.rank():
            self._require_list(inputs, outputs[0])
        blobs = (to_joined_blob(inputs),) if root == self.rank() else ()
        return self._collective("scatter", blobs, outputs, opts, root=root)

    def reduce_scatter(
        self,
        output_tensors: Tensors,
        input_tensors: Tensors,
        opts: Opts = None,
        *args: Rest,
        **kwargs: Rest,
    ) -> Work:
        """Combine one tensor for each member, and copy each to its member."""
        outputs = _listed(output_tensors)
        lists = [input_tensors] if isinstance(output_tensors, torch.Tensor) else input_tensors
        for output, tensors in zip(outputs, lists, strict=True):
            self._require_list(tensors, output)
        opts = _reduction_options(opts, args, kwargs)
        return self._reduce_scatter(outputs, tuple(map(to_joined_blob, lists)), opts)

    def _reduce_scatter_base(
        self, output_tensor: Tensor, input_tensor: Tensor, opts: Opts = None
    ) -> Work:
        return self.reduce_scatter_tensor_coalesced([output_tensor], [input_tensor], opts)

    def reduce_scatter_single(
        self, output_tensor: Tensor, input_tensor: Tensor, opts: Opts = None
    ) -> Work:
        """Combine a tensor of each member, and copy one part to each member."""
        return self.reduce_scatter_tensor_coalesced([output_tensor], [input_tensor], opts)

    def reduce_scatter_tensor_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Opts = None
    ) -> Work:
        """Combine several tensors of each member, and copy one part of each to each member."""
        for part, whole in zip(output_tensors, input_tensors, strict=True):
            require_parts(whole, part, self.size())
        return self._reduce_scatter(output_tensors, tuple(map(to_blob, input_tensors)), opts)

    def reduce_scatter_single_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Opts = None
    ) -> Work:
        """Combine several tensors of each member, and copy one part of each to each member."""
        return self.reduce_scatter_tensor_coalesced(output_tensors, input_tensors, opts)

    def _reduce_scatter(
        self, outputs: Sequence[Tensor], blobs: tuple[Blob, ...], opts: Opts
    ) -> Work:
        return self._collective(
            "reduce_scatter", blobs, outputs, opts, reduction=self._reduction(opts)
        )

    def alltoall_base(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002 - torch's name
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Opts = None,
        **_: Rest,
    ) -> Work:
        """Copy a part of a tensor of each member to each member."""
        if not (input.is_contiguous() and output.is_contiguous()):
            raise ValueError("Tensors must be contiguous")
        require_split(input, input_split_sizes, self.size())
        require_split(output, output_split_sizes, self.size())
        blob = to_split_blob(input, input_split_sizes, self.size())

        def take(completion: Completion) -> None:
            fill(output, completion.blobs[0].data)

        return self._collective("all_to_all", (blob,), [output], opts, take=take)

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,  # noqa: A002 - torch's name
        output_split_sizes: Sequence[int] = (),
        input_split_sizes: Sequence[int] = (),
        opts: Opts = None,
        **_: Rest,
    ) -> Work:
        """Copy a part of a tensor of each member to each member."""
        return self.alltoall_base(output, input, output_split_sizes, input_split_sizes, opts)

    def alltoall(
        self, output_tensor: Tensors, input_tensor: Tensors, opts: Opts = None, **_: Rest
    ) -> Work:
        """Copy one tensor of each member to each member."""
        outputs = list(output_tensor)
        require_one_for_each_member(self.size(), outputs, input_tensor)

        def take(completion: Completion) -> None:
            fill_each(outputs, completion.blobs[0])

        blobs = (to_joined_blob(input_tensor),)
        return self._collective("all_to_all", blobs, outputs, opts, take=take)

    def barrier(self, opts: Opts = None, **_: Rest) -> Work:
        """Wait for all members."""
        return self._collective("barrier", (), [], opts)

    def monitored_barrier(self, timeout: timedelta | None = None, *_: Rest, **__: Rest) -> None:
        """Wait for all members, or fail and name a late member."""
        work = self._collective("monitored_barrier", (), [], None)
        work.wait(timeout or self._timeout)

    def send(self, tensors: Sequence[Tensor], dstRank: int, tag: int = 0) -> Work:  # noqa: N803
        """Send a tensor to a member."""
        return self._transfer("send", tensors, dstRank, tag)

    def recv(self, tensors: Sequence[Tensor], srcRank: int, tag: int = 0) -> Work:  # noqa: N803
        """Receive a tensor from a member."""
        return self._transfer("recv", tensors, srcRank, tag)

    def recv_anysource(self, tensors: Sequence[Tensor], tag: int = 0) -> Work:
        """Receive a tensor from any member.

        Raises:
            RuntimeError: NCCL has no such receive.
        """
        if NO_TAGS in self._rules:
            raise RuntimeError("Backend nccl does not support recvAnysource")
        return self._transfer("recv", tensors, None, tag)

    def _transfer(
        self, operation: str, tensors: Sequence[Tensor], peer: int | None, tag: int
    ) -> Work:
        is_send = operation == "send"
        peer = None if peer is None else int(peer)  # it may be a number of numpy
        tag = 0 if NO_TAGS in self._rules else int(tag)
        outputs = [] if is_send else list(tensors)
        work = self._work(
            operation,
            tuple(map(to_blob, tensors)) if is_send else (),
            _filling(outputs),
            outputs=outputs,
            root=peer,
            tag=tag,
            sequence=next(self._transfers[operation, peer, tag]),
        )
        return self._batched(work)

    def begin_batch(self) -> None:
        """Launch the operations of this thread together, when `end_batch` is called."""
        self._batch.works = []

    def end_batch(self) -> list[Work]:
        """Launch the operations of this thread since `begin_batch`, and return them."""
        works: list[Work] = self._batch.works
        self._batch.works = None
        if works:
            send_together(links[0], works)
        return works

    def _start_coalescing(self, _device: object = None) -> None:
        self.begin_batch()

    def _end_coalescing(self, _device: object = None) -> SimulatedWorks:
        return SimulatedWorks(self.end_batch())

    def _require_list(self, tensors: Sequence[Tensor], tensor: Tensor) -> None:
        """Check that a list has one tensor for each member, of the shape that gloo needs."""
        require_one_for_each_member(self.size(), tensors)
        if self.BACKEND == "gloo":  # NCCL's tensors may have several shapes
            require_alike(tensor, tensors)

    def _collective(
        self,
        operation: str,
        blobs: tuple[Blob, ...],
        outputs: Sequence[Tensor],
        opts: Opts,
        *,
        root: int | None = None,
        reduction: str = "",
        take: Take | None = None,
    ) -> Work:
        work = self._work(
            operation,
            blobs,
            take or _filling(outputs),
            outputs=outputs,
            root=root,
            reduction=reduction,
            # The caller waits at once, so one message does for both.
            is_waited=getattr(opts, "asyncOp", True) is False,
            timeout=getattr(opts, "timeout", None),
        )
        return self._batched(work)

    def _batched(self, work: Work) -> Work:
        if self._is_batched:
            self._batch.works.append(work)
        return work

    @property
    def _is_batched(self) -> bool:
        """Whether this thread is launching several operations as one."""
        return getattr(self._batch, "works", None) is not None

    def _work(  # noqa: PLR0913 - the parts of a launch
        self,
        operation: str,
        blobs: tuple[Blob, ...],
        take: Take,
        *,
        outputs: Sequence[Tensor] = (),
        root: int | None = None,
        tag: int = 0,
        reduction: str = "",
        is_waited: bool = False,
        sequence: int | None = None,
        timeout: timedelta | None = None,
    ) -> Work:
        link, stream = links[0], ""
        if STREAMS in self._rules:
            stream = self._stream(operation, root, 0 if is_waited else AHEAD)
        limit = timeout if timeout is not None and timeout > timedelta(0) else self._timeout
        with self._lock:
            launch = SimulatedLaunch(
                rank=link.rank,
                number=link.next_number(),
                group=self._key,
                member=self.rank(),
                size=self.size(),
                operation=operation,
                sequence=next(self._sequence) if sequence is None else sequence,
                root=root,
                tag=tag,
                reduction=reduction,
                blobs=blobs,
                stream=stream,
            )
        work = SimulatedWork(link, launch, take, outputs, limit.total_seconds(), self._on_timeout)
        if not (is_waited or self._is_batched):
            work.send()
        return work

    @property
    def _on_timeout(self) -> OnTimeout | None:
        """The action after the timeout of an operation, besides an error of its wait."""
        if ABORTS not in self._rules:
            return _close
        return take_down if links[0].times_itself and not _blocks_in_wait() else None

    @property
    def _rules(self) -> tuple[Rule, ...]:
        """The rules by which it differs from a group of gloo."""
        is_plain = NCCL.name != self.BACKEND or self.size() == 1
        return () if is_plain else links[0].semantics.rules

    @property
    def _is_bound(self) -> bool:
        return BOUND_DEVICES in self._rules and links[0].is_bound

    def _stream(self, operation: str, peer: int | None, tag: int) -> str:
        """Return the stream of NCCL's on which an operation runs; first make its communicator.

        torch runs transfers that are not part of a batch on a communicator of their two ranks, but
        on the group's if that is made at once. Making a communicator takes all of its members:
        ncclCommInitRank waits for them.
        """
        name, member, size, other = self._key, self.rank(), self.size(), None
        shares = self._is_batched or self._is_bound
        if operation in TRANSFERS and peer is not None and not shares:
            low, high = sorted((self.rank(), peer))
            name, member, size = f"{name}:{low}-{high}", int(self.rank() == high), 2
            other = dist.get_global_rank(self, peer)
        if COMMUNICATORS in self._rules and name not in self._communicators:
            self._communicators.add(name)
            self._join(name, member, size, tag, other)
        return name

    def _join(
        self, name: str, member: int, size: int, tag: int = 0, peer: int | None = None
    ) -> None:
        """Wait until all members join."""
        link, limit_s = links[0], self._timeout.total_seconds()
        launch = SimulatedLaunch(
            rank=link.rank,
            number=link.next_number(),
            group=name,
            member=member,
            size=size,
            operation=JOIN,
            tag=tag,
            peer=peer,
        )
        on_timeout = None if ABORTS in self._rules else _close
        SimulatedWork(link, launch, lambda _: None, (), limit_s, on_timeout).wait()

    def _reduction(self, opts: Opts) -> str:
        """Return the name of a reduction.

        Raises:
            RuntimeError: The backend does not have it.
        """
        operation = getattr(opts, "reduceOp", ReduceOp.SUM)
        name = next(name for name in _REDUCTIONS if operation == getattr(ReduceOp, name))
        if name == "PREMUL_SUM":  # its factor is known in C++ only
            raise RuntimeError("a simulated group has no ReduceOp.PREMUL_SUM")
        return name.lower()


class SimulatedNcclGroup(SimulatedGroup):
    """A process group of a simulated world that the program takes for one of NCCL."""

    BACKEND = "nccl"
    Options = _NcclOptions


def _blocks_in_wait() -> bool:
    """Return whether the program wants an error of a wait instead of the watchdog's abort."""
    return os.environ.get("TORCH_NCCL_BLOCKING_WAIT", "0") == "1"


def _close(launch: SimulatedLaunch, _error: str) -> None:
    """Close this rank's connections in a group, as gloo does when a timeout has struck."""
    links[0].lose(launch.group, launch.member, lost_by_timeout(launch))


def take_down(_launch: SimulatedLaunch, error: str) -> None:
    """End this process as the watchdog of ProcessGroupNCCL does when a timeout has struck."""
    sys.stderr.write(f"the watchdog of NCCL takes the entire process down: {error}\n")
    sys.stderr.flush()
    os.abort()


_proposals = itertools.count()

_joins: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def _times_joined(key: str) -> int:
    """Return how often this rank has joined a group of this key: torch reuses names."""
    return next(_joins[key])


def _listed(tensors: Tensors) -> Sequence[Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _root(opts: Opts, kwargs: dict[str, Any], name: str) -> int:
    if isinstance(opts, int):
        return int(opts)
    return int(kwargs[name]) if name in kwargs else int(opts.rootRank)


def _reduction_options(opts: Opts, args: Sequence[Any], kwargs: dict[str, Any]) -> Opts:
    """Return options that have the reduction which a caller may have passed alone."""
    given = [each for each in (opts, *args, kwargs.get("op")) if isinstance(each, _REDUCE_OPS)]
    if not given and hasattr(opts, "reduceOp"):
        return opts
    found = dist.AllreduceOptions()
    if given:
        found.reduceOp = given[0] if isinstance(given[0], ReduceOp) else ReduceOp(given[0])
    return found


_REDUCE_OPS = (ReduceOp, ReduceOp.RedOpType)


def _filling(outputs: Sequence[Tensor]) -> Take:
    def take(completion: Completion) -> None:
        for tensor, blob in zip(outputs, completion.blobs, strict=False):
            fill(tensor, blob.data)

    return take


def _fill_parts(tensors: Sequence[Tensor], blob: Blob) -> None:
    if len(tensors) == 1:
        fill(tensors[0], blob.data)
    else:
        fill_each(tensors, blob)
