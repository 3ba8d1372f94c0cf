"""Faults of the network between hosts: their parameters, and what is wrong with those.

Nothing is performed here. The server that holds the hosts' network namespaces performs them (see
`launch.netns`) when the controller reports that a rank has passed the point; the rank waits at the
point until that is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.fault import NETWORK_KINDS, Fault, FaultParams
from pytest_multihost.model.spec import Hosts
from pytest_multihost.nemesis.kind import (
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
    """Ask the server to perform it."""
    if "heals_after" in params:
        return {"network": True, "until_s": now_s + params["heals_after"]}
    return {"network": True}


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


def network_problems(faults: Sequence[Fault], *, hosts: Hosts, size: int) -> list[str]:
    """Return why the hosts of a test cannot have its faults of the network.

    Args:
        faults: Of the test, without other problems; ranks are numbers.
        hosts: What its hosts are made from, as the marker has it.
        size: Ranks of its world.
    """
    of_network = [each for each in faults if each.kind in NETWORK_KINDS]
    if of_network and hosts.kind != "netns":
        needs = 'disturbs the network between hosts, which needs hosts="netns"'
        return [f"{each!r} {needs}; the test has hosts={str(hosts)!r}" for each in of_network]
    found = [problem for each in of_network for problem in _partition_problems(each, hosts, size)]
    for one, two in combinations(of_network, 2):  # a host has one of each kind
        if one.kind != two.kind or one.kind in ("partition", "reset"):
            continue
        first, second = (
            {rank // hosts.ranks_each for rank in each.ranks if isinstance(rank, int)}
            for each in (one, two)
        )
        if shared := first & second:
            host = f"host-{min(shared)}"
            found.append(
                f"{one!r} and {two!r} exclude each other on {host}: a host has one of them"
            )
    return found


def _partition_problems(fault: Fault, hosts: Hosts, size: int) -> Iterator[str]:
    if fault.kind != "partition":
        return
    groups = fault.params["groups"]
    if beyond := [rank for group in groups for rank in group if not 0 <= rank < size]:
        yield f"{fault!r}: groups name rank {beyond[0]}, and the ranks are 0 to {size - 1}"
        return
    if fault.params.get("one_way") and len(groups) != _TWO:
        yield f"{fault!r}: one_way takes two groups: the first does not reach the second"
    sides = [{rank // hosts.ranks_each for rank in group} for group in groups]
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
