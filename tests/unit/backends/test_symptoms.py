"""What backends call a symptom, held against texts that runtimes have really written.

Taken from torch 2.13 and jax 0.10.2 on CPU. A symptom that is missed accuses a rank that has only
lost another; one that is seen where there is none acquits the rank that is to blame.
"""

from __future__ import annotations

import pytest
from builders import in_tests, world

from pytest_multihost.core.backends import NONE, Backend
from pytest_multihost.core.backends.jax import JAX
from pytest_multihost.core.backends.torch_groups import GLOO
from pytest_multihost.core.outcome import Symptoms, judge
from pytest_multihost.testing import (
    Event,
    RankOutcome,
    exited,
    make_event,
    raised,
    report,
)


def outcome(backend: Backend, *events: Event, last_words: str = "") -> RankOutcome:
    """Return what becomes of the only rank of a world, to which `events` happened in its call."""
    history = [*in_tests(1), *events]
    result = world(1, history, ended_s=1.0, ending="self", last_words={0: last_words})
    symptoms = Symptoms(backend.symptoms, backend.fatal_symptoms)
    return judge(result, symptoms).ranks[0].outcome


def raises(backend: Backend, text: str) -> RankOutcome:
    """Return what becomes of a rank that raises an exception with this text."""
    error = raised(text.replace("\\n", "\n"))
    return outcome(backend, make_event(0.5, 0, "report", report("call", "failed", error=error)))


TCP = "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp"
XLA = "[external/gloo/gloo/transport/tcp"
OUT_OF_DESCRIPTORS = (
    "[enforce fail at external/gloo/gloo/transport/tcp/socket.cc:24] rv != -1. -1 vs -1."
    " socket: Too many open files"
)
AFTERWARDS = r"\nRPC: /xla.coordination.CoordinationService/Barrier [type.googleapis.com/x='']"

LOST_ON_GLOO = {
    "exit": f"RuntimeError: {TCP}/pair.cc:553] Connection closed by peer [127.0.0.1]:15772.",
    "kill": f"RuntimeError: {TCP}/pair.cc:537] Read error [127.0.0.1]:5: Connection reset by peer.",
    "refused": f"RuntimeError: {TCP}/pair.cc:152] timed out connecting: SO_ERROR: refused",
    "late to recv": f"RuntimeError: {TCP}/unbound_buffer.cc:78] Timed out waiting 2000ms for recv",
    "late to send": f"RuntimeError: {TCP}/unbound_buffer.cc:129] Timed out waiting 2000ms for send",
    "bootstrap": f"RuntimeError: {TCP}/pair.h:311] Connect timeout [none]",
    "monitored": "RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 1000 ms",
    "monitored, all": "RuntimeError: [Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 1 ms",
    "store": "torch.distributed.DistStoreError: wait timeout after 1000ms, keys: /nokey",
    "dead store": "torch.distributed.DistNetworkError: The client socket has timed out after 1000ms"
    " while trying to connect to (127.0.0.1, 1).",
}
LOST_ON_GLOO_AND_MISSED = {
    "file store": "RuntimeError: Timeout waiting for key: nokey after 1000 ms",
    "missing in new_group": "RuntimeError: Wait timeout",
    "late, and asked again": "RuntimeError: Application timeout caused pair closure",
}
LOST_ON_JAX = {
    "exit": f"ValueError: UNKNOWN: Gloo AllGather failed: {XLA}/pair.cc:547] Connection closed by",
    "kill": "jax.errors.JaxRuntimeError: UNKNOWN: Gloo AllGather failed:"
    f" {XLA}/pair.cc:538] Read error [127.0.0.1]:18833: Connection reset by peer",
    "late": f"ValueError: UNKNOWN: Gloo all-reduce failed: {XLA}/unbound_buffer.cc:81] Timed out"
    " waiting 1000ms for recv operation to complete",
    "late, and asked again": "ValueError: UNKNOWN: Gloo AllGather failed: Application timeout"
    " caused pair closure",
    "late to the first": "JaxRuntimeError: UNKNOWN: Gloo context initialization failed:"
    " DEADLINE_EXCEEDED: GetKeyValue() timed out with key: cpu:gloo/0,2048/0 and duration: 29.99s",
    "latecomer": "JaxRuntimeError: UNKNOWN: Gloo context initialization failed:"
    f" {XLA}/pair.h:311] Connect timeout [none]",
    "barrier": "jax.errors.JaxRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: b::0. This"
    " usually happens because a task triggered the barrier too early or too slowly."
    rf"\n# of tasks that reached the barrier: 1/2.{AFTERWARDS}",
    "barrier of the dead": "JaxRuntimeError: INTERNAL: Barrier failed because: task is set to"
    f" ERROR: UNAVAILABLE: Task 1 heartbeat timeout. This indicates{AFTERWARDS}",
    "key": "JaxRuntimeError: DEADLINE_EXCEEDED: GetKeyValue() timed out with key: nokey and dura",
    "service": "RuntimeError: Unable to initialize backend 'cpu': UNAVAILABLE: Socket closed"
    r"\nAdditional GRPC error information from remote target coordination_service",
}


@pytest.mark.parametrize("text", LOST_ON_GLOO.values(), ids=LOST_ON_GLOO)
def test_gloo_a_rank_that_lost_another_is_not_accused(text: str) -> None:
    """However it came to know: it is collateral."""
    assert raises(GLOO, text) == "collateral"


