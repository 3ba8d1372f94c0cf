"""vLLM's coordinator of data-parallel engines as a role: ``pytest benchmarks/vllm_coordinator.py``.

It runs unmodified, without a GPU: it is a process of messages. The engines are two ranks with a
process group of gloo. One that ignores a wave, as a paused one does (vLLM#39366), is named with its
line at the deadline; the coordinator and the frontend are not blamed.

vLLM's wheel has 336 MB; of what it asks for only a few small packages are needed:

    pip install '.[torch]' msgspec pyzmq transformers openai openai-harmony pillow pybase64
    pip install cachetools prometheus_client cloudpickle py-cpuinfo cbor2
    pip install --no-deps vllm==0.33.0

No test of this package runs it: it was tried with vLLM 0.33.0, torch 2.13.0 and Python 3.11.
"""

from __future__ import annotations

import os
import types
from pathlib import Path

import msgspec
import pytest
import torch
import torch.distributed as dist
import zmq
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.engine.coordinator import DPCoordinator

from pytest_multihost import World


def connected(kind: int, address: str) -> zmq.Socket[bytes]:
    """Return a socket that is connected, and subscribed if it can be."""
    found = zmq.Context.instance().socket(kind)
    found.connect(address)
    if kind == zmq.XSUB:
        found.send(b"\x01")  # subscribe
    return found


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.multihost(roles={"frontend": 1, "engine": 2}, timeout=60)
def test_a_wave(world: World, shared_tmp_path: Path, joins: bool) -> None:  # noqa: FBT001
    """Both engines join a wave, or one of them is paused and ignores it."""
    if world.role == "frontend":
        os.environ["VLLM_RPC_BASE_PATH"] = str(shared_tmp_path)
        config = types.SimpleNamespace(
            data_parallel_size=2,
            data_parallel_size_local=2,
            local_engines_only=False,
            data_parallel_master_ip="127.0.0.1",
            enable_elastic_ep=False,
        )
        coordinator = DPCoordinator(config)  # starts vLLM's own process
        states = connected(zmq.XSUB, coordinator.get_stats_publish_address())
        world.broadcast(coordinator.get_engine_socket_addresses())
        while not msgspec.msgpack.decode(states.recv())[2]:
            pass  # until the engines run
        world.barrier("done")
        coordinator.shutdown()
        return
    inputs, outputs = world.broadcast(None)
    dist.init_process_group("gloo")
    waves, results = connected(zmq.XSUB, inputs), connected(zmq.PUSH, outputs)
    assert waves.recv() == b"READY"
    if world.role_rank == 0:  # a request has come
        results.send(msgspec.msgpack.encode(EngineCoreOutputs(engine_index=0, start_wave=0)))
    else:
        waves.recv_multipart()  # START_DP_WAVE
        if not joins:
            waves.recv_multipart()  # it is paused, and has ignored the wave
    dist.all_reduce(torch.ones(1))
    world.barrier("done")
