"""Logs as people have posted them: the facts of public threads, in the lines that torch prints.

A person decided each before it was read for the first time. Where the lines show only a part, more
than one answer is right, and naming nobody is one of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from job_logs import (
    blamed,
    call_stack,
    failures,
    observed,
    said,
    signal,
    status,
    timeout,
    traceback,
)

from pytest_multihost.extensions.logs.lines import SHORT

TORCH = "/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:570"
OUT = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 184.13 GiB."
NOBODY = ("unknown", "transport", "passed", "failed")


def expert_bridge() -> str:
    """Six ranks wait in a broadcast; ranks 0 and 4 are in a gather over gloo, and lose it."""
    waiting = (1, 2, 3, 5, 6, 7)
    return (
        "".join(timeout(r, 78, "BROADCAST", (80, 80)) + status(r, 78, 79) for r in waiting)
        + "".join(observed(r) + signal(r, " rank 1", 77) for r in (0, 4))
        + "".join(
            traceback(r, CLOSED, ("/job/pipeline.py", 2961, "gather"), (TORCH, 3949, "all_gather"))
            for r in (0, 4)
        )
        + failures((7, -6))
    )


def lengths_of_a_group() -> str:
    """Four ranks of one group wait in an all_gather; what two of them raise afterwards follows."""
    frames = (("/job/trainer.py", 657, "infer"), (TORCH, 3042, "all_gather_object"))
    group = "ID 1 PG GUID 1"
    return (
        timeout(1, 57, "ALLGATHER", (1, 4))
        + status(1, 57, 57, group)
        + timeout(0, 57, "ALLGATHER", (1, 4))
        + status(0, 57, 57, group)
        + signal(0, "this local rank", 593)
        + traceback(2, OUT, *frames)
        + traceback(1, OUT, *frames)
        + "[rank3]:[E813 12:26:00.651 ProcessGroupNCCL.cpp:1321] [PG ID 1 PG GUID 1 Rank 3] Future"
        " for ProcessGroup abort timed out after 600000 ms\n"
    )


def command_barrier() -> str:
    """Rank 7 has launched collectives of NCCL; two others wait in a barrier over gloo."""
    frames = (("/job/server.py", 12718, "sync"), (TORCH, 5237, "barrier"))
    waited = (
        "RuntimeError: [/gloo/unbound_buffer.cc:{}] Timed out waiting 1800000ms for {} operation to"
        " complete"
    )
    return (
        traceback(3, waited.format(78, "recv"), *frames)
        + traceback(4, waited.format(129, "send"), *frames)
        + observed(5)
        + signal(5, " rank 7", 56116)
        + signal(7, "this local rank", 56390, 56116)
        + observed(0)
        + signal(0, " rank 7", 56116)
        + failures((5, 1), [(0, -15), (1, 1), (2, -15), (3, -15), (4, -15), (6, -15), (7, -15)])
    )


def graph_capture() -> str:
    """All wait in the same all_reduce; the stacks show that rank 3 calls it elsewhere."""
    reduce = f"all_reduce from {TORCH}:3068"
    wrapper = "wrapper from /venv/lib/python3.13/site-packages/torch/distributed/c10d_logger.py:83"
    own = "reduce_decode from /job/parallel.py:10212"
    agree = "captured_on_all from /job/parallel.py:246"
    return (
        "".join(timeout(r, 39892) + status(r, 39892, 39892) for r in (0, 1, 2, 3))
        + call_stack(3, reduce, wrapper, own, "main from /job/server.py:19456")
        + call_stack(2, reduce, wrapper, agree, "main from /job/server.py:19456")
        + call_stack(1, reduce, wrapper, agree, "main from /job/server.py:19456")
        + failures((0, -6), [(1, -6), (2, -6), (3, -6)])
    )


def first_broadcasts() -> str:
    """Both ranks wait in the first of 547 broadcasts that they have launched."""
    return "".join(
        timeout(r, 1, "BROADCAST", (131072000, 131072000))
        + status(r, 1, 547, "ID 1 PG GUID 1").replace("work: 0\n", "work: -1\n")
        for r in (0, 1)
    )


def first_collective() -> str:
    """All wait in the first collective of all, and say afterwards that they have no parameters."""
    at = "check from /venv/lib/python3.13/site-packages/torch/distributed/utils.py:286"
    frames = (("/job/train.py", 692, "main"), ("/venv/site-packages/torch/utils.py", 286, "check"))
    return (
        "".join(timeout(r, 1, "ALLGATHER", (1, 4)) + status(r, 1, 1) for r in (2, 3, 1, 0))
        + "".join(call_stack(r, at, "main from /job/train.py:692") for r in (1, 3, 0, 2))
        + "".join(signal(r, "this local rank", 1, -1) for r in (3, 1, 2, 0))
        + "".join(
            traceback(
                r,
                f"RuntimeError: DDP expects same model across all ranks, but Rank {r} has 51"
                " params, while rank 0 has inconsistent 0 params.",
                *frames,
            )
            for r in (2, 0, 1, 3)
        )
        + failures((1, -6), [(0, -6), (2, -6), (3, -6)])
    )


def shared_data() -> str:
    """A barrier of an older jax names the tasks that did not come, in other words."""
    return (
        "Traceback (most recent call last):\n"
        '  File "/job/logging.py", line 232, in init\n'
        '  File "/job/jax_utils.py", line 75, in multihost_broadcast_sync\n'
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id:"
        " multihost_broadcast_sync0. Timed out task names:\n"
        "/job:jax_worker/replica:0/task:3\n/job:jax_worker/replica:0/task:0\n\n"
        "Additional GRPC error information from remote target unknown:\n"
    )


def ranks_of_several_groups() -> str:
    """Lines of torch 2.0 name ranks of groups; rank 0 of several groups is not one process."""
    line = (
        "[E ProcessGroupNCCL.cpp:458] [Rank {}] Watchdog caught collective operation timeout:"
        " WorkNCCL(SeqNum={}, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25624887"
        " milliseconds before timing out.\n"
    )
    bar = "Epoch 0:   6%|#   | 32040/500150 [6:28:43<94:39:17,  1.37it/s, loss=2.6]"
    numbers = ((0, 96120), (0, 96117), (0, 96125), (7, 64088), (0, 96120), (5, 64088))
    return bar + "".join(line.format(*each) for each in numbers)


def data_of_a_process() -> str:
    """RAS has no data of one process, and lists ranks that cannot be."""
    return (
        "Errors\n======\n\nINCOMPLETE\n  Missing communicator data from 1 job process\n"
        "  Process 60004 on node 10.4.109.13 managing GPU 0\n\n"
        "#0-0 (b3398875b8b2a063) INCOMPLETE\n  Missing communicator data from 1 rank\n"
        "  Rank 1 -- GPU 0 managed by process 60004 on node 10.4.109.13\n\n"
        "#2-0 (93d7000200000001) INCOMPLETE\n  Missing communicator data from 255 ranks\n"
        "  Rank 1057455228 -- GPU 0 managed by process 60004 on node 10.4.109.13\n"
    )


def report_of_the_store() -> str:
    """With TORCH_NCCL_DESYNC_DEBUG, a rank prints how far each one has come."""
    return (
        timeout(0, 1155874, "ALLREDUCE", (9445376, 9445376))
        + "[rank0]:[E410 07:09:16.129 ProcessGroupNCCL.cpp:1709] [PG ID 0 PG GUID 0(default_pg)"
        " Rank 0] \n\t - [0] Timeout at collective: ALLREDUCE, #1155874\n"
        "\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync"
        " are:\n"
        "\t     [1] finished collective #1155873, but didn't join collective #1155874 (count from"
        " 1)\n\t - Snapshot of ranks' latest states:\n\t   #1155873 finished ranks:\n\t     [1]"
        " finished ALLREDUCE\n\t   #1155874 started ranks:\n\t     [0] started ALLREDUCE\n"
    )


def wrapped() -> str:
    """A terminal of 120 columns has broken the lines; a tool's prefix stands before them."""
    lines = (
        "".join(timeout(r, 2070, "REDUCE", (1, 1)) for r in (14, 12, 11, 15))
        + status(12, 2070, 2070)
        + timeout(6, 2070, "ALLREDUCE", (1, 1))
    ).splitlines()
    return "".join(
        f"{whole[:118]}\n{whole[118:]}\n"
        for whole in (f"dinov2-giant-nodes.cn-d004.nolog [stderr] {each}" for each in lines)
    )


