"""Groups that are connected when they are first used hang a starved world; prewarmed ones do not.

What is run is in prewarm_worlds.py: real torch, real gloo, real megatron-core, all in one run.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runtimes import needs
from shared_run import made_once, shared_base

from pytest_multihost.fixes import prewarm
from pytest_multihost.fixes.prewarm import disagreements, order

WORLDS = Path(__file__).with_name("prewarm_worlds.py")
PRELOAD = """
def pytest_multihost_server_start():
    import megatron.core.parallel_state
"""
UNFIXED = ["test_unfixed[1]", "test_unfixed[2]", "test_published_by_default"]
FIXED = [
    "test_prewarmed[1]",
    "test_prewarmed[2]",
    "test_published_with_two_instances",
    "test_all_reduce_behind_a_barrier",
    "test_all_to_all_behind_all_pairs",
]


SMALL = [
    "test_unfixed[1]",
    "test_prewarmed[1]",
    "test_unfixed_with_two_names",
    "test_prewarmed_with_two_names",
    "test_prewarmed_too_late",
]
"""The worlds of the fast tier: one of each kind, without those of eight ranks."""


def in_one_run(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test of the run of all worlds, which whoever comes first waits for."""
    return pytest.mark.runtimes(pytest.mark.timeout(300)(test))


@dataclass(frozen=True)
class Ran:
    """A finished run of all worlds.

    Attributes:
        outcomes: What pytest said of each test.
        verdicts: By test.
        directory: The run's artifacts.
    """

    outcomes: str
    verdicts: Mapping[str, Mapping[str, Any]]
    directory: Path

    def starved(self, test: str) -> list[int]:
        """Return the ranks that the world has taken descriptors from."""
        (fault,) = self.verdicts[test]["faults"]
        return [int(rank) for rank in fault["fired"]]

    def log(self, test: str, rank: int) -> str:
        """Return what a rank printed."""
        return (self.directory / self.verdicts[test]["dir"] / f"rank-{rank}.log").read_text()


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return the one run; Megatron's seconds of importing are paid once, by the server."""
    return run_of(shared_base(tmp_path_factory) / "prewarm")


