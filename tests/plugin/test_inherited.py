"""What a rank inherits from the harness: nothing that leads out of its world."""

from __future__ import annotations

import pytest

KINDS = """
    import os, pytest
    from pytest_multihost import Role, faults

    def opened():
        own = (f"/proc/self/fd/{each}" for each in os.listdir("/proc/self/fd"))
        links = (os.readlink(each) for each in own if os.path.lexists(each))
        return sorted(e.partition(":")[0] + e.partition("[e")[1] for e in links
                      if e.startswith(("socket:", "anon_inode:")))

    multihost = pytest.mark.multihost
    short = dict(ranks=2, backend="none", timeout=60)
"""

FORKED = f"""{KINDS}
    @multihost(**short, env={{"A": "1"}})
    def test_a_server_of_its_own(world):
        assert opened() == ["socket"]

    @multihost(**short, faults=[faults.hash_seed(rank=0)])
    def test_fresh_interpreters(world):
        assert opened() == ["socket"]

    @multihost(**short, clock="jump")
    def test_a_preloaded_clock(world):
        assert opened() == ["socket"]

    @multihost(**short, faults=[faults.slow_io(rank=0, seconds=0, path="*", must_fire=False)])
    def test_a_preloaded_shim(world):
        assert opened() == ["socket"]

    @multihost(**short)
    def test_the_first_that_is_forked(world):
        assert opened() == ["socket"]

    @multihost(ranks=2, backend="simulated", timeout=60)
    def test_simulated(world):
        assert opened() == ["socket"] * 2  # the second leads to the exchange

    @multihost(roles={{"a": Role(1), "b": Role(1)}}, backend="none", timeout=60)
    def test_roles(world):
        assert opened() == ["socket"]

    @multihost(**short)
    @pytest.mark.multihost_sweep("late", budget=1)
    def test_swept(world):
        assert opened() == ["socket"]

    @multihost(**short)
    def test_the_last_that_is_forked(world):
        assert opened() == ["socket"]
"""


@pytest.mark.shared
@pytest.mark.program(FORKED)
def test_ranks_inherit_no_connection_of_the_harness(worlds) -> None:
    """Each has its channel, whichever servers and lanes were started before it."""
    worlds.run.assert_outcomes(passed=9)


@pytest.mark.namespaces
@pytest.mark.program(
    f"""{KINDS}
    @multihost(**short, env={{"A": "1"}}, hosts="netns")
    def test_on_hosts_with_a_server(world):
        assert opened() == ["socket"]

    @multihost(**short, hosts="netns", faults=[faults.net_delay(rank=0, seconds=0.01)])
    def test_on_hosts_with_a_relay(world):
        assert opened() == ["socket"]
    """,
    "--durations=1",
)
def test_ranks_on_hosts_inherit_none_either(worlds) -> None:
    """The sockets that read the hosts' tables stay with the server and with the controller."""
    worlds.run.assert_outcomes(passed=2)


@pytest.mark.worlds
@pytest.mark.program(FORKED, "-p", "xdist", "-n", "1")
def test_ranks_of_a_worker_of_xdist_inherit_none_either(worlds) -> None:
    """Its connection to xdist's own controller is a pair of pipes."""
    worlds.run.assert_outcomes(passed=9)


HANG = """
    import os, socket, pytest
    import torch, torch.distributed as dist

    ENDS = socket.socketpair()  # which everything that is forked from here has
    PIPE = os.pipe()

    @pytest.mark.multihost(ranks=2, timeout=60, backend="$backend", env=$env)
    def test_first(world):
        dist.barrier()

    @pytest.mark.multihost(ranks=2, timeout=60, backend="$backend")
    def test_hang(world):
        if world.rank != 1:
            dist.all_reduce(torch.ones(3))
"""


@pytest.mark.shared
@pytest.mark.parametrize(
    ("backend", "env"), [("gloo", {}), ("gloo", {"A": "1"}), ("simulated", {"A": "1"})]
)
@pytest.mark.program(HANG, "-p", "no:cacheprovider")  # a run of its own: all its ranks have ENDS
def test_what_the_project_opens_at_import_delays_no_proof(worlds, backend: str, env: dict) -> None:
    """Only our own processes have the other ends, and they do nothing with them."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    assert worlds.verdicts["test_hang"]["diagnosis"]["detected_by"] == "proof"
