"""What ends a wait outside of the harness, measured in real worlds."""

from __future__ import annotations

from typing import Any

import pytest
from runtimes import needs

from pytest_multihost.extensions.sweep.record import read_sweep
from pytest_multihost.extensions.sweep.result import Weakness

pytestmark = [needs("torch"), pytest.mark.worlds]

HEAD = """
import fcntl, logging, pytest, threading
import torch, torch.distributed as dist

KEPT = []
"""
LASTING = ("--multihost-sweep=fails", "--multihost-sweep-show=lasting")

# Rank 0 raises, and nothing keeps its process.
RAISES = (
    HEAD
    + """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_it(world, shared_tmp_path):
    if world.rank == 0:
        (shared_tmp_path / "checkpoint").write_text("weights")
    dist.barrier()
"""
)

# Rank 0 raises as well, but a thread keeps its process, so no launcher learns of it.
STAYS = (
    HEAD
    + """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_it(world, shared_tmp_path):
    saved = threading.Event()
    if world.rank == 0:
        threading.Thread(target=saved.wait).start()
        (shared_tmp_path / "checkpoint").write_text("weights")
        saved.set()
    dist.barrier()
"""
)

# Rank 0 handles the error, and goes on without the barrier.
GOES_ON = (
    HEAD
    + """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_it(world, shared_tmp_path):
    try:
        if world.rank == 0:
            (shared_tmp_path / "checkpoint").write_text("weights")
        dist.barrier()
    except OSError:
        logging.getLogger("train").warning("not saved")
    dist.all_reduce(torch.ones(1))
"""
)

# Rank 0 handles the error, and keeps a lock that no timeout ends.
KEEPS = (
    HEAD
    + """
@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_it(world, shared_tmp_path):
    lock = (shared_tmp_path / "lock").open("a")
    KEPT.append(lock)
    if world.rank == 0:
        fcntl.flock(lock, fcntl.LOCK_EX)
    dist.barrier()
    if world.rank == 0:
        try:
            (shared_tmp_path / "checkpoint").write_text("weights")
        except OSError:
            return
        fcntl.flock(lock, fcntl.LOCK_UN)
    else:
        fcntl.flock(lock, fcntl.LOCK_EX)
"""
)


def weakness(worlds: Any) -> Weakness:  # noqa: ANN401 - of conftest.py
    """Return the one weakness in which rank 1 waits after an error of the checkpoint."""
    result = read_sweep(worlds.directory("test_it") / "sweep.json")
    found = [
        each
        for each in result.weaknesses
        if each.witness.disturbance.fault.at.name == "*/checkpoint"
    ]
    (one,) = found
    return one


@pytest.mark.program(RAISES, *LASTING)
def test_a_launcher_ends_what_waits_for_a_rank_that_has_raised(worlds) -> None:
    """The test passes: the weakness is only counted."""
    worlds.run.assert_outcomes(passed=1)
    found = weakness(worlds)
    assert found.rating is not None
    assert found.rating.end is not None
    assert found.rating.end.by == "launcher"
    assert found.rating.says.startswith("OSError: ")
    assert found.is_hidden
    worlds.run.stdout.fnmatch_lines(["*1 more weakness: *--multihost-sweep-show=all shows them*"])


@pytest.mark.program(STAYS, *LASTING)
def test_a_failed_rank_whose_thread_waits_ends_nobody(worlds) -> None:
    """It has failed by itself, and its process does not end: only gloo's timeout ends the other."""
    worlds.run.assert_outcomes(failed=1)
    found = weakness(worlds)
    assert found.rating is not None
    assert found.rating.end is not None
    assert (found.rating.end.by, found.rating.end.name) == ("timeout", "gloo's timeout")


@pytest.mark.program(GOES_ON, *LASTING)
def test_a_timeout_ends_ranks_that_part(worlds) -> None:
    """It is gloo's, of half an hour, of which the clock that jumps needs a moment."""
    worlds.run.assert_outcomes(failed=1)
    found = weakness(worlds)
    assert found.rating is not None
    assert found.rating.end is not None
    assert (found.rating.end.by, found.rating.end.name) == ("timeout", "gloo's timeout")
    assert found.rating.end.after_s is not None
    assert 1790 < found.rating.end.after_s < 1900
    assert found.rating.says == "WARNING train: not saved"
    worlds.run.stdout.fnmatch_lines(["*gloo's timeout ends the wait after 30 minutes*"])


@pytest.mark.program(KEEPS, *LASTING)
def test_nothing_ends_a_wait_for_a_lock(worlds) -> None:
    """No wait of the world has a timeout, so the clock jumps to the end of two hours."""
    worlds.run.assert_outcomes(failed=1)
    found = weakness(worlds)
    assert found.rating is not None
    assert found.rating.end is not None
    assert found.rating.end.by == "nothing"
    assert found.rating.says == ""
    worlds.run.stdout.fnmatch_lines(["*no log says anything; nothing ends the wait within*"])


JAX = """
import pytest
from jax.experimental import multihost_utils

@pytest.mark.multihost(ranks=2, backend="jax", timeout=30)
def test_it(world, shared_tmp_path):
    multihost_utils.sync_global_devices("connected")
    if world.rank == 0:
        (shared_tmp_path / "checkpoint").write_text("weights")
    multihost_utils.sync_global_devices("saved")
"""


@needs("jax")
@pytest.mark.program(JAX, *LASTING)
def test_jax_keeps_a_failed_process_until_its_timeout_at_exit(worlds) -> None:
    """The process waits for the others before it ends, so the weakness lasts for minutes."""
    worlds.run.assert_outcomes(failed=1)
    found = weakness(worlds)
    assert found.rating is not None
    assert found.rating.end is not None
    assert found.rating.end.by == "timeout"
    assert found.rating.end.after_s is not None
    assert 90 < found.rating.end.after_s < 400
