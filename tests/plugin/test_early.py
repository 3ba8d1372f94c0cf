"""What a hang does that is proven before its deadline, and what is never called one."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest
from runtimes import needs, require

HANG = """
import pytest, time

@pytest.mark.multihost(ranks=3, timeout=60)
def test_it(world):
    if world.rank == 1:
        time.sleep(600)
    world.barrier("b")
"""


@pytest.mark.program(HANG)
def test_a_proven_hang_ends_its_world_long_before_the_deadline(worlds) -> None:
    """With the culprit, its line, and who waits for it."""
    worlds.run.assert_outcomes(failed=1)
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["detected_by"], diagnosis["culprits"]) == ("proof", [1])
    assert diagnosis["detected_after_s"] < 30
    assert diagnosis["where"]["source"] == "time.sleep(600)"
    assert "HUNG test_worlds.py::test_it - rank 1 never reached world.barrier 'b'" in worlds.stdout


@pytest.mark.parametrize("launch", ["fork", "spawn"])
def test_progress_bars_of_tqdm_delay_no_proof(run_worlds, launch: str) -> None:
    """Its monitor would wake up every ten seconds; nobody can see that it does nothing else."""
    require("tqdm")
    worlds = run_worlds(
        HANG.replace("import pytest, time", "import pytest, time, tqdm").replace(
            "    if world", "    list(tqdm.tqdm(range(3)))\n    if world"
        ),
        f"--multihost-launch={launch}",
    )
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["detected_by"], diagnosis["culprits"]) == ("proof", [1])
    assert diagnosis["detected_after_s"] < 30


FIRST_COLLECTIVE = """
import pytest, time
from jax.errors import JaxRuntimeError
from jax.experimental.multihost_utils import sync_global_devices

@pytest.mark.multihost(ranks=2, backend="jax", timeout=100)
def test_it(world):
    if world.is_primary:
        MISSING
    else:
        sync_global_devices("x")

@pytest.mark.multihost(ranks=2, backend="jax", timeout=100)
def test_expects_error(world):
    if not world.is_primary:
        with pytest.raises(JaxRuntimeError):
            sync_global_devices("x")
    world.barrier("after")

@pytest.mark.xfail(raises=JaxRuntimeError, strict=True)
@pytest.mark.multihost(ranks=2, backend="jax", timeout=100)
def test_xfail_expects_error(world):
    if world.is_primary:
        world.barrier("never")
    sync_global_devices("x")
