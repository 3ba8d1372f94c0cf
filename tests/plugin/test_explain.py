"""A verdict can be derived again from the artifacts alone."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest


def explain(*args: object, cwd: object = None) -> subprocess.CompletedProcess[str]:
    """Run the console script's module on a folder."""
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "explain"]
    command += map(str, args)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=cwd)


BODIES = {
    "hang": "if world.rank == 1:\n        time.sleep(600)\n    world.barrier()",
    "raise": "if world.rank == 1:\n        raise ValueError('no')\n    world.barrier()",
    "death": "if world.rank == 1:\n        os.kill(os.getpid(), 9)\n    world.barrier()",
    "clash": "world.barrier() if world.rank else world.gather(1)",
}


@pytest.mark.parametrize("name", BODIES)
def test_what_is_derived_from_the_artifacts_agrees_with_the_verdict(run_worlds, name: str) -> None:
    """Judging is pure: the same facts make the same verdict."""
    head = (
        "import os, pytest, time\n\n@pytest.mark.multihost(ranks=3, timeout=3)\ndef test_it(world):"
    )
    worlds = run_worlds(f"{head}\n    {BODIES[name]}\n")
    told = explain(worlds.directory("test_it"))
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "agrees with verdict.json")
    assert told.stdout.split(maxsplit=1)[0].lower() == worlds.verdicts["test_it"]["outcome"]


@pytest.mark.program(
    """
    import pytest
    from pytest_multihost import at, faults

    @pytest.mark.multihost(faults=[faults.delay(rank=1, seconds=1, at=at.sync_point("no"))])
    def test_it(world):
        pass
    """
)
def test_a_verdict_on_a_fault_that_never_fired_is_derived_again(worlds) -> None:
    """The facts show that the rank never came to the fault's point."""
    told = explain(worlds.directory("test_it"))
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "agrees with verdict.json")


@pytest.mark.program(
    """
    import os, pytest

    @pytest.mark.multihost_expect("died", culprits=[1])
    @pytest.mark.multihost(ranks=3)
    def test_it(world):
        if world.rank == 1:
            os._exit(3)
        assert world.rank != 2, "own"
        world.barrier()
    """
)
def test_a_verdict_on_another_end_than_expected_is_derived_again(worlds) -> None:
    """But for what the expectation has changed: the facts do not hold the marker."""
    assert worlds.verdicts["test_it"]["status"] == "failed"
    told = explain(worlds.directory("test_it"))
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "agrees with verdict.json")


@pytest.mark.program(
    "import pytest\n\n@pytest.mark.multihost\ndef test_it(world):\n    assert world.rank\n"
)
def test_a_verdict_that_was_changed_by_hand_is_told(worlds) -> None:
    """In what it differs, and by the exit code."""
    file = worlds.directory("test_it") / "verdict.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "outcome": "hung"}))
    told = explain(worlds.directory("test_it"))
    assert (told.returncode, told.stdout.splitlines()[-1]) == (
        1,
        "differs from verdict.json in: outcome",
    )


TWO = """
import pytest, time

@pytest.mark.multihost(ranks=2, timeout=30)
def test_hangs(world):
    if world.rank == 0:
        world.barrier("x")
    else:
        time.sleep(600)

@pytest.mark.multihost(ranks=2)
def test_fails(world):
    assert world.rank == 0
"""


def test_the_only_failure_of_the_last_run_needs_no_name(run_worlds) -> None:
    """Neither without an argument, nor by the name of the run or of the artifacts directory."""
    worlds = run_worlds(TWO, "-k", "hangs")
    for args in ([], ["latest"], [".pytest_multihost"], [".pytest_multihost/latest"]):
        done = explain(*args, cwd=worlds.path)
        assert done.returncode == 0, done.stderr
        assert "rank 1 never reached world.barrier" in done.stdout


def test_several_failures_are_listed_with_commands_that_run(run_worlds) -> None:
    """The user copies one."""
    worlds = run_worlds(TWO)
    refused = explain("latest", cwd=worlds.path)
    assert refused.returncode != 0
    commands = re.findall(r"multihost explain (\S+)", refused.stderr)
    assert len(commands) == 2
    assert all(explain(each, cwd=worlds.path).returncode == 0 for each in commands)


def test_a_folder_with_nothing_to_explain_says_what_was_looked_for(tmp_path) -> None:
    """Dumps are among it."""
    refused = explain(str(tmp_path), cwd=tmp_path)
    assert "there is nothing to explain" in refused.stderr
    assert "dumps" in refused.stderr
