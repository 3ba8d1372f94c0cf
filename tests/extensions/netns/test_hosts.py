"""Hosts as values: who lives where, what ranks are told, why a machine has none."""

from __future__ import annotations

import errno
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from pytest_multihost.core.host_kind import Hosts
from pytest_multihost.core.rank import rank_variables
from pytest_multihost.extensions.netns.hosts import BRIDGE_ADDRESS, NETWORK, hosts_of
from pytest_multihost.extensions.netns.kind_of_hosts import NETNS
from pytest_multihost.extensions.netns.network import ChildFailed, refusal, remedy
from pytest_multihost.testing import (
    RankSpec,
    SettingError,
    WorldSpec,
    from_json,
    make_spec,
    to_json,
)

pytestmark = pytest.mark.unit


def world(size: int, hosts: str) -> WorldSpec:
    """Return the spec of a world with hosts."""
    return replace(make_spec(size), hosts=Hosts.parse(hosts, [NETNS]).of(size))


def variables(size: int, hosts: str, rank: int) -> Mapping[str, str]:
    """Return what a rank finds in its environment."""
    spec = RankSpec(world=world(size, hosts), rank=rank, directory="", scratch="", ports=(1, 2))
    return rank_variables(spec, {})


@pytest.mark.parametrize("text", ["one", "netns", "netns:2", "netns:16"])
def test_a_wish_for_hosts_is_kept_as_it_was_written(text: str) -> None:
    """Equal wishes must be equal texts."""
    assert str(Hosts.parse(text, [NETNS])) == text


def test_one_rank_on_each_host_need_not_be_said() -> None:
    """It is what `netns` means."""
    assert Hosts.parse("netns:1", [NETNS]) == Hosts.parse("netns", [NETNS])


@pytest.mark.parametrize(
    "text",
    ["", "two", "netns:", "netns:0", "netns:-1", "one:2", "docker", "docker:2", 2, True, ()],
)
def test_what_is_no_wish_for_hosts_is_refused_with_the_choices(text: object) -> None:
    """A typing error must not give a world on one host."""
    with pytest.raises(SettingError, match=r"must be one of one, netns, netns:N"):
        Hosts.parse(text, [NETNS])


@pytest.mark.parametrize(
    ("size", "hosts", "ranks"),
    [
        (3, "one", [[0, 1, 2]]),
        (3, "netns", [[0], [1], [2]]),
        (4, "netns:2", [[0, 1], [2, 3]]),
        (5, "netns:2", [[0, 1], [2, 3], [4]]),
        (2, "netns:8", [[0, 1]]),
    ],
)
def test_ranks_fill_one_host_after_the_other(size: int, hosts: str, ranks: list[list[int]]) -> None:
    """As torchrun and Slurm place them; the last host may have fewer."""
    assert [list(host.ranks) for host in world(size, hosts).all_hosts] == ranks


@pytest.mark.parametrize("hosts", ["one", "netns", "netns:3"])
def test_a_rank_is_on_the_host_that_has_it(hosts: str) -> None:
    """Each rank works out alone what all must agree on."""
    spec = world(7, hosts)
    for host in spec.all_hosts:
        assert {spec.host_of(rank) for rank in host.ranks} == {host}


def test_no_two_hosts_have_an_address_in_common() -> None:
    """Also not with the bridge, and also where there are more than fit into one byte."""
    found = [host.address for host in hosts_of(600, 1, "netns")]
    assert len({*found, BRIDGE_ADDRESS}) == 601
    assert all(ipaddress.ip_address(each) in NETWORK for each in found)


def test_a_rank_is_told_its_place_on_its_host_and_the_way_to_the_primary() -> None:
    """In torchrun's variables, and those that gloo, NCCL and tensorpipe take interfaces from."""
    found = variables(5, "netns:2", 3)
    expected = {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "MASTER_ADDR": "10.77.0.1",
        "HOSTNAME": "host-1",
        "GLOO_SOCKET_IFNAME": "eth0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "TP_SOCKET_IFNAME": "eth0",
    }
    assert expected.items() <= found.items()


def test_the_last_host_is_told_how_few_ranks_it_has() -> None:
    """Code that divides work on a host counts on it."""
    assert variables(5, "netns:2", 4)["LOCAL_WORLD_SIZE"] == "1"


def test_on_one_host_nothing_is_said_of_hosts() -> None:
    """What the machine is called, and which interfaces NCCL takes, stays the user's affair."""
    found = variables(2, "one", 1)
    assert found.keys().isdisjoint({"HOSTNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"})
    assert (found["LOCAL_RANK"], found["MASTER_ADDR"]) == ("1", "127.0.0.1")


def test_a_world_that_was_written_before_there_were_hosts_had_one() -> None:
    """Artifacts of earlier versions can be explained."""
    data = {key: value for key, value in to_json(make_spec(2)).items() if key != "hosts"}
    assert from_json(WorldSpec, data).host_of(1).name == "localhost"


def test_the_hosts_of_a_world_survive_json() -> None:
    """Servers and ranks get them as they are."""
    spec = world(5, "netns:2")
    assert from_json(WorldSpec, json.loads(json.dumps(to_json(spec)))) == spec


# Why there are none


APPARMOR = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
CLONE = "/proc/sys/kernel/unprivileged_userns_clone"


@pytest.mark.parametrize(
    ("number", "files", "words"),
    [
        (errno.EPERM, {"/proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, "--cap-add SYS_ADMIN"),
        (errno.EPERM, {APPARMOR: "1\n"}, "apparmor_restrict_unprivileged_userns=0"),
        (errno.EACCES, {APPARMOR: "1\n"}, "apparmor_restrict_unprivileged_userns=0"),
        (errno.EPERM, {CLONE: "0\n"}, "unprivileged_userns_clone=1"),
        (errno.EPERM, {APPARMOR: "0\n", CLONE: "1\n"}, "run pytest as root"),
        (errno.EPERM, {}, "run pytest as root"),
        (errno.ENOSPC, {}, "/proc/sys/user/max_"),
        (errno.EUSERS, {}, "/proc/sys/user/max_"),
        (errno.EMFILE, {}, "ulimit -n"),
        (errno.EAGAIN, {}, "ulimit -u"),
        (errno.EOPNOTSUPP, {}, "modprobe veth bridge"),
        (errno.EINVAL, {}, "modprobe veth bridge"),
    ],
)
def test_what_helps_depends_on_what_refuses(
    number: int, files: Mapping[str, str], words: str
) -> None:
    """Who reads it can run the command."""
    assert words in remedy(number, lambda path: files.get(path, ""))


def test_a_refusal_names_the_step_that_was_refused() -> None:
    """Three beats: what happened, what was seen, what helps."""
    error = refusal(ChildFailed("not permitted", "make a user namespace", 1))
    assert "make a user namespace: not permitted" in error.seen
    assert error.remedy


def test_a_maker_that_failed_otherwise_is_quoted() -> None:
    """A bug of ours is no refusal, and has no remedy."""
    error = refusal(ChildFailed("KeyError: 'x'"))
    assert ("KeyError: 'x'" in error.seen, error.remedy) == (True, "")