@pytest.mark.parametrize("text", LOST_ON_GLOO_AND_MISSED.values(), ids=LOST_ON_GLOO_AND_MISSED)
def test_gloo_a_rank_that_waited_in_vain_is_not_accused(text: str) -> None:
    """What a FileStore says, and new_group() where a member never calls it."""
    assert raises(GLOO, text) == "collateral"


@pytest.mark.parametrize(
    "text", [LOST_ON_GLOO["kill"], LOST_ON_GLOO["late to recv"], LOST_ON_JAX["late"]]
)
def test_none_code_that_initialises_itself_loses_others_in_the_same_words(text: str) -> None:
    """The backend "none" is for code that brings its runtime along: torch or jax, as a rule."""
    assert raises(NONE, text) == "collateral"


@pytest.mark.parametrize("text", LOST_ON_JAX.values(), ids=LOST_ON_JAX)
def test_jax_a_rank_that_lost_another_is_not_accused(text: str) -> None:
    """Whatever the type of the exception, which is not always the same."""
    assert raises(JAX, text) == "collateral"


@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: Connection closed by peer",
        "AssertionError: assert 'Connection reset by peer' == 'ok'",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "TimeoutError: Timed out waiting 5000ms for the data loader",
        "ValueError: the timeout after 10ms is too short",
        "ValueError: Application timeout caused pair closure",
        "RuntimeError: our Application timeout caused pair closure",
        "torch.distributed.DistStoreError: Too many open files",
        "RuntimeError: Detected mismatch between collectives on ranks",
        "RuntimeError: [enforce fail at gloo/gloo/transport/tcp/device.cc:83] Too many open files",
    ],
)
def test_gloo_a_rank_that_went_wrong_itself_is_accused(text: str) -> None:
    """Words like those of a lost connection acquit nobody: it takes gloo's own path with them."""
    assert raises(GLOO, text) == "failed"


@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: Connection closed by peer",
        "AssertionError: array passed to device_put is not the same on each process",
        "JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 268435456 bytes",
        "ValueError: Received incompatible devices for jitted computation.",
        f"RuntimeError: Unable to initialize backend 'cpu': {OUT_OF_DESCRIPTORS}",
    ],
)
def test_jax_a_rank_that_went_wrong_itself_is_accused(text: str) -> None:
    """Its own error is the cause, whatever it brings about in the others."""
    assert raises(JAX, text) == "failed"


def test_jax_a_rank_without_file_descriptors_is_accused() -> None:
    """It could not open its sockets; the others lose it."""
    text = f"UNKNOWN: Gloo context initialization failed: {OUT_OF_DESCRIPTORS}"
    assert raises(JAX, f"jax.errors.JaxRuntimeError: {text}") == "failed"


@pytest.mark.parametrize(
    ("backend", "text"),
    [
        (JAX, "AssertionError: Barrier timed out"),
        (JAX, "AssertionError: no heartbeat timeout was raised"),
        (GLOO, "AssertionError: wait timeout after 5ms is not 10ms"),
        (GLOO, f"AssertionError: assert 'x' in '{TCP}/pair.cc:553] Connection closed by peer'"),
    ],
    ids=["barrier", "heartbeat", "store", "quoted"],
)
def test_an_assertion_is_never_a_symptom(backend: Backend, text: str) -> None:
    """No runtime asserts that a peer is gone; a test that asserts something about it failed."""
    assert raises(backend, text) == "failed"


def test_what_a_test_says_itself_is_never_a_symptom() -> None:
    """pytest.fail() is the test's own word, as an assertion is."""
    assert raises(JAX, "Failed: the log says: Barrier timed out") == "failed"


@pytest.mark.parametrize(
    "why",
    [
        f"{XLA}/pair.cc:547] Connection closed by peer [127.0.0.1]:42375",
        f"{XLA}/unbound_buffer.cc:81] Timed out waiting 30000ms for recv operation to complete",
    ],
)
def test_jax_a_rank_that_lost_another_while_connecting_is_not_accused(why: str) -> None:
    """The same words as later, in the set-up of a clique."""
    text = f"JaxRuntimeError: UNKNOWN: Gloo context initialization failed: {why}"
    assert raises(JAX, text) == "collateral"


ENDED_BY_JAX = (
    "E1121 02:49:27 7567 coordination_service_agent.cc:289] Polled an error from coordination\n"
    "F1121 02:49:27.171284    7567 client.h:80] Terminating process because the JAX distributed"
    " service detected fatal errors. This most likely indicates that another task died\n"
)


def test_jax_a_rank_that_its_runtime_ended_is_not_accused() -> None:
    """It died of another's death, which its log tells."""
    death = make_event(0.5, 0, "exited", exited(signal=6))
    assert outcome(JAX, death, last_words=ENDED_BY_JAX) == "collateral"


@pytest.mark.parametrize(
    "last_words",
    [
        "",
        f"terminate called after throwing 'gloo::EnforceNotMet': {OUT_OF_DESCRIPTORS}",
        "Fatal Python error: Segmentation fault\n",
    ],
    ids=["silent", "starved", "segfault"],
)
def test_jax_a_rank_that_died_by_itself_is_accused(last_words: str) -> None:
    """Nothing in its log says that another was gone before."""
    death = make_event(0.5, 0, "exited", exited(signal=6))
    assert outcome(JAX, death, last_words=last_words) == "crashed"