def uninitialised() -> str:
    """One of two ranks has a line; its count is garbage, and Ray's prefix stands before it."""
    prefix = "(RayWorkerWrapper pid=489968) [rank1]:[E ProcessGroupNCCL.cpp"
    work = "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1572864, NumelOut=1572864, Timeout(ms)=6)"
    return (
        f"{prefix}:563] [Rank 1] Watchdog caught collective operation timeout: {work} ran for 6"
        " ms\n"
        f"{prefix}:1537] [PG 1 Rank 1] Timeout at NCCL work: 1, last enqueued NCCL work: 1, last"
        " completed NCCL work: 93459313471793.\n"
    )


TRUTH = {
    expert_bridge: (("straggler", "mismatch"), {(0, 4)}),
    lengths_of_a_group: (NOBODY, {()}),
    command_barrier: ((*NOBODY, "mismatch", "straggler"), {(7,), ()}),
    graph_capture: ((*NOBODY, "mismatch"), {(3,), ()}),
    first_broadcasts: (NOBODY, {()}),
    first_collective: (NOBODY, {()}),
    shared_data: (("straggler",), {(0, 3)}),
    ranks_of_several_groups: (NOBODY, {()}),
    data_of_a_process: (NOBODY, {()}),
    report_of_the_store: (("straggler",), {(1,)}),
    wrapped: (("mismatch",), {(6,)}),
    uninitialised: (NOBODY, {()}),
}
"""By log: the kinds of hang and the culprits that are right."""


@pytest.mark.parametrize("before", ["", "step 1\n" * (SHORT // 5)], ids=["short", "long"])
@pytest.mark.parametrize("thread", TRUTH, ids=lambda each: each.__name__)
def test_a_log_of_a_public_thread_is_read_as_a_person_reads_it(
    thread: object, before: str, tmp_path: Path
) -> None:
    """And nobody is named whom its lines do not show, also where not all lines are read."""
    assert callable(thread)
    kind, culprits = blamed(said(before + thread(), tmp_path))
    kinds, right = TRUTH[thread]
    assert kind in kinds
    assert culprits in right
