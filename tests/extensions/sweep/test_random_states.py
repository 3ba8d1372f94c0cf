"""Who restores the state of its random numbers, and who does not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest

from pytest_multihost.extensions.sweep.random_states import RandomStates

pytestmark = pytest.mark.unit


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch) -> Iterator[RandomStates]:
    """What this process does with random numbers; its functions are put back at the end."""
    import numpy.random
    import torch

    functions = ((random, "setstate"), (random, "seed"), (torch, "manual_seed"))
    more = ((numpy.random, "seed"), (numpy.random, "set_state"), (torch, "set_rng_state"))
    of_torch = ((torch.random, "manual_seed"), (torch.random, "set_rng_state"))
    for module, name in (*functions, *more, *of_torch):
        monkeypatch.setattr(module, name, getattr(module, name))
    before = random.getstate(), torch.get_rng_state()
    found = RandomStates()
    found.watch()
    yield found
    monkeypatch.undo()
    random.setstate(before[0])
    torch.set_rng_state(before[1])


def text(states: RandomStates) -> str:
    """Return what is stated."""
    [value] = states.values()
    return value.text


def _restores_python() -> None:
    random.setstate(random.getstate())


def _restores_torch() -> None:
    import torch

    torch.set_rng_state(torch.get_rng_state())


def _seeds_twice() -> None:
    random.seed(1)
    random.seed(2)


@pytest.mark.parametrize("act", [_restores_python, _restores_torch, _seeds_twice])
def test_a_rank_that_sets_a_state_has_restored_it(
    states: RandomStates, act: Callable[[], None]
) -> None:
    """A seed at a second line may be instead of a state."""
    assert text(states) == "not restored it"
    act()
    assert text(states) == "restored it"


def test_a_seed_alone_restores_nothing(states: RandomStates) -> None:
    """However often it is set at one line."""
    for number in range(3):
        random.seed(number)
    assert text(states) == "not restored it"


def test_states_that_a_library_sets_for_itself_do_not_count(states: RandomStates) -> None:
    """As where torch forks its random numbers."""
    import torch

    with torch.random.fork_rng():
        torch.rand(1)
    assert text(states) == "not restored it"
