"""The multihost marker: merged, checked, and told from what the command line says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_multihost.core.option import (
    BACKENDS,
    CORE_OPTIONS,
    LOCAL_DEVICES,
    RANKS,
    STARTUP_TIMEOUT,
    TIMEOUT,
    MarkerKey,
    Option,
    Settings,
    parse_count,
)
from pytest_multihost.core.pytest_plugin.marks import (
    BACKEND_PARAM,
    RANKS_PARAM,
    MarkerSettings,
    read_markers,
    world_axes,
)
from pytest_multihost.core.pytest_plugin.options import with_host_kinds
from pytest_multihost.extensions import clock, netns

[CLOCK_OPTION] = clock.pytest_multihost_options()
[NETNS] = netns.pytest_multihost_hosts()
DEFAULTS = Settings(options=(*with_host_kinds(CORE_OPTIONS, [NETNS]), CLOCK_OPTION))


def want(*marks: pytest.MarkDecorator, run: Settings = DEFAULTS) -> MarkerSettings:
    """Return what marks ask for, innermost first; there must be no problem."""
    found, problems = read_markers([each.mark for each in marks], run)
    assert problems == []
    return found


def problems(*marks: pytest.MarkDecorator) -> list[str]:
    """Return what is wrong with marks."""
    return read_markers([each.mark for each in marks], DEFAULTS)[1]


multihost = pytest.mark.multihost
OTHERS = (
    DEFAULTS.having(RANKS, (4,))
    .having(BACKENDS, ("gloo",))
    .having(TIMEOUT, 5.0)
    .having(STARTUP_TIMEOUT, 6.0)
)
FOUR_DEVICES = DEFAULTS.having(LOCAL_DEVICES, 4)
JUMPS = DEFAULTS.having(CLOCK_OPTION, "jump")


def test_a_bare_marker_asks_for_two_ranks() -> None:
    """One rank alone can wait for nobody."""
    found = want(multihost)
    assert (found.ranks, found.backends, found.get(LOCAL_DEVICES)) == ((2,), ("none",), 1)
    assert (found.get(TIMEOUT), found.get(STARTUP_TIMEOUT)) == (120.0, 60.0)


def test_defaults_hold_where_the_marker_says_nothing() -> None:
    """From the command line, the environment or the ini file."""
    found = want(multihost, run=OTHERS)
    assert (found.ranks, found.backends) == ((4,), ("gloo",))
    assert (found.get(TIMEOUT), found.get(STARTUP_TIMEOUT)) == (5.0, 6.0)


def test_the_marker_beats_the_defaults() -> None:
    """Who writes a test knows what it needs."""
    mark = multihost(3, backend="jax", timeout=7, startup_timeout=8, local_devices=2)
    found = want(mark, run=OTHERS)
    assert (found.ranks, found.backends, found.get(LOCAL_DEVICES)) == ((3,), ("jax",), 2)
    assert (found.get(TIMEOUT), found.get(STARTUP_TIMEOUT)) == (7.0, 8.0)


def test_local_devices_of_the_run_hold_where_the_marker_is_silent() -> None:
    """As in mode `auto`, where there is no marker at all."""
    assert want(run=FOUR_DEVICES).get(LOCAL_DEVICES) == 4
    assert want(multihost(local_devices=2), run=FOUR_DEVICES).get(LOCAL_DEVICES) == 2


def test_a_marker_says_how_time_passes() -> None:
    """Where it is silent, the run does; a marker can take a run's clock back."""
    assert want(multihost).get(CLOCK_OPTION) == "real"
    assert want(multihost, run=JUMPS).get(CLOCK_OPTION) == "jump"
    assert want(multihost(clock="jump")).get(CLOCK_OPTION) == "jump"
    assert want(multihost(clock="real"), run=JUMPS).get(CLOCK_OPTION) == "real"
    assert want(multihost(clock=None), multihost(clock="jump")).get(CLOCK_OPTION) == "real"


def test_variables_are_kept_as_they_are() -> None:
    """They are set before the ranks' interpreter starts."""
    assert want(multihost(env={"A": "b"})).env == {"A": "b"}
    assert want(multihost).env == {}


def test_only_a_marker_gives_a_test_a_timeout_of_its_own() -> None:
    """One that is its own is not replaced by what pytest-timeout says for all tests."""
    assert want(multihost(timeout=7)).has_own_timeout
    assert not want(multihost, run=OTHERS).has_own_timeout


def test_markers_merge_key_by_key_and_the_innermost_wins() -> None:
    """A module says the backend, a class the ranks, a function another number of ranks."""
    function, outer, module = (
        multihost(ranks=3),
        multihost(ranks=4, timeout=9),
        multihost(backend="gloo"),
    )
    found = want(function, outer, module)
    assert (found.ranks, found.get(TIMEOUT), found.backends) == ((3,), 9.0, ("gloo",))


def test_none_takes_an_outer_value_back() -> None:
    """A function can ask for the default again."""
    assert want(multihost(ranks=None), multihost(ranks=4)).ranks == (2,)


