"""Which operations wait for all ranks, asked from functions that look like torch's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from pytest_multihost.extensions.faults.meetings import meets_all

pytestmark = pytest.mark.unit

SIZE = 4
FILE = "/venv/lib/python3/site-packages/torch/distributed/distributed_c10d.py"


@dataclass(frozen=True)
class Group:
    """A group of so many ranks."""

    count: int

    def size(self) -> int:
        """Return how many."""
        return self.count


def called(
    name: str, arguments: str, *given: object, file: str = FILE, operation: str = ""
) -> bool:
    """Return what is found for a function of a name that is called with arguments."""
    names = [each.strip() for each in arguments.split(",")]
    text = f"def {name}({', '.join(names)}):\n    return ask()\n"
    namespace: dict[str, Callable[..., bool]] = {
        "ask": lambda: meets_all(sys._getframe(1), operation or name, SIZE)
    }
    exec(compile(text, file, "exec"), namespace)  # noqa: S102 - the text is above
    return namespace[name](*given)


@pytest.mark.parametrize("name", ["all_reduce", "barrier", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("group", [None, Group(SIZE)])
def test_a_synchronous_operation_of_all_ranks_meets_all(name: str, group: object) -> None:
    """Each needs what every other has."""
    assert called(name, "group, async_op", group, False)


@pytest.mark.parametrize(
    ("name", "group", "is_async"),
    [
        ("all_reduce", None, True),
        ("all_reduce", Group(2), False),
        ("all_reduce", object(), False),
        ("broadcast", None, False),
        ("reduce", None, False),
        ("send", None, False),
    ],
)
def test_others_may_be_over_before_all_have_come(name: str, group: object, is_async: bool) -> None:
    """Some wait elsewhere, some for a part of the ranks, and some for one only."""
    assert not called(name, "group, async_op", group, is_async)


def test_an_operation_that_is_not_called_by_torchs_function_is_not_known() -> None:
    """Whoever calls the group itself gets a work, and waits for it where it likes."""
    assert not called("all_reduce", "group, async_op", None, False, file="/t/train.py")


def test_the_monitored_barrier_is_always_synchronous() -> None:
    """It has no other form."""
    assert called("monitored_barrier", "group, timeout", None, None)


def test_an_operation_has_the_functions_that_the_table_of_collectives_says() -> None:
    """Since torch 2.13 all_gather_into_tensor is all_gather_single."""
    arguments = "output_tensor, input_tensor, group, async_op"
    given = (None, None, None, False)
    name = "all_gather_into_tensor"
    assert called("all_gather_single", arguments, *given, operation=name)
    assert called(name, arguments, *given)
    assert not called("all_gather", arguments, *given, operation=name)


@pytest.mark.parametrize(
    ("name", "meets"),
    [
        ("world.barrier", True),
        ("sync_global_devices", True),
        ("assert_equal", True),
        ("broadcast_one_to_all", False),
        ("wait_at_barrier", False),
        ("halo", False),
    ],
)
def test_operations_of_others_are_known_by_name(name: str, meets: bool) -> None:
    """The harness's own and jax's, if all ranks are in them; of a user's nothing is known."""
    assert meets_all(sys._getframe(), name, SIZE) == meets
