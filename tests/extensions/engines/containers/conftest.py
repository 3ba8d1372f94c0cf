"""An engine of Debian's package for these tests, a base image, and an image made from it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
OFFLINE = ROOT / "docker" / "offline"
BASE = "multihost-base:bookworm"
IMAGE = "pytest-multihost-hangs"

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "pytest-multihost-hangs")
"""What is kept from run to run: the base image's file system, which takes 1.5 minutes to make."""


@dataclass(frozen=True)
class Engine:
    """A Docker engine that is ours alone."""

    folder: Path

    @property
    def groups(self) -> list[str]:
        """Return its control groups that are there."""
        told = subprocess.run(
            ["cksum"], input=f"{self.folder}\n", capture_output=True, text=True, check=True
        )
        name = f"multihost-engine-{told.stdout.split()[0]}"
        return [str(each) for each in Path("/sys/fs/cgroup").glob(f"**/{name}")]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "DOCKER_HOST": f"unix://{self.folder}/docker.sock"}

    def run(self, *command: str, timeout: float = 100, **variables: str) -> str:
        """Run a program that uses the engine, and return what it prints."""
        done = subprocess.run(
            command,
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-4000:]
        return done.stdout

    def containers(self) -> list[str]:
        return self.run("docker", "ps", "--all", "--format", "{{.Names}}").split()

    def networks(self) -> list[str]:
        found = self.run("docker", "network", "ls", "--format", "{{.Name}}").split()
        return sorted(set(found) - {"bridge", "host", "none"})

    def images(self) -> list[str]:
        return self.run("docker", "images", "--format", "{{.Repository}}").split()


def script(name: str, *arguments: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    """Run one of our scripts."""
    return subprocess.run(
        [str(OFFLINE / name), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def need_engine() -> None:
    """Skip where no engine can run."""
    if why := script("start_engine.sh", "check").stdout.strip():
        pytest.skip(f"no Docker engine can run here: {why}")


@contextmanager
def started_engine() -> Iterator[Engine]:
    """Start an engine, and leave nothing of it."""
    need_engine()
    above = Path(tempfile.mkdtemp(prefix="mhe-"))  # short: a socket's path is limited
    folder = above / "e"
    try:
        started = script("start_engine.sh", "start", str(folder))
        assert started.returncode == 0, started.stderr
        yield Engine(folder)
    finally:
        stopped = script("start_engine.sh", "stop", str(folder))
        assert stopped.returncode == 0, stopped.stderr
        assert not folder.exists()
        shutil.rmtree(above)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Let one process at a time make what is kept; the tests may run in several."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture
def start_engine() -> Callable[[], AbstractContextManager[Engine]]:
    """Start one more engine, which is ended with the block."""
    need_engine()
    return started_engine


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """An engine with the base image."""
    with started_engine() as found:
        tarball = CACHE / "bookworm.tar"
        if not tarball.exists() and shutil.which("debootstrap") is None:
            pytest.skip("no base image can be made here: apt-get install debootstrap")
        with locked(CACHE / "lock"):
            found.run(str(OFFLINE / "make_base_image.sh"), str(tarball), BASE, timeout=500)
        yield found


@pytest.fixture(scope="session")
def image(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Our own image, by our own Dockerfile; what pip needs for it comes from a package index."""
    context = tmp_path_factory.mktemp("context")
    for name in (".dockerignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, context)
    shutil.copytree(ROOT / "pytest_multihost", context / "pytest_multihost")
    shutil.copytree(ROOT / "docker", context / "docker")
    with locked(CACHE / "lock"):
        wheels = fetch_wheels(CACHE / "wheels")
    shutil.copytree(wheels, context / "docker" / "wheels", dirs_exist_ok=True)
    arguments = {
        "BASE_IMAGE": BASE,
        "PIP_ARGS": "--no-compile --no-index --find-links=/source/docker/wheels",
    }
    build = [each for pair in arguments.items() for each in ("--build-arg", "=".join(pair))]
    file = str(context / "docker" / "Dockerfile")
    engine.run("docker", "build", "--file", file, "--tag", IMAGE, *build, str(context))
    return IMAGE


def fetch_wheels(folder: Path) -> Path:
    """Return a folder with what is installed with us, and with what builds us; fetched once."""
    wanted = ["hatchling==1.33.0", "editables", "psutil==7.2.2", "pytest==9.2.0"]
    wanted += ["pytest-timeout==2.4.0", "jinja2==3.1.6", "threadpoolctl==3.8.0"]
    if len(list(folder.glob("*.whl"))) > len(wanted):
        return folder
    version = "--python-version=3.11"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", version]
    done = subprocess.run(
        [*pip, "--dest", str(folder), *wanted],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        pytest.skip(f"no image can be built here: pip download: {done.stderr.strip()[-300:]}")
    return folder