def test_lists_are_kept_in_order() -> None:
    """Each value is an id of its own, in the order in which the tests run."""
    found = want(multihost(ranks=[4, 2], backend=("jax", "gloo")))
    assert (found.ranks, found.backends) == ((4, 2), ("jax", "gloo"))


@pytest.mark.parametrize("empty", [{"faults": ()}, {"hosts": None}, {"env": {}}, {"clock": None}])
def test_the_documented_defaults_can_be_written_out(empty: dict[str, Any]) -> None:
    """Also of what this version does not have."""
    assert want(multihost(2, **empty)).ranks == (2,)


@pytest.mark.parametrize(
    ("given", "key"),
    [
        *(
            ({"ranks": ranks}, "ranks")
            for ranks in (0, -1, 1.5, "2", True, [], [2, 0], (2, "4"), [1, 1, 2])
        ),
        *(
            ({"backend": name}, "backend")
            for name in ("", 3, [], ["gloo", ""], [None], ["gloo", "gloo"])
        ),
        *(
            ({key: seconds}, key)
            for key in ("timeout", "startup_timeout")
            for seconds in (0, -1.0, float("nan"), float("inf"), "60", True)
        ),
        *(({"local_devices": count}, "local_devices") for count in (0, 1.5, "1", True)),
        ({"faults": ["slow"]}, "faults"),
        ({"hosts": 2}, "hosts"),
        *(({"clock": clock}, "clock") for clock in ("", "fast", True, ["jump"])),
        *(({"env": env}, "env") for env in ({"A": 1}, {1: "b"}, ["A=b"], "A=b")),
    ],
    ids=repr,
)
def test_a_value_that_cannot_be_used_is_named(given: dict[str, Any], key: str) -> None:
    """By its key, in one problem."""
    [problem] = problems(multihost(**given))
    assert problem.startswith(f"{key} ")


def test_all_problems_are_found_at_once() -> None:
    """Nobody should have to run pytest once for each of them."""
    found = problems(multihost(0, backend="", timeout=-1, ransk=3, nodes=2), multihost(1, 2))
    assert len(found) == 5
    text = "\n".join(found)
    assert "ranks must be a whole number" in text
    assert "backend must be a name" in text
    assert "timeout must be a positive number of seconds, at most 1e9, not -1" in text
    assert "has no key 'nodes', 'ransk'; there are: ranks, backend," in text
    assert "takes one positional argument, ranks, not 2" in text


def test_ranks_are_given_once() -> None:
    """By place or by name, not both."""
    assert problems(multihost(2, ranks=3)) == ["has ranks twice"]


def item(**params: object) -> Any:  # noqa: ANN401 - a pytest.Item
    """Return what `world_axes` looks at."""
    return SimpleNamespace(callspec=SimpleNamespace(params=params)) if params else SimpleNamespace()


SEVERAL = read_markers([multihost(ranks=[2, 4], backend=["gloo", "jax"]).mark], DEFAULTS)[0]


def test_a_parametrized_item_has_its_own_values() -> None:
    """Those that its id names."""
    of_item = item(**{RANKS_PARAM: 4, BACKEND_PARAM: "jax"})
    assert world_axes(of_item, SEVERAL) == (4, "jax", [])


def test_an_item_of_one_value_needs_no_parameters() -> None:
    """The usual case."""
    one = read_markers([multihost(3, backend="gloo").mark], DEFAULTS)[0]
    assert world_axes(item(), one) == (3, "gloo", [])


def test_what_pytest_could_not_parametrize_is_a_problem_for_each_axis() -> None:
    """A TestCase method takes one value; the wrong one must not be chosen in silence."""
    _, _, found = world_axes(item(), SEVERAL)
    assert [problem.split(":")[0] for problem in found] == [
        "cannot run with several ranks (2, 4)",
        "cannot run with several backends (gloo, jax)",
    ]


def test_an_axis_that_is_parametrized_is_no_problem() -> None:
    """Only the other one is."""
    _, _, found = world_axes(item(**{RANKS_PARAM: 2}), SEVERAL)
    assert len(found) == 1
    assert "backends" in found[0]


SUMS: Option[int] = Option(
    name="sums",
    metavar="N",
    help="",
    parse=parse_count,
    default=7,
    key=MarkerKey(lambda value: None if value == 3 else "must be 3", int),
)
WITH_SUMS = Settings(options=(*CORE_OPTIONS, SUMS))


def test_an_option_of_an_extension_can_be_a_key_of_the_marker() -> None:
    """Checked by its own rule, and merged as the core's keys are."""
    assert want(multihost(ranks=4), multihost(sums=3), run=WITH_SUMS).get(SUMS) == 3
    assert want(multihost, run=WITH_SUMS).get(SUMS) == 7
    _, found = read_markers([multihost(sums=4).mark], WITH_SUMS)
    assert found == ["sums must be 3"]
    assert problems(multihost(sums=3))[0].startswith("has no key 'sums'; there are: ranks,")
