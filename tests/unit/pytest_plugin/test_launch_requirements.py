"""What tests need of their launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_multihost import faults
from pytest_multihost.core.pytest_plugin.launchers import launch_problems, launch_requirements
from pytest_multihost.core.registry import new_plugin_manager
from pytest_multihost.core.services import Preload, preloads_of, with_needed
from pytest_multihost.extensions import clock
from pytest_multihost.faults.kind import FaultKind, kinds_by_name
from pytest_multihost.testing import FaultFacts, make_spec

HOOK = new_plugin_manager().hook
KINDS = kinds_by_name(HOOK.pytest_multihost_faults())


def facts_of(*kinds: str) -> dict[str, FaultFacts]:
    """Return what built-in kinds say about their faults."""
    return {name: KINDS[name].facts for name in kinds}


def preloads_for(*kinds: str) -> tuple[Preload, ...]:
    """Return what ranks preload in a world with these kinds of faults."""
    services = [each for group in HOOK.pytest_multihost_services() for each in group]
    spec = replace(make_spec(2), fault_facts=facts_of(*kinds))
    return preloads_of(with_needed(spec, services), services)


[SHIM] = preloads_for("slow_io")
NEEDS_SHIM = pytest.mark.skipif(SHIM.library.find() is None, reason=SHIM.library.why_missing())


def test_tests_share_a_launcher_by_what_they_need() -> None:
    """A fork can have no shim, so it is not asked for one."""
    plain = launch_requirements({}, facts_of("kill"), "auto", preloads=preloads_for("kill"))
    assert (plain.variables, plain.reasons) == ({}, [])
    assert launch_requirements({}, facts_of("slow_io"), "fork", preloads=[SHIM]) == plain
    assert SHIM.problems("fork") == []
    assert launch_requirements({}, facts_of("hash_seed"), "auto").reasons == ["hash_seed"]
    assert launch_requirements({"A": "b"}, {}, "auto").variables == {"A": "b"}


def test_a_kind_of_a_third_party_may_need_fresh_interpreters_too() -> None:
    """The reader is told its name; tests that need the same share a launcher."""
    kind = FaultKind(name="other_locale", perform=lambda _: None, needs_fresh_interpreters=True)
    facts = {kind.name: kind.facts}
    need = launch_requirements({}, facts, "auto")
    assert (need.has_fresh_interpreters, need.reasons) == (True, ["other_locale"])
    assert need == launch_requirements({}, facts_of("hash_seed"), "auto")
    [problem] = launch_problems({}, [faults.other(kind.name, rank=0)], facts, "fork")
    assert "other_locale" in problem


@NEEDS_SHIM
def test_what_a_test_preloads_stays_behind_the_shim() -> None:
    """Its own environment counts, not pytest's."""
    need = launch_requirements({"LD_PRELOAD": "/mine.so"}, {}, "auto", preloads=[SHIM])
    assert need.variables["LD_PRELOAD"].split(":") == [str(SHIM.library.find()), "/mine.so"]
    assert need.reasons[-1] == "slow_io"


@pytest.mark.parametrize("launch", ["auto", "fork", "server", "spawn"])
def test_a_seed_of_hashes_needs_fresh_interpreters(launch: str) -> None:
    """Who asks for a fork besides is told; other faults take any way."""
    given, facts = [faults.kill(rank=0), faults.hash_seed()], facts_of("kill", "hash_seed")
    problems = launch_problems({}, given, facts, launch)
    assert bool(problems) is (launch in ("fork", "server"))
    assert all("hash_seed" in each and launch in each for each in problems)
    assert launch_problems({}, [faults.kill(rank=0)], facts, launch) == []
    assert bool(launch_problems({"A": "b"}, [], {}, launch)) is (launch == "fork")


@NEEDS_SHIM
def test_a_clock_that_jumps_and_slow_io_share_one_server() -> None:
    """It is exec'd with both libraries; with a real clock nothing is preloaded for it."""
    [kind] = clock.pytest_multihost_services()
    assert kind.preload is not None
    need = launch_requirements({}, {}, "auto", preloads=[SHIM, kind.preload])
    libraries = need.variables["LD_PRELOAD"].split(":")
    assert libraries[:2] == [str(SHIM.library.find()), str(kind.preload.library.find())]
    assert need.reasons == ["slow_io", "clock=jump"]
    assert launch_requirements({}, {}, "auto", preloads=[kind.preload]).reasons == ["clock=jump"]
    assert launch_requirements({}, {}, "auto").variables == {}
