"""Telling from native frames which operation a rank is in.

The frames are of real hangs of two ranks, recorded with frames/record.py: rank 0 sleeps, and rank 1
waits for it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_multihost.core.blame.inferred import operation_of, plain_name, waits_for_peer
from pytest_multihost.testing import NativeThread, Operation

_RECORDED = json.loads(Path(__file__).with_name("frames").joinpath("native.json").read_text())


def threads_of(case: str, rank: int) -> tuple[NativeThread, ...]:
    """Return the recorded threads of a rank; their ids are made up."""
    numbers = _RECORDED["cases"][case][str(rank)]
    return tuple(NativeThread(number, tuple(_RECORDED["stacks"][number])) for number in numbers)


def recorded(case: str, rank: int) -> Operation | None:
    """Return the operation that a recorded rank is found in."""
    return operation_of(threads_of(case, rank), group=(0, 1), at_s=12.5)


@pytest.mark.parametrize(
    ("case", "name", "kind"),
    [
        ("psum/1", "all_reduce", "collective"),
        ("psum/2", "all_reduce", "collective"),
        ("cold/1", "all_reduce", "collective"),
        ("cold/2", "all_reduce", "collective"),
        ("allgather/1", "all_gather", "collective"),
        ("alltoall/1", "all_to_all", "collective"),
        ("ppermute/1", "collective_permute", "collective"),
        ("barrier/1", "wait_at_barrier", "collective"),
        ("shutdown/1", "jax.distributed.shutdown", "collective"),
        ("key/1", "blocking_key_value_get", "wait"),
        ("torch_all_reduce/1", "all_reduce", "collective"),
        ("torch_all_gather/1", "all_gather", "collective"),
        ("torch_broadcast/1", "broadcast", "collective"),
        ("torch_barrier/1", "barrier", "collective"),
        ("torch_recv/1", "recv", "transfer"),
        ("torch_store/1", "store.wait", "wait"),
    ],
)
def test_a_waiting_rank_is_found_in_its_operation(case: str, name: str, kind: str) -> None:
    """Its name and whom it needs; which of its calls it is, nobody can see."""
    found = recorded(case, 1)
    assert found is not None
    assert (found.name, found.kind, found.sequence) == (name, kind, 0)
    assert (found.group, found.source, found.since_s) == ((0, 1), "native-frames", 12.5)
    assert found.is_open


@pytest.mark.parametrize("case", _RECORDED["cases"])
def test_a_rank_that_sleeps_is_in_none(case: str) -> None:
    """It has all the threads of its runtime, which wait for work, and look busy."""
    assert recorded(case, 0) is None


@pytest.mark.parametrize("case", ["matmul/1", "matmul/2", "torch_matmul/1"])
def test_a_rank_that_computes_is_in_none(case: str) -> None:
    """It waits for its own devices and for nobody else."""
    assert recorded(case, 1) is None


@pytest.mark.parametrize(
    ("case", "stage"),
    [
        ("cold/1", "its first use: connecting"),
        ("cold/2", "its first use: connecting"),
        ("psum/1", "waits to send"),
        ("torch_barrier/1", "waits to receive"),
    ],
)
def test_connecting_is_told_from_exchanging(case: str, stage: str) -> None:
    """The first has a limit of half a minute that nobody can set, the second the test's."""
    found = recorded(case, 1)
    assert found is not None
    assert found.detail == stage


def test_the_thread_that_waits_is_named() -> None:
    """With several devices it is not the main thread, but one that Python does not know."""
    found = recorded("psum/2", 1)
    assert found is not None
    (thread,) = [each for each in threads_of("psum/2", 1) if each.thread == found.thread]
    assert any("AllReduce" in symbol for symbol in thread.symbols)


def test_the_outermost_collective_counts() -> None:
    """What an operation is made of is not what was called."""
    frames = ("gloo::{anonymous}::allgather", "gloo::allreduce", "c10d::ProcessGroupGloo::runLoop")
    found = operation_of([NativeThread(1, frames)], group=(0,), at_s=0)
    assert found is not None
    assert found.name == "all_reduce"


def test_names_that_only_resemble_an_operation_are_none() -> None:
    """A user's own library may have its broadcast, and threads of a runtime their loops."""
    frames = [
        ("mylib::broadcast", "igloo::allreduce", "gloo::allreduce_benchmark"),
        (
            "gloo::transport::tcp::Loop::run",
            "xla::CoordinationServiceAgent::StartSendingHeartbeats",
        ),
        ("c10d::ProcessGroupGloo::runLoop", "c10d::detail::TCPStoreMasterDaemon::run"),
    ]
    threads = [NativeThread(i, symbols) for i, symbols in enumerate(frames)]
    assert operation_of(threads, group=(0,), at_s=0) is None


def test_a_wait_for_a_store_of_one_process_is_none() -> None:
    """It looks like one for a store that all ranks share, also below a prefix."""

    def found(*frames: str) -> Operation | None:
        return operation_of([NativeThread(1, frames)], group=(0, 1), at_s=0)

    own = ("pthread_cond_clockwait", "c10d::HashStore::waitLocked", "c10d::HashStore::wait")
    assert found(*own) is None
    assert found(*own, "c10d::PrefixStore::wait") is None
    assert found("recv", "c10d::TCPStore::wait", "c10d::PrefixStore::wait") is not None


def test_without_frames_there_is_no_operation() -> None:
    """A rank that could not be read is not found in anything."""
    assert operation_of([], group=(0, 1), at_s=0) is None


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("gloo::allreduce(gloo::AllreduceOptions const&)", "gloo::allreduce"),
        (
            "gloo::(anonymous namespace)::ring(gloo::A const&, std::function<void (void*)>, int)",
            "gloo::{anonymous}::ring",
        ),
        ("clock_nanosleep@GLIBC_2.2.5", "clock_nanosleep"),
        ("pthread_cond_wait@@GLIBC_2.3.2", "pthread_cond_wait"),
        ("pysleep (inlined)", "pysleep"),
        (
            "xla::CoordinationServiceAgent::GetKeyValue[abi:cxx11](std::basic_string_view<char>)",
            "xla::CoordinationServiceAgent::GetKeyValue",
        ),
        (
            "tsl::Future<void> absl::RemoteInvoker<false, void>(absl::TypeErasedState*)",
            "absl::RemoteInvoker",
        ),
        ("c10d::Work::wait(std::chrono::duration<long>) const", "c10d::Work::wait"),
        ("A::operator()(int) const", "A::{call}"),
        ("???", "???"),
        ("", ""),
    ],
)
def test_names_are_plain(symbol: str, name: str) -> None:
    """A reader knows a function by its name; its arguments fill the screen."""
    assert plain_name(symbol) == name


def test_a_thread_waits_for_a_peer_if_its_innermost_function_is_gloos() -> None:
    """A function further out may be left from an earlier call: the thread waits for work now."""
    wait = "gloo::transport::tcp::UnboundBuffer::waitRecv"
    assert waits_for_peer([wait, "gloo::allreduce"])
    assert not waits_for_peer(["tsl::thread::EigenEnvironment::Wait", wait])
    assert not waits_for_peer([])