@pytest.fixture(scope="module")
def ran_small(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return a run of the worlds of the fast tier."""
    chosen = [f"test_worlds.py::{test}" for test in SMALL]
    return run_of(shared_base(tmp_path_factory) / "prewarm-small", *chosen)


def run_of(folder: Path, *chosen: str) -> Ran:
    """Run worlds, all or those that are chosen, once for all processes of this run of pytest."""
    if importlib.util.find_spec("megatron") is None:
        pytest.skip("megatron-core is not installed: 0.16.1 has no wheel for this machine's Python")
    directory = made_once(folder, partial(run_worlds_in, chosen))
    lines = (directory / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    verdicts = [json.loads(line) for line in lines]
    return Ran(
        (directory / "output").read_text(),
        {each["nodeid"].partition("::")[2]: each for each in verdicts},
        directory / ".pytest_multihost" / verdicts[0]["run_id"],
    )


def run_worlds_in(chosen: Sequence[str], directory: Path) -> None:
    """Run all worlds or those that are chosen, and keep what pytest prints."""
    (directory / "test_worlds.py").write_text(WORLDS.read_text())
    (directory / "conftest.py").write_text(PRELOAD)
    (directory / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs", "-rA", "--tb=no", *chosen],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "160"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    (directory / "output").write_text(run.stdout)


@pytest.mark.timeout(300)
def test_groups_that_are_connected_before_survive_what_hangs_others(ran_small: Ran) -> None:
    """One world of each kind; the full tier has all, also those of eight ranks."""
    assert re.search(r"5 passed in", ran_small.outcomes), ran_small.outcomes
    hangs_in_first_use(ran_small, "test_unfixed[1]")
    works_though_starved(ran_small, "test_prewarmed[1]")
    hangs_by_two_names(ran_small)
    tells_why(ran_small, "test_prewarmed_too_late")


@in_one_run
def test_every_world_hangs_fails_or_passes_as_it_says(ran: Ran) -> None:
    """Seventeen worlds, each with what is expected of it, and one that needs GPUs."""
    assert re.search(r"(17 passed, 1 skipped|18 passed) in", ran.outcomes), ran.outcomes


@in_one_run
@pytest.mark.parametrize("test", UNFIXED)
def test_unfixed_and_as_published_for_the_default_the_first_use_hangs(ran: Ran, test: str) -> None:
    """It is proven, and told of the rank that could not connect, though it has gone on since."""
    hangs_in_first_use(ran, test)


def hangs_in_first_use(ran: Ran, test: str) -> None:
    """Check the verdict of a world whose groups are connected when they are first used."""
    told = ran.verdicts[test]["diagnosis"]
    (starved,) = ran.starved(test)
    assert (told["kind"], told["culprits"], told["detected_by"]) == (
        "transport",
        [starved],
        "proof",
    )
    assert told["waiting"] == sorted({0, 1, 2, 3} - {starved})
    which = "2nd group" if test == "test_unfixed[2]" else "group"
    assert f"left all_reduce #1 ({which} 0,2) by DistStoreError: Too many open" in told["summary"]
    assert told["where"]["source"] == "dist.all_reduce(total, group=group)"
    assert "step skipped: Too many open files" in ran.log(test, starved)


@in_one_run
@pytest.mark.parametrize("test", FIXED)
@pytest.mark.claim("apply the fix for a hang that others have published")
def test_what_is_connected_in_time_works_though_the_same_rank_is_starved(
    ran: Ran, test: str
) -> None:
    """The worlds themselves compare the values."""
    works_though_starved(ran, test)


def works_though_starved(ran: Ran, test: str) -> None:
    """Check a world whose groups were connected before a rank was starved."""
    (starved,) = ran.starved(test)
    assert "it connects" in ran.log(test, starved)
    assert "skipped" not in ran.log(test, starved)
    assert ran.verdicts[test]["outcome"] == "passed"


@in_one_run
def test_an_error_that_nobody_catches_is_told_as_one(ran: Ran) -> None:
    """The rank that cannot connect raises, and the others wait in the same operation."""
    test = "test_unfixed_and_the_error_is_not_caught"
    told = ran.verdicts[test]["diagnosis"]
    assert (told["kind"], told["culprits"]) == ("raised", ran.starved(test))
    assert told["operation"]["name"] == "all_reduce"


@in_one_run
def test_a_barrier_is_not_enough_for_an_all_to_all_among_eight(ran: Ran) -> None:
    """It connects who is 1, 2 and 4 places away; who is 3 away is not reached."""
    test = "test_all_to_all_behind_a_barrier"
    told = ran.verdicts[test]["diagnosis"]
    assert (told["kind"], told["culprits"]) == ("transport", ran.starved(test))
    assert told["operation"]["name"] == "all_to_all_single"


@in_one_run
def test_a_group_with_two_names_hangs_in_its_first_collective(ran: Ran) -> None:
    """Nobody is to blame: both have entered, and look for each other in different places."""
    hangs_by_two_names(ran)


def hangs_by_two_names(ran: Ran) -> None:
    """Check the verdict of a world whose ranks 1 and 2 name their group differently."""
    told = ran.verdicts["test_unfixed_with_two_names"]["diagnosis"]
    assert (told["culprits"], told["waiting"]) == ([], [1, 2])
    assert told["summary"] == "ranks 1,2 have entered all_reduce #1 (group 1,2), and nothing moves"


@in_one_run
def test_barriers_in_the_order_of_each_rank_are_a_circle(ran: Ran) -> None:
    """Of the same groups in the same order, prewarm makes no circle: the world behind it passes."""
    told = ran.verdicts["test_barriers_in_the_order_of_each_rank"]["diagnosis"]
    assert told["cycle"] == [0, 1, 2, 3]
    assert ran.verdicts["test_prewarmed_in_the_order_of_each_rank"]["outcome"] == "passed"


@in_one_run
def test_a_rank_that_is_starved_before_tells_the_others_why(ran: Ran) -> None:
    """All of them get an error in time, and it names the rank and the reason."""
    tells_why(ran, "test_prewarmed_too_late")


def tells_why(ran: Ran, test: str) -> None:
    """Check that the ranks of a world name the one that was starved, and the reason."""
    (starved,) = ran.starved(test)
    for rank in {0, 1, 2} - {starved}:
        log = ran.log(test, rank)
        assert "process group '0' of ranks 0, 1, 2 was not connected: wait timeout" in log
        assert f"(rank {starved} failed: RuntimeError: [enforce fail" in log
        assert "Too many open files" in log


@in_one_run
def test_with_nccl_the_same_call_connects_all_groups(ran: Ran) -> None:
    """Where there is a GPU."""
    lacking = re.search(r"nccl needs a GPU: .*", ran.outcomes)
    if lacking is not None:
        pytest.skip(lacking[0])
    assert ran.verdicts["test_prewarmed_with_nccl"]["outcome"] == "passed"


PAIR, ALL = ("7", (0, 1)), ("0", (0, 1, 2))


@pytest.mark.parametrize(
    ("told", "problems"),
    [
        ({0: [ALL, PAIR], 1: [PAIR, ALL], 2: [ALL]}, ()),
        ({0: [PAIR, ("8", (0, 1))], 1: [("8", (0, 1)), PAIR]}, ()),
        (
            {0: [ALL, PAIR], 1: [("ab", (0, 1)), ALL], 2: [ALL]},
            ("of the group of ranks 0, 1, rank 0 says '7', rank 1 says 'ab'",),
        ),
        (
            {0: [ALL, PAIR], 1: [ALL], 2: [ALL]},
            ("of the group of ranks 0, 1, rank 0 says '7', rank 1 has nothing like it",),
        ),
        (
            {0: [PAIR, ("8", (0, 1))], 1: [PAIR]},
            ("of the group of ranks 0, 1, rank 0 says '8', rank 1 has nothing like it",),
        ),
    ],
    ids=["the same", "two with the same members", "two names", "one has none", "one more"],
)
def test_members_agree_or_are_told_apart(told, problems: tuple[str, ...]) -> None:
    """A group that one member lacks would be waited for as well."""
    assert disagreements(told) == problems


def test_groups_have_one_order_whatever_made_their_names() -> None:
    """Counted ones as numbers, then hashed ones."""
    assert sorted(["b1", "10", "9", "0a"], key=order) == ["9", "10", "0a", "b1"]


def test_an_unknown_coverage_is_refused() -> None:
    """Before anything is waited for."""
    with pytest.raises(ValueError, match=r"coverage must be one of .* not 'some'"):
        prewarm.prewarm_process_groups(coverage="some", timeout=timedelta(1))  # type: ignore[arg-type]


def of_013(group: object) -> SimpleNamespace:
    """Return Megatron's module as it is in 0.13 and 0.14."""

    def get_inter_distributed_optimizer_instance_group() -> object:
        assert group is not None
        return group

    return SimpleNamespace(
        get_inter_distributed_optimizer_instance_group=get_inter_distributed_optimizer_instance_group
    )


def of_015(group: object) -> SimpleNamespace:
    """Return Megatron's module as it is from 0.15 on."""

    def get_inter_distributed_optimizer_instance_group(check_initialized: bool = True) -> object:
        assert group is not None or not check_initialized
        return group

    return SimpleNamespace(
        get_inter_distributed_optimizer_instance_group=get_inter_distributed_optimizer_instance_group
    )


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (SimpleNamespace(), None),
        (of_013(None), None),
        (of_013("a group"), "a group"),
        (of_015(None), None),
        (of_015("a group"), "a group"),
    ],
    ids=["0.12", "0.13 without", "0.13 with", "0.15 without", "0.15 with"],
)
def test_the_group_is_found_by_each_versions_getter(module: SimpleNamespace, found: object) -> None:
    """There was none, one without an argument, and one with."""
    assert prewarm.inter_optimizer_group(module) == found


def test_as_published_it_raises_where_the_getter_takes_no_argument() -> None:
    """The guard asks whether there is a getter, not what it takes."""
    with pytest.raises(TypeError, match="check_initialized"):
        prewarm.published_barrier(of_013("a group"))
    assert not prewarm.published_barrier(SimpleNamespace())


@needs("torch")
def test_megatron_without_groups_is_told_so() -> None:
    """Connecting nothing would look like success."""
    with pytest.raises(RuntimeError, match="Call initialize_model_parallel"):
        prewarm.prewarm_megatron(SimpleNamespace(), timeout=timedelta(1))