"""


@needs("jax")
@pytest.mark.parametrize("missing", ["time.sleep(600)", "world.barrier('x')"])
def test_a_wait_that_only_fails_is_told_before_the_runtime_gives_it_up(run_worlds, missing) -> None:
    """Gloo gives up connecting after 30 s: nothing handles the error, and no rank comes before."""
    worlds = run_worlds(FIRST_COLLECTIVE.replace("MISSING", missing), "-k", "test_it")
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert diagnosis["detected_by"] == "proof"
    assert diagnosis["detected_after_s"] < 25
    assert any("would have timed out" in note for note in diagnosis["notes"])


@needs("jax")
@pytest.mark.runtimes
@pytest.mark.program(FIRST_COLLECTIVE.replace("MISSING", "pass"), "-k", "test_expects_error")
def test_a_test_that_handles_the_error_gets_it(worlds) -> None:
    """And goes on after it."""
    worlds.run.assert_outcomes(passed=1)


@needs("jax")
@pytest.mark.runtimes
@pytest.mark.program(FIRST_COLLECTIVE.replace("MISSING", "pass"), "-k", "test_xfail_expects")
def test_an_error_that_xfail_names_is_waited_for(worlds) -> None:
    """Another exception would not be the one that it expects."""
    assert worlds.verdicts["test_xfail_expects_error"]["diagnosis"]["detected_by"] == "raise"


@pytest.mark.program(HANG.replace("60", "6"), "--multihost-early=off")
def test_early_off_waits_for_the_deadline(worlds) -> None:
    """Then nothing but time tells; who is to blame is told all the same."""
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["detected_by"], diagnosis["culprits"]) == ("deadline", [1])


def test_early_warn_tells_of_the_proof_and_waits(run_worlds) -> None:
    """For those who want to see what would have been ended."""
    worlds = run_worlds(HANG.replace("60", "8"), "--multihost-early=warn")
    worlds.run.assert_outcomes(failed=1, warnings=1)
    assert (
        "a hang was detected before the deadline (proof); with multihost_early ="
        " warn the test goes on to its deadline" in worlds.stdout
    )
    assert worlds.verdicts["test_it"]["diagnosis"]["detected_by"] == "deadline"


def test_another_word_than_these_is_a_usage_error(run_worlds) -> None:
    """It lists what there is."""
    worlds = run_worlds(HANG, "--multihost-early=sometimes")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "must be one of fail, warn, off, not 'sometimes'" in worlds.run.stderr.str()


@pytest.mark.program(HANG.replace("time.sleep(600)", "time.sleep(6)"))
def test_a_rank_that_is_late_by_less_than_the_deadline_is_waited_for(worlds) -> None:
    """Longer than any proof takes; slow is not hung."""
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.program(
    """
    import pytest

    @pytest.mark.multihost(ranks=2, timeout=4)
    def test_native(world):
        if world.is_primary:
            sum(range(10**14))
        world.barrier()

    @pytest.mark.multihost(ranks=2, timeout=4)
    def test_python(world):
        while world.is_primary:
            sum(range(1000))
        world.barrier()
    """
)
def test_native_code_that_computes_is_told_from_python_that_does(worlds) -> None:
    """Both keep the interpreter busy; only Python comes back from time to time."""
    found = {name: verdict["diagnosis"] for name, verdict in worlds.verdicts.items()}
    assert {name: each["kind"] for name, each in found.items()} == {
        "test_native": "gil_held",
        "test_python": "livelock",
    }
    assert [each["culprits"] for each in found.values()] == [[0], [0]]


@pytest.mark.program(
    """
    import datetime, pytest
    import torch, torch.distributed as dist

    def clash(world, group=None):
        if world.is_primary:
            dist.all_reduce(torch.ones(1), group=group)
        else:
            dist.barrier(group)

    @pytest.mark.multihost(ranks=2, backend="gloo", timeout=60)
    def test_hangs(world):
        clash(world)

    @pytest.mark.multihost(ranks=2, backend="gloo", timeout=60)
    def test_gives_up(world):
        with pytest.raises(RuntimeError):
            clash(world, dist.new_group(timeout=datetime.timedelta(seconds=3)))
    """
)
def test_operations_that_cannot_match_are_told_at_once_unless_they_give_up(worlds) -> None:
    """A test may expect that a limit strikes which it has set itself."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    diagnosis = worlds.verdicts["test_hangs"]["diagnosis"]
    assert diagnosis["kind"] == "mismatch"
    assert diagnosis["detected_by"] in {"mismatch", "proof"}


@pytest.mark.program(
    """
    import pytest, threading

    @pytest.mark.multihost(ranks=3, timeout=60)
    def test_it(world):
        if world.rank == 2:
            threading.Lock().acquire() and threading.Event().wait()
    """
)
def test_ranks_that_have_finished_do_not_hide_that_another_hangs(worlds) -> None:
    """They wait at our own gate, which only the last one can open."""
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["culprits"], diagnosis["detected_by"]) == (
        "stuck",
        [2],
        "proof",
    )


