"""The engine that the tests start, and the compose files, with what compose makes of them."""

from __future__ import annotations

import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.containers

ROOM = Path(__file__).parents[4] / "docker"
HOSTS = ["host-0", "host-1", "host-2", "host-3"]
OVERLAYS = ["compose.netem.yaml", "compose.gpu.yaml"]

PROJECT = """
import time
import pytest

@pytest.mark.multihost_expect("straggler", culprits=[2], waiting=[0, 1, 3])
@pytest.mark.multihost(ranks=4, backend="none", timeout=20)
def test_late(world):
    if world.rank == 2:
        time.sleep(600)
    world.barrier("late")
"""


def compose(name: str) -> Mapping[str, Any]:
    """Return a compose file with its aliases resolved."""
    found: Mapping[str, Any] = yaml.safe_load((ROOM / name).read_text())
    return found


def test_an_engine_leaves_nothing(start_engine) -> None:
    """No process, no control group, no rule of the firewall, no bridge, no mount, no file."""

    def seen() -> tuple[object, ...]:
        links = sorted(each.name for each in Path("/sys/class/net").glob("docker*"))
        saved = subprocess.run(
            ["iptables-save"], capture_output=True, text=True, timeout=20, check=True
        )
        mounts = Path("/proc/self/mounts").read_text()
        return links, re.findall("(?i)docker.*", saved.stdout), re.findall(".*engine.*", mounts)

    before = seen()
    with start_engine() as engine:
        engine.run("docker", "network", "create", "mine")
        assert engine.networks() == ["mine"]
        assert engine.groups != []
        assert seen() == before
    assert seen() == before
    assert (engine.groups, engine.folder.exists()) == ([], False)


def test_an_engine_that_was_killed_leaves_nothing(start_engine) -> None:
    """What it had started is found by its control group."""
    with start_engine() as engine:
        pid = (engine.folder / "docker.pid").read_text()
        subprocess.run(["kill", "-KILL", pid], check=True)
        assert engine.groups != []
    assert (engine.groups, engine.folder.exists()) == ([], False)


@pytest.mark.parametrize(
    ("overlays", "user", "keeps"),
    [((), "0:0", True), (("compose.netem.yaml",), "1000:1000", False)],
    ids=["plain", "disturbed"],
)
def test_a_world_of_four_hosts_takes_one_command(
    engine, image: str, tmp_path: Path, overlays: tuple[str, ...], user: str, *, keeps: bool
) -> None:
    """Every host runs the same command; what hangs is found, across containers.

    Artifacts are kept in the project where it belongs to the user; it runs where it does not, too.
    A kernel without netem is told of.
    """
    shutil.copytree(ROOM / "example", tmp_path / "project")
    (tmp_path / "project" / "test_late.py").write_text(PROJECT)
    command = _compose_command(engine)
    files = [f"--file={ROOM / name}" for name in ("compose.yaml", *overlays)]
    files.append("--project-name=multihost-test")
    variables = {"MULTIHOST_PROJECT": str(tmp_path / "project"), "MULTIHOST_USER": user}
    variables |= {"MULTIHOST_IMAGE": image, "MULTIHOST_SECRET": secrets.token_hex(32)}
    try:
        told = engine.run(
            *command, *files, "up", "--exit-code-from", "host-0", timeout=100, **variables
        )
    finally:
        engine.run(*command, *files, "down", "--volumes", **variables)
    assert "attached to 4 processes on 4 machines" in told
    assert "3 passed, 1 skipped" in told
    assert (tmp_path / "project" / ".pytest_multihost").exists() == keeps
    refused = told.count("Specified qdisc kind is unknown")
    assert told.count("THE NETWORK IS NOT DISTURBED") == refused
    assert refused in (0, len(HOSTS) * len(overlays))
    assert (engine.containers(), engine.networks()) == ([], [])


def _compose_command(engine) -> list[str]:
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]) is None:
            continue
        done = subprocess.run(
            [*command, "version"],
            env=engine.environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        if done.returncode == 0:
            return command
    pytest.skip("compose is missing: apt-get install docker-compose")


def test_compose_has_four_places() -> None:
    """One for each rank, at one address, with one secret, and the first is waited for."""
    services = compose("compose.yaml")["services"]
    places = [services[host]["environment"] for host in HOSTS]
    assert sorted(services) == HOSTS
    assert [place["PYTEST_MULTIHOST_RANK"] for place in places] == ["0", "1", "2", "3"]
    assert {place["PYTEST_MULTIHOST_SIZE"] for place in places} == {"4"}
    assert {place["PYTEST_MULTIHOST_ADDRESS"] for place in places} == {"host-0:29400"}
    assert len({place["PYTEST_MULTIHOST_SECRET"] for place in places}) == 1
    assert [services[host]["hostname"] for host in HOSTS] == HOSTS


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlays_change_every_host_and_no_place(name: str) -> None:
    """What one host has the others have too, and nobody's rank or address."""
    services = compose(name)["services"]
    assert sorted(services) == HOSTS
    for host in HOSTS:
        told = services[host]["environment"]
        assert not {"RANK", "SIZE", "ADDRESS", "SECRET"} & {
            each.removeprefix("PYTEST_MULTIHOST_") for each in told
        }


def test_only_a_disturbed_network_needs_a_privilege() -> None:
    """NET_ADMIN, in the one file that is for it."""
    files = ["compose.yaml", *OVERLAYS]
    granted = {
        name: {
            each
            for service in compose(name)["services"].values()
            for each in service.get("cap_add", [])
        }
        for name in files
    }
    assert granted == {"compose.yaml": set(), "compose.netem.yaml": {"NET_ADMIN"}} | {
        "compose.gpu.yaml": set()
    }
    assert not any("privileged" in (ROOM / name).read_text() for name in files)


def test_every_host_has_a_gpu_of_its_own() -> None:
    """Two ranks of NCCL on one GPU do not start."""
    services = compose("compose.gpu.yaml")["services"]
    devices = [services[host]["deploy"]["resources"]["reservations"]["devices"] for host in HOSTS]
    assert [device["device_ids"] for (device,) in devices] == [["0"], ["1"], ["2"], ["3"]]


def test_the_image_runs_without_privileges() -> None:
    """Its base can be chosen, and its last user is not root."""
    lines = (ROOM / "Dockerfile").read_text().splitlines()
    code = [line for line in lines if line and not line.startswith("#")]
    assert code[0] == "ARG BASE_IMAGE=python:3.11-slim"
    assert [line for line in code if line.startswith("FROM")] == [
        "FROM ${BASE_IMAGE} AS build",
        "FROM ${BASE_IMAGE}",
    ]
    users = [line.split()[1] for line in code if line.startswith("USER")]
    assert users[-1:] == ["multihost"]


@pytest.mark.parametrize("name", ["start_engine.sh", "make_base_image.sh"])
def test_scripts_are_sound_shell(name: str) -> None:
    """As far as a shell tells without running them; without arguments they say how to use them."""
    path = ROOM / "offline" / name
    subprocess.run(["sh", "-n", str(path)], check=True, timeout=20)
    told = subprocess.run([str(path)], capture_output=True, text=True, timeout=20, check=False)
    assert told.returncode != 0
    assert told.stderr
