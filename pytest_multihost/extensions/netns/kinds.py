"""The kinds of network faults between hosts: their parameters, and checks of these.

This module performs nothing. When a rank has passed the point, the server that holds the hosts'
network namespaces performs the fault (see `network_faults`); the rank waits at the point until
then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations

from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.fault import Fault, FaultParams
from pytest_multihost.core.model.setting_values import ONE
from pytest_multihost.core.model.spec import Host
from pytest_multihost.extensions.netns.kind_of_hosts import NAME
from pytest_multihost.faults.kind import (
    Announcement,
    Check,
    FaultKind,
    Strike,
    is_number,
    must_be,
    positive,
    seconds,
    truth,
)

_TWO = 2


def _announce(params: FaultParams, now_s: float) -> Announcement:
    """Return the request to the server to perform the fault."""
    if "heals_after" in params:
        return {"service": NAME, "until_s": now_s + params["heals_after"]}
    return {"service": NAME}


def _await_server(strike: Strike) -> None:
    """Keep this thread at the point until the network is disturbed."""
    if error := strike.performed():
        raise LaunchError(f"{strike.fault!r} could not be performed", seen=error)


def _groups(value: object) -> str | None:
    groups = value if isinstance(value, list) else []
    ranks = [rank for group in groups if isinstance(group, list) for rank in group]
    is_form = all(isinstance(group, list) and group for group in groups)
    if len(groups) < _TWO or not is_form or any(type(rank) is not int for rank in ranks):
        return "a list of at least two lists of ranks"
    return None if len(set(ranks)) == len(ranks) else "lists that share no rank"


def disturbs_network(faults: Sequence[Fault]) -> bool:
    """Return whether any of `faults` disturbs the network between hosts."""
    return any(each.kind in NETWORK_KINDS for each in faults)


def network_problems(faults: Sequence[Fault], hosts: Sequence[Host], size: int) -> list[str]:
    """Return why the hosts of a test cannot have its network faults.

    Args:
        faults: The test's faults, without other problems; their ranks are numbers.
        hosts: The test's hosts; empty if its ranks are on this machine.
    """
    of_network = [each for each in faults if each.kind in NETWORK_KINDS]
    kind = hosts[0].kind if hosts else ONE
    if of_network and kind != NAME:
        needs = 'disturbs the network between hosts, which needs hosts="netns"'
        return [f"{each!r} {needs}; the test has hosts={kind!r}" for each in of_network]
    found = [problem for each in of_network for problem in _partition_problems(each, hosts, size)]
    for one, two in combinations(of_network, 2):  # a host can have only one of each kind
        if one.kind != two.kind or one.kind in ("partition", "reset"):
            continue
        first, second = (_hosts_of(each.ranks, hosts) for each in (one, two))
        if shared := first & second:
            host = f"host-{min(shared)}"
            found.append(
                f"{one!r} and {two!r} exclude each other on {host}: a host has one of them"
            )
    return found


def _hosts_of(ranks: Iterable[int | str], hosts: Sequence[Host]) -> set[int]:
    """Return the hosts, by index, of some ranks."""
    return {each.index for each in hosts for rank in ranks if rank in each.ranks}


def _partition_problems(fault: Fault, hosts: Sequence[Host], size: int) -> Iterator[str]:
    if fault.kind != "partition":
        return
    groups = fault.params["groups"]
    if beyond := [rank for group in groups for rank in group if not 0 <= rank < size]:
        yield f"{fault!r}: groups name rank {beyond[0]}, and the ranks are 0 to {size - 1}"
        return
    if fault.params.get("one_way") and len(groups) != _TWO:
        yield f"{fault!r}: one_way takes two groups: the first does not reach the second"
    sides = [_hosts_of(group, hosts) for group in groups]
    for one, two in combinations(sides, 2):
        if shared := one & two:
            yield f"{fault!r}: host-{min(shared)} is in two groups; hosts are cut off as a whole"


def _kind(name: str, *required: str, **params: Check) -> FaultKind:
    return FaultKind(
        name=name,
        perform=_await_server,
        params=params,
        required=frozenset(required),
        announce=_announce,
        lasts=True,
        service=NAME,
        conflicts=network_problems,
    )


_percent = must_be(
    "a number above 0, at most 100",
    lambda each: is_number(each) and 0 < each <= 100,  # noqa: PLR2004 - percent
)

NETWORK_FAULTS = (
    _kind("partition", "groups", groups=_groups, one_way=truth, heals_after=seconds),
    _kind("net_delay", "seconds", seconds=seconds, heals_after=seconds),
    _kind("net_loss", "percent", percent=_percent, heals_after=seconds),
    _kind("net_rate", "bytes_per_s", bytes_per_s=positive, heals_after=seconds),
    _kind("reset"),
    _kind("dns_failure", heals_after=seconds),
)

NETWORK_KINDS = frozenset(each.name for each in NETWORK_FAULTS)