@pytest.mark.program(
    """
    import os, pytest, time

    def daemon(work):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                work(writing)
            os._exit(0)
        os.wait()
        os.close(writing)
        return reading

    @pytest.mark.multihost(ranks=2, timeout=60)
    def test_late(world):
        if world.is_primary:
            reading = daemon(lambda writing: (time.sleep(5), os.write(writing, b"x")))
            assert os.read(reading, 1) == b"x"
        world.barrier()

    @pytest.mark.multihost(ranks=2, timeout=60)
    def test_never(world):
        if world.is_primary:
            os.read(daemon(lambda writing: os.read(os.pipe()[0], 1)), 1)
        world.barrier()
    """
)
def test_a_daemon_that_has_left_its_rank_is_still_of_the_world(worlds) -> None:
    """One that waits for nobody proves a hang; one that sleeps and then writes is waited for."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    diagnosis = worlds.verdicts["test_never"]["diagnosis"]
    assert (diagnosis["detected_by"], diagnosis["culprits"]) == ("proof", [0])


@pytest.mark.program(
    """
    import pytest, time
    from pytest_multihost import operation

    @pytest.mark.multihost(ranks=3, timeout=60)
    def test_it(world):
        if world.rank != 1:
            with operation("halo exchange", peers=[1]):
                time.sleep(600)
        time.sleep(500)
    """
)
def test_an_operation_of_ones_own_names_whom_it_waits_for(worlds) -> None:
    """A transport that nobody knows can tell of its waits."""
    diagnosis = worlds.verdicts["test_it"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["culprits"], diagnosis["waiting"]) == (
        "straggler",
        [1],
        [0, 2],
    )
    assert "halo exchange" in diagnosis["summary"]


@pytest.mark.program(HANG)
def test_a_hang_has_a_letter_of_its_own(worlds) -> None:
    """It counts as a failure all the same."""
    assert "test_worlds.py H" in worlds.stdout
    worlds.run.assert_outcomes(failed=1)


def test_verbose_says_hung(run_worlds) -> None:
    """In a word."""
    assert "test_worlds.py::test_it HUNG" in run_worlds(HANG, "-v").stdout


def test_junit_has_the_culprit_and_the_kind(run_worlds, pytester: pytest.Pytester) -> None:
    """As properties of the one case, and the summary as its message."""
    run_worlds(HANG, "--junitxml=junit.xml")
    text = (pytester.path / "junit.xml").read_text()
    assert text.count("<testcase") == 1
    assert '<property name="multihost_kind" value="straggler"' in text
    assert '<property name="multihost_culprits" value="1"' in text
    assert "message=\"rank 1 never reached world.barrier 'b'\"" in text


def start(pytester: pytest.Pytester, *args: str) -> subprocess.Popen[str]:
    """Start a run that the test can send signals to."""
    pytester.makepyfile(test_worlds=HANG)
    command = [sys.executable, "-u", "-m", "pytest", "-p", "multihost_hangs", *args]
    return subprocess.Popen(
        command, cwd=pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_ctrl_c_shows_where_the_ranks_were(run_worlds, pytester: pytest.Pytester) -> None:
    """Who interrupts a run wants to know what it hung in."""
    del run_worlds  # for its environment, and its look at what is left
    run = start(pytester, "--multihost-early=off")
    deadline = time.monotonic() + 60
    while not list(pytester.path.glob(".pytest_multihost/*/*/rank-1.log")):
        assert time.monotonic() < deadline, "there are no ranks"
        time.sleep(0.05)
    time.sleep(1.5)  # they come to where they hang
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=30)
    assert "where the ranks were:" in output
    assert "» time.sleep(600)" in output
    assert run.returncode == pytest.ExitCode.INTERRUPTED


def test_keep_leaves_the_ranks_alive_and_says_how_to_attach(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """Until Ctrl-C, which ends them; the verdict is written then."""
    del run_worlds
    run = start(pytester, "--multihost-keep")
    assert run.stdout is not None
    lines = []
    for line in run.stdout:
        lines.append(line)
        if "py-spy dump --pid" in line and "rank 2" in line:
            break
    pid = int(lines[-1].split()[-1])
    time.sleep(1)
    assert psutil.pid_exists(pid)
    run.send_signal(signal.SIGINT)
    output, _ = run.communicate(timeout=30)
    assert "HUNG  rank 1 never reached world.barrier 'b'" in output
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
