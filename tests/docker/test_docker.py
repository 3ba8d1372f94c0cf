"""Worlds whose hosts are containers, with a real engine."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.timeout(600)  # where the base image has to be made first

WORLDS = """
import os, signal, socket, time
import pytest

@pytest.mark.multihost(ranks=4, backend="none", hosts={pairs!r})
def test_places(world):
    print("on", socket.gethostname(), world.host, os.environ["LOCAL_RANK"])

@pytest.mark.multihost(ranks=2, backend="none", timeout=30)
def test_late(world):
    if world.rank == 1:
        time.sleep(600)
    world.barrier("b")

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_mismatch(world):
    import torch, torch.distributed as dist
    x = torch.ones(3)
    dist.all_reduce(x)
    assert x[0] == 2
    if world.rank == 1:
        dist.barrier()
    else:
        dist.all_reduce(x)

@pytest.mark.multihost(ranks=2, backend="gloo", timeout=30)
def test_deadlock(world):
    import torch, torch.distributed as dist
    if world.rank == 1:
        dist.recv(torch.ones(3), 0)
    else:
        dist.barrier()

@pytest.mark.multihost(ranks=2, backend="jax", timeout=30)
def test_death(world):
    from jax.experimental import multihost_utils
    multihost_utils.sync_global_devices("first")
    if world.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    multihost_utils.sync_global_devices("second")
"""


def verdict_of(verdict: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what must not depend on what the hosts are."""
    diagnosis = verdict["diagnosis"] or {}
    keys = ("kind", "culprits", "waiting", "confidence")
    return (verdict["outcome"], *(diagnosis.get(key) for key in keys))


@pytest.mark.slow
def test_verdicts_are_those_of_one_host(housed) -> None:
    """Who hangs, how and who waits: the same, proven in the same way, wherever the ranks live."""
    there = housed(WORLDS.format(pairs="docker:2"))
    here = housed(WORLDS.format(pairs="one"), hosts="one")
    names = ["test_places", "test_late", "test_mismatch", "test_deadlock", "test_death"]
    found = {name: verdict_of(there.verdicts[name]) for name in names}
    assert found == {name: verdict_of(here.verdicts[name]) for name in names}
    assert [found[name][0] for name in names] == ["passed", "hung", "hung", "hung", "crashed"]
    assert [found[name][1] for name in names[1:]] == ["straggler", "mismatch", "deadlock", "died"]
    assert all(found[name][4] == "certain" for name in names[1:])
    # Sleeping, and in no operation: a stack tells where, from inside of the container.
    assert "time.sleep(600)" in there.stdout
    places = [there.output("test_places", rank).split() for rank in range(4)]
    hosts = ["host-0", "host-0", "host-1", "host-1"]
    assert places == [["on", host, host, str(i % 2)] for i, host in enumerate(hosts)]


def test_a_host_that_goes_takes_its_ranks_with_it(housed) -> None:
    """As by a power cut: ranks were killed, and the next world has a new host."""
    worlds = housed(
        """
        import os, signal
        import pytest

        @pytest.mark.multihost(ranks=4, backend="none", hosts="docker:2")
        def test_cut(world):
            world.barrier("all are here")
            if world.rank == 3:
                os.kill(os.getppid(), signal.SIGKILL)
                signal.pause()  # the kernel takes the host's ranks a moment later
            world.barrier("nobody comes")

        @pytest.mark.multihost(ranks=4, backend="none", hosts="docker:2")
        def test_next(world):
            world.barrier("all are here")
        """
    )
    worlds.run.assert_outcomes(failed=1, passed=1)
    verdict = worlds.verdicts["test_cut"]
    assert (verdict["outcome"], verdict["diagnosis"]["kind"]) == ("crashed", "died")
    assert "ranks 2,3: was killed by SIGKILL" in worlds.stdout


