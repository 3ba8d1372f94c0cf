"""Ranks on the nodes of a Ray cluster: pytest's own process has none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import (
    GLOO_WORLDS,
    LIMIT_S,
    SLEEPS_THEN_MEETS,
    WORLDS,
    drive,
    project,
    result_lines,
    started,
)
from ray_cluster import ray_cluster
from runs import await_that, living
from runtimes import require
from secrets_seen import TELLS, forms_of, seen_in_files, seen_in_processes

pytestmark = pytest.mark.launchers


@pytest.fixture(scope="module")
def ray() -> Iterator[str]:
    """A cluster of two nodes; its address."""
    with ray_cluster(2) as (address, _):
        yield address


def test_a_world_runs_on_the_nodes_of_a_cluster(ray: str, tmp_path: Path) -> None:
    """Nothing but RAY_ADDRESS is needed, as in a job."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(path, "--multihost-on", "ray", "-k", "meets or waits", RAY_ADDRESS=ray)
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "HUNG test_worlds.py::test_waits" in done.stdout
    assert "ray: 2 nodes" in done.stdout


def test_the_summary_is_the_same_as_without_ray(ray: str, tmp_path: Path) -> None:
    """Word by word."""
    require("torch")
    path = project(tmp_path / "it", WORLDS + GLOO_WORLDS)
    here = drive(path)
    there = drive(path, "--multihost-on", f"ray:{ray}")
    assert result_lines(there.stdout) == result_lines(here.stdout)
    assert len(result_lines(here.stdout)) == 4, here.stdout


def test_a_copy_of_the_project_is_used(ray: str, tmp_path: Path) -> None:
    """Its files are named as the driver's: the stacks of all nodes are one."""
    path = project(tmp_path / "it", WORLDS)
    options = json.dumps({"runtime_env": {"working_dir": "."}})
    done = drive(
        path, "--multihost-on", f"ray:{ray}", "--multihost-ray", options, "-k", "meets or waits"
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout
    assert "working_dir_files" not in done.stdout
    assert "time.sleep(600)" in done.stdout


def test_a_cluster_without_room_says_what_it_has(ray: str, tmp_path: Path) -> None:
    """And the queue's timeout ends the wait."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(
        path,
        *("--multihost-on", f"ray:{ray}", "--multihost-nodes=3"),
        *("--multihost-queue-timeout=8", "--multihost-startup-timeout=60"),
    )
    assert "ray has not provided the nodes within 8 s" in done.stdout, done.stdout
    assert "3 nodes with" in done.stdout
    assert "2 are alive" in done.stdout
    assert done.returncode == 4


def test_a_cluster_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Before any test has run."""
    require("ray")
    path = project(tmp_path / "it", WORLDS)
    done = drive(path, "--multihost-on", "ray:127.0.0.1:1")
    assert "Ray has not started the peers" in done.stdout, done.stdout
    assert done.returncode == 4


def test_a_raylet_that_is_killed_is_an_error_of_the_test(tmp_path: Path) -> None:
    """Its actors die with it, and so does the peer."""
    path = project(tmp_path / "it", SLEEPS_THEN_MEETS)
    with (
        ray_cluster(2) as (address, cluster),
        started(path, "--multihost-on", f"ray:{address}") as process,
    ):
        assert cluster.stdin is not None
        cluster.stdin.write("one\n")
        cluster.stdin.flush()
        output, _ = process.communicate(timeout=LIMIT_S)
    lost = f"ERROR test_worlds.py::test_sleeps - node {socket.gethostname()}'s process"
    assert lost in output, output
    assert "its actor is lost" in output
    assert "state-dump" not in output
    await_that(lambda: not living(path), 30)


def test_an_address_from_outside_says_what_to_use(tmp_path: Path) -> None:
    """A job of the cluster does the same."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(path, "--multihost-on", "ray://127.0.0.1:10001")
    assert "ray job submit" in done.stdout, done.stdout
    assert done.returncode == 4


def test_nothing_outlives_a_driver_that_is_killed(ray: str, tmp_path: Path) -> None:
    """Ray's client, the actors and their peers end."""
    path = project(tmp_path / "it", SLEEPS_THEN_MEETS)
    with started(path, "--multihost-on", f"ray:{ray}") as process:
        process.kill()
    await_that(lambda: not living(path), 30)


RECORDS = """
import sys, ray
from ray._private import state
from ray.experimental import internal_kv

ray.init(address=sys.argv[1], log_to_driver=False)
print(state.jobs(), state.actors(), ray.util.placement_group_table())
for key in internal_kv._internal_kv_list(b""):
    print(key, internal_kv._internal_kv_get(key))
"""
"""Prints what a cluster has recorded of jobs and actors."""


def test_the_secret_is_in_no_process_no_record_and_no_log(ray: str, tmp_path: Path) -> None:
    """It is an argument of an actor's method, which Ray does not keep."""
    path = project(tmp_path / "it", SLEEPS_THEN_MEETS)
    (path / "conftest.py").write_text(TELLS)
    with started(path, "--multihost-on", f"ray:{ray}") as process:
        secret = (path / "told").read_bytes()
        seen = seen_in_processes(secret)
        asked = subprocess.run(
            [sys.executable, "-c", RECORDS, ray], capture_output=True, check=True, timeout=LIMIT_S
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)
    assert b"PeerActor" in asked.stdout
    assert not [each for each in forms_of(secret) if each in asked.stdout]
    assert seen == []
    logs = list(Path("/tmp/ray/session_latest/logs").rglob("*"))  # noqa: S108 - Ray's own
    assert logs
    assert seen_in_files(secret, logs) == []


@pytest.mark.parametrize("text", ["[]", "{", '{"cpus": 1}', '{"resources": 1}'])
def test_options_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    """With what is wrong with them."""
    path = project(tmp_path / "it", WORLDS)
    done = drive(path, "--multihost-on", "ray", "--multihost-ray", text)
    assert "--multihost-ray: " in done.stdout
    assert "must be" in done.stdout
    assert done.returncode == 4


def test_a_signal_ends_the_run_and_not_one_test(ray: str, tmp_path: Path) -> None:
    """Ray's client handles SIGTERM, so it is not in this process."""
    path = project(tmp_path / "it", SLEEPS_THEN_MEETS)
    with started(path, "--multihost-on", f"ray:{ray}") as process:
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=LIMIT_S)
    assert "where the ranks were:" in output
    assert "time.sleep(600)" in output
    assert process.returncode == 2
    assert os.path.exists(path / "up-0")  # noqa: PTH110 - the test had begun
