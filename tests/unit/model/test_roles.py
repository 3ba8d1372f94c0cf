"""Roles: their ranks, names and ports, and what their runtimes see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_multihost import Role
from pytest_multihost.core.model.json_values import from_json, to_json
from pytest_multihost.core.model.operation import group_name
from pytest_multihost.core.model.role import place_roles, ranks_of, role_problems, sized_roles
from pytest_multihost.core.model.spec import port_count
from pytest_multihost.testing import Host, RankSpec, make_spec

ROLES = place_roles({"trainer": Role(2), "engine": Role(3, backend="gloo"), "driver": Role(1)}, "x")
SPEC = replace(make_spec(size=6), roles=ROLES)


def rank_spec(rank: int) -> RankSpec:
    """Return the spec of one rank of a world with roles."""
    ports = tuple(range(100, 100 + port_count(SPEC)))
    return RankSpec(
        world=SPEC, rank=rank, directory="/d", scratch="/s", ports=(1, 2), role_ports=ports
    )


def test_roles_follow_each_other() -> None:
    """The ranks of the first role are the first ones."""
    assert [tuple(each.ranks) for each in ROLES] == [(0, 1), (2, 3, 4), (5,)]
    assert [each.backend for each in ROLES] == ["x", "gloo", "x"]


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([0], "trainer 0"),
        ([3], "engine 1"),
        ([0, 1, 2], "trainer 0,1, engine 0"),
        ([2, 3, 4, 5], "engine 0-2, driver 0"),
    ],
)
def test_ranks_are_named_by_their_roles(ranks: list[int], text: str) -> None:
    """Their numbers count within the role."""
    assert SPEC.names.of(ranks) == text
    assert replace(SPEC, roles=()).names.of([3]) == "rank 3"


def test_a_group_names_its_members_by_their_roles() -> None:
    """Except the group of all ranks, which has a name of its own."""
    assert group_name((1, 2), SPEC.names) == "group trainer 1, engine 0"
    assert group_name(tuple(range(6)), SPEC.names) == "world group"


def test_a_runtime_sees_its_role_alone() -> None:
    """Rank and size count within the role, which has ports and a directory of its own."""
    found = rank_spec(3).in_role
    assert (found.rank, found.world.size, found.world.backend) == (1, 3, "gloo")
    assert (found.world.roles, found.world.hosts, found.is_primary) == ((), (), False)
    assert found.scratch != rank_spec(0).in_role.scratch
    assert len({*found.ports, *rank_spec(0).in_role.ports, *rank_spec(5).in_role.ports}) == 6


def test_a_rank_without_a_role_is_seen_as_it_is() -> None:
    """A world without roles costs nothing more."""
    alone = replace(rank_spec(3), world=make_spec(size=6))
    assert alone.in_role is alone


def test_ports_of_roles_differ() -> None:
    """Those of their rendezvous and those of their programs."""
    spec = rank_spec(0)
    found = [port for role in ROLES for port in spec.ports_of(role)]
    assert len({*found, *spec.ports}) == len(found) + 2 == len(spec.role_ports) + 2


def test_the_hosts_of_a_role_are_those_of_its_ranks() -> None:
    """They count from 0, and have only its ranks, as it numbers them."""
    hosts = tuple(
        Host(index, f"h{index}", f"10.0.0.{index}", "eth0", ranks, "k")
        for index, ranks in enumerate([range(3), range(3, 6)])
    )
    found = replace(SPEC, hosts=hosts).of_role(ROLES[1]).hosts
    assert [(each.index, each.name, each.ranks) for each in found] == [
        (0, "h0", range(1)),
        (1, "h1", range(1, 3)),
    ]


def test_roles_survive_the_way_to_the_server() -> None:
    """A spec is sent as JSON."""
    assert from_json(type(SPEC), to_json(SPEC)) == SPEC


@pytest.mark.parametrize(
    ("text", "ranks"), [("engine", (2, 3, 4)), ("engine:1", (3,)), ("driver", (5,))]
)
def test_a_role_or_a_rank_of_it_can_be_named(text: str, ranks: tuple[int, ...]) -> None:
    """As for faults and expectations."""
    assert ranks_of(text, ROLES) == ranks


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("motor", "there is no role 'motor'; there are: trainer, engine, driver"),
        ("engine:3", "role engine has the ranks 0 to 2"),
        ("driver:1", "role driver has only rank 0"),
        ("engine:-1", "there is no role"),
        ("", "there is no role"),
    ],
)
def test_another_name_is_refused(text: str, why: str) -> None:
    """With the names that there are."""
    with pytest.raises(ValueError, match=why):
        ranks_of(text, ROLES)


@pytest.mark.parametrize(
    "value",
    [
        {},
        [2],
        {"": 2},
        {"a b": 2},
        {"others": 2},
        {"engine": 0},
        {"engine": True},
        {"engine": "2"},
        {"engine": Role(2, backend="")},
        {"engine": Role(2, env={"A": 1})},  # type: ignore[dict-item]
        {f"r{each}": 1 for each in range(65)},
        {"engine": Role(2, run="")},
        {"engine": Role(2, run="-m")},
        {"engine": Role(2, run="a.py {prot}")},
        {"engine": Role(2, run="a.py {ports[driver]}")},
        {"engine": Role(2, run="a.py 'b")},
    ],
)
def test_a_wrong_value_is_a_problem(value: object) -> None:
    """It is reported and never raised."""
    assert role_problems(value)


def test_sizes_apply_to_roles_of_their_names() -> None:
    """Those of other tests are ignored."""
    found = sized_roles({"trainer": Role(2), "engine": Role(3)}, {"engine": 5, "other": 7})
    assert {name: role.ranks for name, role in found.items()} == {"trainer": 2, "engine": 5}


READY = Role(1, ready="tcp:{port}")


@pytest.mark.parametrize(
    ("roles", "why"),
    [
        ({"a": Role(1, ready="{port}")}, "must be 'tcp:PORT'"),
        ({"a": Role(1, ready="tcp:http")}, "must be 'tcp:PORT'"),
        ({"a": Role(1, ready="tcp:70000")}, "must be 'tcp:PORT'"),
        ({"a": Role(1, ready="tcp:{prot}")}, "prot"),
        ({"a": Role(1, ready=80)}, "must be 'tcp:PORT'"),  # type: ignore[arg-type]
        ({"a": Role(1, after="b")}, "there is no role 'b'; there are: a"),
        ({"a": Role(1, after="a", ready="tcp:1")}, "names the role itself"),
        ({"a": Role(1, after="b"), "b": 1}, "'b' must say when it is ready"),
        ({"a": Role(1, after=3)}, "must be the name of a role"),  # type: ignore[arg-type]
        (
            {
                "a": Role(1, after="b", ready="tcp:1"),
                "b": Role(1, after=["c"], ready="tcp:2"),
                "c": Role(1, after=("x", "a"), ready="tcp:3"),
                "x": READY,
            },
            "start after each other: a after b after c after a",
        ),
        ({"a": Role(1, restarts=1)}, "say run="),
        ({"a": Role(1, run="x.py", restarts=-1)}, "from 0 to 100"),
        ({"a": Role(1, run="x.py", restarts=True)}, "from 0 to 100"),
        ({"a": Role(1, service=True), "b": 1}, "a service is a program: say run="),
        ({"a": Role(1, run="x.py", service=1), "b": 1}, "must be True or False"),  # type: ignore[arg-type]
        (
            {"a": Role(1, run="x.py", service=True)},
            "must have at least one role that is not a service",
        ),
    ],
)
def test_what_cannot_be_waited_for_is_a_problem(roles: dict[str, object], why: str) -> None:
    """It says which role, and what to write."""
    assert why in (role_problems(roles) or "")


def test_roles_may_start_after_others() -> None:
    """One or several, in any order."""
    roles = {"a": Role(1, after=["b", "c"]), "b": READY, "c": Role(1, after="b", ready="tcp:7")}
    assert role_problems(roles) is None
    placed = place_roles(roles, "none")
    assert [each.after for each in placed] == [("b", "c"), (), ("b",)]
