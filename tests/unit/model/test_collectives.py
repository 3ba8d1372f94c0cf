"""The one table of collectives, and the modules that once had tables of their own."""

from __future__ import annotations

from collections import Counter

import builders
import pytest
from builders import operation

from pytest_multihost.core.blame import mismatched_ranks, operation_of
from pytest_multihost.core.model.collectives import (
    BY_NAME,
    C10D,
    COLLECTIVES,
    Collective,
    family,
    of_flight_name,
    of_function,
)
from pytest_multihost.core.model.operation import Operations
from pytest_multihost.core.model.stack import NativeThread

TORCH = f"/venv/lib/python3/site-packages/{C10D}"
NAMES = ("name", "methods", "functions", "flight_names", "xla", "gloo", "service")


def names_of(each: Collective, field: str) -> tuple[str, ...]:
    """Return the names of a kind that a row has."""
    value = getattr(each, field)
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(f"{each.file} {name}" if field == "functions" else name for name in value)


@pytest.mark.parametrize("field", NAMES)
def test_a_name_stands_in_one_row(field: str) -> None:
    """Whoever looks it up finds one collective."""
    found = Counter(name for each in COLLECTIVES for name in names_of(each, field))
    assert found
    assert [name for name, count in found.items() if count > 1] == []


def test_a_collective_matches_one_that_stands_for_its_family() -> None:
    """The name of a family is that of a row, which is its own family."""
    families = {BY_NAME[each.family] for each in COLLECTIVES}
    assert [each.name for each in families if each.matches] == []


@pytest.mark.parametrize("each", COLLECTIVES, ids=lambda each: each.name)
def test_what_has_parameters_for_a_root_has_a_root(each: Collective) -> None:
    """A row does not contradict itself."""
    assert each.has_root or not (each.root_parameters or each.root_argument is not None)
    assert each.methods or each.sent_argument is None
    assert bool(each.file) == bool(each.functions)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("all_gather_single", "all_gather_into_tensor"),
        ("reduce_scatter_single", "reduce_scatter"),
        ("ALLGATHER_coalesced", "all_gather"),
        ("_all_gather_base", "all_gather_into_tensor"),
        ("allreduce_coalesced", "all_reduce"),
        ("shutdown", "jax.distributed.shutdown"),
        ("assert_equal", "sync_global_devices"),
    ],
)
def test_all_names_of_one_collective_match(one: str, other: str) -> None:
    """One rank may be seen by its stack or its flight recorder, and another by its slot page."""
    assert family(one) == family(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("monitored_barrier", "barrier"),
        ("all_reduce", "reduce"),
        ("gather", "all_gather"),
        ("halo_exchange", "all_reduce"),
    ],
)
def test_different_collectives_do_not_match(one: str, other: str) -> None:
    """An unknown one is matched by its own name."""
    assert family(one) != family(other)


@pytest.mark.parametrize("name", ["all_reduce_of_2031", "all_to_all", "broadcast", "send", ""])
def test_nothing_follows_from_a_name_that_is_unknown_or_needs_not_all(name: str) -> None:
    """An end that others have seen shows that all have entered only where all must."""
    found = of_flight_name(name)
    assert found is None or not found.meets_all


def test_a_function_is_known_by_its_file_and_its_name() -> None:
    """A user's function may have the name of one of torch's."""
    assert of_function(TORCH, "all_gather_single") is BY_NAME["all_gather_into_tensor"]
    assert of_function("/job/train.py", "all_gather_single") is None
    assert of_function(TORCH, "get_rank") is None


def page(rank: int, name: str) -> Operations:
    """Return what a rank notes that waits in the first collective of two ranks."""
    return builders.page(rank, operation(name, group=(0, 1)))


def test_a_monitored_barrier_cannot_match_a_barrier() -> None:
    """It consists of messages to and from rank 0."""
    assert mismatched_ranks([page(0, "monitored_barrier"), page(1, "barrier")]) == {0, 1}
    assert not mismatched_ranks([page(0, "monitored_barrier"), page(1, "monitored_barrier")])


def test_the_native_frames_of_a_shutdown_are_the_operation_that_its_python_frames_are() -> None:
    """Of one rank the Python frames are read, of another the native ones."""
    native = NativeThread(1, ("xla::CoordinationServiceAgent::Shutdown",))
    found = operation_of([native], group=(0, 1), at_s=1.0)
    python = of_function("/venv/site-packages/jax/_src/distributed.py", "shutdown")
    assert found is not None
    assert python is BY_NAME[found.name]
