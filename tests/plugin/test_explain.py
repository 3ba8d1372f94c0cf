"""A verdict can be derived again from the artifacts alone."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def explain(directory: object) -> subprocess.CompletedProcess[str]:
    """Run the console script's module on a folder."""
    command = [
        sys.executable,
        "-m",
        "pytest_multihost.core.command.main",
        "explain",
        str(directory),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


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


def test_a_verdict_on_a_fault_that_never_fired_is_derived_again(run_worlds) -> None:
    """The facts show that the rank never came to the fault's point."""
    worlds = run_worlds(
        """
        import pytest
        from pytest_multihost import at, faults

        @pytest.mark.multihost(faults=[faults.delay(rank=1, seconds=1, at=at.sync_point("no"))])
        def test_it(world):
            pass
        """
    )
    told = explain(worlds.directory("test_it"))
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "agrees with verdict.json")


def test_a_verdict_on_another_end_than_expected_is_derived_again(run_worlds) -> None:
    """But for what the expectation has changed: the facts do not hold the marker."""
    worlds = run_worlds(
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
    assert worlds.verdicts["test_it"]["status"] == "failed"
    told = explain(worlds.directory("test_it"))
    assert (told.returncode, told.stdout.splitlines()[-1]) == (0, "agrees with verdict.json")


def test_a_verdict_that_was_changed_by_hand_is_told(run_worlds) -> None:
    """In what it differs, and by the exit code."""
    worlds = run_worlds(
        "import pytest\n\n@pytest.mark.multihost\ndef test_it(world):\n    assert world.rank\n"
    )
    file = worlds.directory("test_it") / "verdict.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "outcome": "hung"}))
    told = explain(worlds.directory("test_it"))
    assert (told.returncode, told.stdout.splitlines()[-1]) == (
        1,
        "differs from verdict.json in: outcome",
    )


def test_a_folder_without_artifacts_is_told(tmp_path) -> None:
    """What was looked for, and what to name instead."""
    told = explain(tmp_path)
    assert told.returncode == 1
    assert "is not the folder of an attempt" in told.stderr
    assert ".pytest_multihost/latest/NAME" in told.stderr