def test_nothing_outlives_a_killed_controller(
    engine, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its containers go at once; its network is removed by the next run."""
    pytester.makepyfile(
        test_it="""
        import pathlib, subprocess, time
        import pytest

        @pytest.mark.multihost(ranks=2, backend="none")
        def test_it(world):
            subprocess.Popen(["sleep", "600"], start_new_session=True)
            world.barrier("both are here")
            pathlib.Path(f"here-{world.rank}").touch()
            time.sleep(600)
        """
    )
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    flags = ["hosts=docker", f"docker-image={engine.base}", "docker-python=host"]
    controller = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs"]
        + [f"--multihost-{flag}" for flag in flags],
        env=engine.environment,
        stdout=subprocess.DEVNULL,
    )
    here = [pytester.path / f"here-{rank}" for rank in range(2)]
    try:
        assert _comes(lambda: all(path.exists() for path in here))
        assert len(engine.containers()) == 2
        assert len(_inside(pytester.path)) >= 6  # servers, ranks, what they have started
    finally:
        os.kill(controller.pid, signal.SIGKILL)
        controller.wait()
    assert _comes(lambda: engine.containers() == [])
    assert _inside(pytester.path) == []
    assert len(engine.networks()) == 1
    engine.run(
        sys.executable,
        "-c",
        "import docker; from pytest_multihost.core.launch.docker import remove_stale;"
        " remove_stale(docker.from_env())",
    )
    assert engine.networks() == []


def _comes(condition: Callable[[], bool], bound_s: float = 40) -> bool:
    deadline_s = time.monotonic() + bound_s
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.1)
    return False


def _inside(path: Path) -> list[str]:
    """Return the processes that work below `path`, all but pytest's own."""
    found = []
    for process in psutil.process_iter():
        try:
            is_alive = process.status() != psutil.STATUS_ZOMBIE
            is_ours = process.pid == os.getpid()
            if is_alive and not is_ours and Path(process.cwd()).is_relative_to(path):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [each for each in found if "-m pytest" not in each]


@pytest.mark.slow
def test_an_image_brings_its_own_python(housed, image: str, pytester: pytest.Pytester) -> None:
    """The one that the Dockerfile makes, with the packages of its base: the same test."""
    pytester.makepyfile(helping="NUMBER = 3")
    worlds = housed(
        """
        import sys
        import pytest
        from helping import NUMBER

        @pytest.mark.multihost(ranks=2, backend="none", env={"MINE": "1"})
        def test_it(world, shared_tmp_path):
            import os
            assert (NUMBER, os.environ["MINE"]) == (3, "1")
            (shared_tmp_path / str(world.rank)).touch()
            world.barrier("written")
            assert len(list(shared_tmp_path.iterdir())) == 2
            print("runs", sys.prefix, "/usr/lib/python3/dist-packages" in sys.path)
        """,
        "-o",
        "pythonpath=.",
        docker_image=image,
        docker_python="python",
    )
    worlds.run.assert_outcomes(passed=1)
    assert worlds.output("test_it", 1).split() == ["runs", "/opt/venv", "True"]


def test_a_container_that_cannot_serve_says_why(housed) -> None:
    """With its own words: here the image has no such interpreter."""
    worlds = housed(
        """
        import pytest

        @pytest.mark.multihost(ranks=2, backend="none")
        def test_it(world):
            pass
        """,
        docker_python="/opt/python9",
    )
    worlds.run.assert_outcomes(errors=1)
    assert "the container ended before it could serve" in worlds.stdout
    assert re.search(r"/opt/python9:? not found", worlds.stdout)


def test_an_image_that_is_missing_skips(housed) -> None:
    """With the reason and the remedy; nothing is pulled."""
    worlds = housed(
        """
        import pytest

        @pytest.mark.multihost(ranks=2, backend="none")
        def test_it(world):
            pass
        """,
        "-rs",
        docker_image="nobody-has-this",
    )
    worlds.run.assert_outcomes(skipped=1)
    assert "has no image 'nobody-has-this'" in worlds.stdout
    assert "docker/README.md" in worlds.stdout
