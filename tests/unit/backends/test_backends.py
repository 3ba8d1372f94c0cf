"""What backends decide before anything of a runtime is imported."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_multihost.core.backends import BUILT_IN_BACKENDS, Backend, find_backend, torch_groups
from pytest_multihost.core.backends.jax import _is_own, devices_of_env, runtime_timeout_s, xla_flags
from pytest_multihost.core.backends.torch_groups import group_timeout_s
from pytest_multihost.testing import (
    BackendFacts,
    Host,
    RankSpec,
    ServicePart,
    SettingError,
    WorldSpec,
    from_json,
    make_spec,
    to_json,
)


def backend(name: str, *, package: str | None = None, offered_by: str = "somebody") -> Backend:
    """Return a backend that does nothing."""
    return Backend(
        name=name, start=lambda _: None, package=package, extra="all", offered_by=offered_by
    )


def test_a_rank_trusts_a_port_of_its_own_machine_only_if_its_own_user_listens_there() -> None:
    """A stranger may hide while he is looked for. Elsewhere the port of that number is another."""
    here, there = (
        Host(i, f"node{i}", f"10.0.0.{i}", "eth0", range(i * 2, i * 2 + 2)) for i in (0, 1)
    )
    world = replace(make_spec(4), hosts=(here, there))
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        trusts = [
            _is_own(RankSpec(world=world, rank=r, directory="", scratch="", ports=(1, port)), port)
            for r in range(4)
        ]
        assert trusts == [True, False, True, True]  # the primary is about to listen
        held.listen()
        assert _is_own(RankSpec(world=world, rank=1, directory="", scratch="", ports=(1, 2)), port)


@pytest.mark.parametrize("seconds", [1.0, 1700.0, 100_000.0])
def test_our_deadline_comes_before_that_of_the_runtime(seconds: float) -> None:
    """Else a hang would be told as the timeout of whoever happened to wait longest."""
    spec = make_spec(2, timeout_s=seconds, startup_timeout_s=seconds)
    assert group_timeout_s(spec) > 2 * seconds
    assert (runtime_timeout_s(spec) or 0) > 2 * seconds


def test_where_the_clock_jumps_the_runtimes_have_their_own_timeouts() -> None:
    """What comes after them is what is tested; a user's flags of XLA stay."""
    spec = replace(
        make_spec(2, timeout_s=7200), services={"clock": ServicePart(keeps_timeouts=True)}
    )
    assert group_timeout_s(spec) == 1800
    assert runtime_timeout_s(spec) is None
    assert xla_flags("--other --xla_force_host_platform_device_count=8", None) == "--other"


def test_a_short_test_keeps_the_timeout_of_torch() -> None:
    """Code that reads it finds what it finds in production."""
    assert group_timeout_s(make_spec(2, timeout_s=1)) == 1800


def test_jax_gets_limits_and_keeps_what_the_user_has_set() -> None:
    """Only the number of devices is the marker's."""
    inherited = "--xla_dump_to=/d --xla_force_host_platform_device_count=8"
    assert xla_flags(inherited, 90).split() == [
        "--xla_dump_to=/d",
        "--xla_cpu_collective_timeout_seconds=90",
        "--xla_cpu_collective_call_terminate_timeout_seconds=90",
    ]


@pytest.mark.parametrize(
    ("flags", "devices"),
    [
        ("--xla_force_host_platform_device_count=4", 4),
        ("--a --xla_force_host_platform_device_count=4 --b", 4),
        ("--xla_dump_to=/d", None),
        ("--xla_force_host_platform_device_count=many", None),
        ("", None),
    ],
)
def test_the_number_of_devices_in_the_tests_own_flags_is_honoured(
    flags: str, devices: int | None
) -> None:
    """What is no number is left to XLA."""
    assert devices_of_env({"XLA_FLAGS": flags}) == devices
    assert devices_of_env({}) is None


def test_jax_keeps_a_limit_of_the_users() -> None:
    """XLA takes the last of two equal flags, so ours must not be there."""
    flags = xla_flags("--xla_cpu_collective_timeout_seconds=4", 90)
    assert flags.count("collective_timeout_seconds") == 1
    assert "collective_timeout_seconds=4" in flags


def test_every_built_in_backend_has_a_name_of_its_own() -> None:
    """The names that the documentation promises."""
    assert sorted(each.name for each in BUILT_IN_BACKENDS) == ["gloo", "jax", "nccl", "none"]


def test_a_backend_is_found_by_its_name() -> None:
    """Of two with one name the first that is offered: a project can replace ours."""
    theirs, ours = backend("gloo", offered_by="project"), backend("gloo")
    assert find_backend("gloo", [backend("jax"), theirs, ours]) is theirs


def test_an_unknown_backend_is_answered_with_the_known_ones() -> None:
    """And with who offers them."""
    with pytest.raises(SettingError) as refused:
        find_backend("mpi", [backend("gloo", offered_by="us"), backend("ring", offered_by="them")])
    assert str(refused.value) == "unknown backend 'mpi'\nThere are: gloo, ring."


def test_a_backend_whose_package_is_missing_says_how_to_get_it() -> None:
    """As a command."""
    with pytest.raises(SettingError, match=r"pip install 'somebody\[all\]'"):
        find_backend("x", [backend("x", package="no_such_package")])
    assert find_backend("y", [backend("y", package="json")]).name == "y"


@pytest.mark.parametrize(
    ("present", "visible", "count"),
    [(4, None, 4), (4, "0,1", 2), (1, "0,1", 1), (4, "", 0), (4, "-1", 0), (0, None, 0)],
)
def test_gpus_are_counted_without_opening_the_driver(
    present: int,
    visible: str | None,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those that are there and that the user lets us see."""
    for number in range(present):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    monkeypatch.setattr(torch_groups, "_DRIVER", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert torch_groups.gpu_count() == count


def test_a_machine_without_the_driver_has_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so with the number of ranks."""
    monkeypatch.setattr(torch_groups, "_DRIVER", tmp_path / "absent")
    assert torch_groups.NCCL.lacking(2) == "nccl needs a GPU: 2 ranks, no GPU here"


def test_what_a_backend_does_not_say_counts_as_possible() -> None:
    """Of a third party's the ranks may be in operations that no recorder sees."""
    assert backend("mesh").facts == BackendFacts(may_run_jax=True)
    found = {each.name: each.facts.may_run_jax for each in BUILT_IN_BACKENDS}
    assert found == {"none": True, "gloo": False, "jax": True, "nccl": False}


def test_a_world_knows_what_its_backend_says() -> None:
    """The watchdog has no backends, only the spec."""
    gloo = find_backend("gloo", [Backend(name="gloo", start=lambda _: None, may_run_jax=False)])
    spec = replace(make_spec(2), backend=gloo.name, backend_facts=gloo.facts)
    read = from_json(WorldSpec, json.loads(json.dumps(to_json(spec))))
    assert read.backend_facts == gloo.facts
    assert not read.backend_facts.may_run_jax


@pytest.mark.parametrize("name", ["none", "gloo", "jax", "nccl"])
def test_a_script_sees_proxies_unless_its_ranks_would_be_connected_by_them(name: str) -> None:
    """It may load data; gRPC, by which jax connects, would use them."""
    facts = {each.name: each.facts for each in BUILT_IN_BACKENDS}[name]
    script = replace(make_spec(2), backend=name, backend_facts=facts, argv=("multihost", "run"))
    assert script.keeps_proxies is (name != "jax")
    assert not replace(script, argv=()).keeps_proxies
