"""What other tests on ranks have works on adopted tests: of classes, and those that spawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pexpect
import pytest
from foreign_classes import CASE
from runtimes import require

RunWorlds = Callable[..., Any]

CLASS = f"""
{CASE}
from pathlib import Path
from pytest_multihost import current_world

class Test(Case):
    def test_meets(self):
        current_world().barrier("all")

    def test_second_time(self):
        current_world().barrier("all")
        tried = Path(__file__).with_name(f"tried-{{self.rank}}")
        first = not tried.exists()
        tried.touch()
        assert not first or self.rank != 1, "the reason"
"""

SPAWN = """
import pytest, pytest_multihost
from pathlib import Path

def meet(rank):
    pytest_multihost.current_world().barrier("all")

def second_time(rank):
    tried = Path(__file__).with_name(f"tried-{rank}")
    first = not tried.exists()
    tried.touch()
    assert not first or rank != 1, "the reason"

def test_meets():
    pytest_multihost.spawn(meet)

def test_second_time():
    pytest_multihost.spawn(second_time)
"""

BOTH = pytest.mark.parametrize("source", [CLASS, SPAWN], ids=["class", "spawn"])
ARGS = ("--multihost-adopt=torch,spawn",)


@BOTH
def test_a_fault_of_the_run_hits_adopted_ranks(run_worlds: RunWorlds, source: str) -> None:
    """The verdict names the rank that it has frozen."""
    worlds = run_worlds(source, *ARGS, "--multihost-fault=freeze(rank=1)", "-k", "meets")
    worlds.run.assert_outcomes(failed=1)
    worlds.run.stdout.fnmatch_lines(["HUNG*rank 1*"])


@BOTH
def test_reruns_repeat_an_adopted_test(run_worlds: RunWorlds, source: str) -> None:
    """Each attempt is a world of its own."""
    others = ("-p", "rerunfailures", "-p", "xdist", "--reruns=1")
    worlds = run_worlds(source, *ARGS, *others, "-k", "second")
    assert worlds.run.parseoutcomes().items() >= {"passed": 1, "rerun": 1}.items()
    assert [each["status"] for each in worlds.all_verdicts] == ["failed", "passed"]


@BOTH
def test_xdist_runs_adopted_tests_in_its_workers(run_worlds: RunWorlds, source: str) -> None:
    """With its own threads and those of pytest-rerunfailures in the processes."""
    others = ("-p", "rerunfailures", "-p", "xdist", "-n", "2")
    worlds = run_worlds(source, *ARGS, *others)
    worlds.run.assert_outcomes(passed=1, failed=1)
    assert {each["world_size"] for each in worlds.all_verdicts} == {2}
    assert len(worlds.all_verdicts) == 2


def test_a_sweep_disturbs_an_adopted_class(run_worlds: RunWorlds) -> None:
    """It says how many disturbances the test has survived."""
    worlds = run_worlds(CLASS, *ARGS, "--multihost-sweep=late", "-k", "meets", timeout=300)
    worlds.run.assert_outcomes(passed=1, deselected=1)
    worlds.run.stdout.fnmatch_lines(["*::test_meets: survives * of *"])


@pytest.mark.timeout(300)
def test_a_hang_beside_the_threads_of_plugins_is_proven(run_worlds: RunWorlds) -> None:
    """Threads of gloo in the ranks get the stacks that they had, without what was left there."""
    require("torch")
    source = """
import time, pytest_multihost, torch, torch.distributed as dist

def late(rank, store):
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=2)
    if rank == 1:
        time.sleep(100_000)
    dist.barrier()

def test_it(tmp_path):
    pytest_multihost.spawn(late, args=(tmp_path / "store",))
"""
    others = ("-p", "rerunfailures", "-p", "xdist")
    worlds = run_worlds(source, *ARGS, *others, timeout=280)
    worlds.run.assert_outcomes(failed=1)
    assert [each["diagnosis"]["detected_by"] for each in worlds.all_verdicts] == ["proof"]


@pytest.mark.timeout(300)
def test_hazards_of_an_adopted_class_are_found(run_worlds: RunWorlds) -> None:
    """A collective that nothing waits for."""
    require("torch")
    source = f"""
{CASE}
import torch, torch.distributed as dist

class Test(Case):
    def test_does_not_wait(self):
        dist.init_process_group(
            "gloo", f"file://{{self.file_name}}.s", rank=self.rank, world_size=self.world_size
        )
        work = dist.all_reduce(torch.ones(1), async_op=True)
        dist.barrier()
        dist.destroy_process_group()
"""
    worlds = run_worlds(source, *ARGS, "--multihost-hazards=fail", timeout=280)
    worlds.run.assert_outcomes(failed=1)
    worlds.run.stdout.fnmatch_lines(["*HAZARD  unwaited: *"])


@BOTH
def test_the_debugger_stops_in_an_adopted_rank(
    run_worlds: RunWorlds, source: str, pytester: pytest.Pytester
) -> None:
    """With --pdb: in rank 1 of a class; in the test that has called spawn."""
    del run_worlds  # its environment, and its look for processes
    pytester.makepyfile(test_worlds=source)
    child = pytester.spawn_pytest(f"-p multihost_hangs {ARGS[0]} --pdb -k second", 120)
    child.expect(r"\(Pdb rank 1\) " if source is CLASS else r"\(Pdb\) ")
    child.sendline("p 'sum', 40 + 2")
    child.expect(r"\('sum', 42\)")
    child.sendline("q")
    child.expect(pexpect.EOF)
    child.close()
