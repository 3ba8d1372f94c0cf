"""A job is one user's: processes of others with the same variables are none of its ranks."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping

import pytest

from pytest_multihost.extensions.live.machine import choose, worlds_here
from pytest_multihost.extensions.live.processes import find_job, owner_of
from pytest_multihost.testing import MultihostError

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else shutil.which("python3")  # noqa: PTH110
ALICE, MALLORY = 4711, 4712

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of other users"),
]


@contextlib.contextmanager
def started(*ranks: tuple[int, int], **more: str) -> Iterator[list[int]]:
    """Start processes of users with the variables of torchrun for a rank; yield their ids."""
    children = []
    try:
        for user, rank in ranks:
            job = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "LOCAL_WORLD_SIZE": "2"}
            env = {"RANK": str(rank), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none", **job}
            code = [str(PYTHON), "-c", "import time; time.sleep(60)"]
            settings = {"user": user, "group": user, "cwd": "/", "env": {**env, **more}}
            children.append(subprocess.Popen(code, **settings))  # type: ignore[call-overload]
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                if all(owner_of(c.pid) == u for c, (u, _) in zip(children, ranks, strict=True)):
                    break
            time.sleep(0.05)
        time.sleep(0.3)  # until they have become the program
        yield [each.pid for each in children]
    finally:
        for each in children:
            each.kill()
            each.wait()


def jobs(pids: list[int]) -> list[Mapping[int, int]]:
    """Return the ranks of each job among some processes."""
    return sorted(
        (dict(w.job.pids) for w in worlds_here().found if {*w.job.pids.values()} & {*pids}), key=len
    )


def test_another_users_process_replaces_no_rank() -> None:
    """Though it began later, with the same variables."""
    with started((ALICE, 0), (ALICE, 1), (MALLORY, 1)) as pids:
        assert jobs(pids) == [{1: pids[2]}, {0: pids[0], 1: pids[1]}]


def test_a_job_of_one_user_is_one_job() -> None:
    """As it was."""
    with started((ALICE, 0), (ALICE, 1)) as pids:
        assert jobs(pids) == [{0: pids[0], 1: pids[1]}]


def test_an_absent_rank_is_not_filled_by_another_user() -> None:
    """Else a stranger would be judged, and shown as the culprit."""
    with started((ALICE, 0), (MALLORY, 1)) as pids:
        assert jobs(pids) in ([{0: pids[0]}, {1: pids[1]}], [{1: pids[1]}, {0: pids[0]}])


def test_a_job_id_makes_no_difference() -> None:
    """Everybody may write one."""
    with started((ALICE, 0), (ALICE, 1), (MALLORY, 0), TORCHELASTIC_RUN_ID="job-7") as pids:
        assert jobs(pids) == [{0: pids[2]}, {0: pids[0], 1: pids[1]}]


def test_two_users_that_a_text_matches_are_listed_apart() -> None:
    """The user chooses."""
    with started((ALICE, 0), (ALICE, 1), (MALLORY, 1)) as pids:
        found = choose(match="time.sleep(60)")
        assert len([w for w in found.found if {*w.job.pids.values()} & {*pids}]) == 2  # type: ignore[union-attr]


def test_processes_of_two_users_are_named_as_one_job_only_with_their_ranks() -> None:
    """Who writes the ranks himself means these processes."""
    with started((ALICE, 0), (MALLORY, 1)) as pids:
        with pytest.raises(MultihostError, match="not of one user"):
            find_job([str(each) for each in pids])
        assert find_job([f"{rank}={pid}" for rank, pid in enumerate(pids)]).pids == dict(
            enumerate(pids)
        )
