"""What people use today to give a test its ranks, and this plugin."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PEERS_SITE = Path(
    os.environ.get("BENCH_PEERS", Path(__file__).resolve().parents[1] / ".venv/bench/site-packages")
)
"""Where peers lie that must not be installed beside our suite: pytest would load two of them."""

_PYTEST = (sys.executable, "-m", "pytest", "-q", "--basetemp=scratch", "-p", "no:cacheprovider")
_TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node={}")
_MPIRUN = ("mpirun", "-n", "{}", sys.executable, "-m", "mpi4py", "-m", "pytest")


@dataclass(frozen=True, slots=True)
class Way:
    """One way to give a test its ranks.

    Attributes:
        label: What the reader knows it by.
        backend: What the ranks run; ours with the same is what it is compared with.
        command: How it is run; `{}` stands for the number of ranks.
        variables: Variables of its own.
        modules: Modules it needs.
        programs: Programs it needs.
        base: How many tests the smaller of two runs has: none where each test is paid in full.
        more: How many tests more the larger run has.
        has_own_ranks: Whether each test has processes of its own.
        is_timed: Whether pytest sees all that a test takes, and no more.
        is_quick: Whether it is part of the quick run.
        packages: Distributions whose versions are told.
        caveat: What its own documentation says of where it does not run.
    """

    label: str
    backend: str
    command: tuple[str, ...]
    variables: tuple[tuple[str, str], ...] = ()
    modules: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    base: int = 0
    more: int = 1
    has_own_ranks: bool = True
    is_timed: bool = True
    is_quick: bool = True
    packages: tuple[str, ...] = ()
    caveat: str = ""

    @property
    def is_ours(self) -> bool:
        """Whether it is this plugin."""
        return self.label == OURS_LABEL

    def command_for(self, ranks: int) -> list[str]:
        """Return the command for worlds of so many ranks."""
        return [part.replace("{}", str(ranks)) for part in self.command]

    def variables_for(self, ranks: int, tests: int) -> dict[str, str]:
        """Return the variables for so many tests of so many ranks."""
        own = {"RANKS": str(ranks), "TESTS": str(tests), "BACKEND": self.backend}
        path = {} if self.is_ours else {"PYTHONPATH": str(PEERS_SITE)}
        return {**own, **path, **dict(self.variables)}

    def why_missing(self) -> str | None:
        """Return why it cannot be run here, or None."""
        lacking = [name for name in self.modules if not _has_module(name)]
        lacking += [name for name in self.programs if shutil.which(name) is None]
        return f"not installed here: {', '.join(lacking)}" if lacking else None


def _has_module(name: str) -> bool:
    is_beside = (PEERS_SITE / name).is_dir() or (PEERS_SITE / f"{name}.py").is_file()
    return is_beside or importlib.util.find_spec(name) is not None


OURS_LABEL = "**this plugin**"


def ours(backend: str) -> Way:
    """Return this plugin with a backend."""
    command = (*_PYTEST, "-p", "multihost_hangs", "test_ours.py")
    modules = {"none": (), "gloo": ("torch",), "jax": ("jax",)}[backend]
    return Way(OURS_LABEL, backend, command, modules=modules, base=1, more=10)


PEERS: Sequence[Way] = (
    Way(
        "torch `MultiProcessTestCase`",
        "gloo",
        (*_PYTEST, "test_multi_process.py"),
        modules=("torch", "expecttest"),
        packages=("torch",),
    ),
    Way(
        "torch `MultiProcContinuousTest`",
        "gloo",
        (*_PYTEST, "test_continuous.py"),
        modules=("torch", "expecttest"),
        base=1,
        more=10,
        has_own_ranks=False,
        is_quick=False,
        packages=("torch",),
    ),
    Way(
        "`torch.multiprocessing.spawn` in a test",
        "gloo",
        (*_PYTEST, "test_spawn.py"),
        modules=("torch",),
        packages=("torch",),
    ),
    Way(
        "accelerate `debug_launcher`",
        "gloo",
        (*_PYTEST, "test_debug_launcher.py"),
        modules=("accelerate", "torch"),
        base=1,
        more=10,
        packages=("accelerate",),
    ),
    Way(
        "`torchrun -m pytest`",
        "gloo",
        (*_TORCHRUN, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_torchrun.py"),
        modules=("torch",),
        base=1,
        more=50,
        has_own_ranks=False,
        is_quick=False,
        packages=("torch",),
    ),
    Way(
        "a fresh interpreter per rank, torch",
        "gloo",
        (*_PYTEST, "test_fresh.py"),
        modules=("torch",),
        is_quick=False,
    ),
    Way(
        "jax's `test_multiprocess`",
        "jax",
        (sys.executable, "jax_harness.py", "--num_processes={}"),
        variables=(("TEST_UNDECLARED_OUTPUTS_DIR", "."),),
        modules=("jax", "absl", "portpicker"),
        base=1,
        more=5,
        has_own_ranks=False,
        is_timed=False,
        packages=("jax", "absl-py", "portpicker"),
    ),
    Way(
        "a fresh interpreter per rank, jax",
        "jax",
        (*_PYTEST, "test_fresh.py"),
        modules=("jax",),
    ),
    Way(
        "a fresh interpreter per rank, running pytest",
        "none",
        (*_PYTEST, "test_fresh.py"),
        variables=(("RANK_PROGRAM", "rank_pytest.py"),),
    ),
    Way(
        "mpi-pytest, mpiexec for each test",
        "none",
        (*_PYTEST, "test_mpi_pytest.py"),
        variables=(("PYTEST_PLUGINS", "pytest_mpi.plugin"),),  # the pytests it starts as well
        modules=("pytest_mpi", "mpi4py"),
        programs=("mpiexec",),
        packages=("mpi-pytest", "mpi4py"),
        caveat="does not run like this with the Open MPI of Debian and Ubuntu, says its README",
    ),
    Way(
        "mpi-pytest, pytest under mpiexec",
        "none",
        (*_MPIRUN, "-q", "-p", "xdist", "-p", "no:cacheprovider", "test_mpi_pytest.py"),
        variables=(("PYTEST_PLUGINS", "pytest_mpi.plugin"),),
        modules=("pytest_mpi", "mpi4py", "xdist"),  # asks whether xdist is in use
        programs=("mpirun",),
        base=1,
        more=50,
        has_own_ranks=False,
        is_quick=False,
        packages=("mpi-pytest", "mpi4py"),
    ),
    Way(
        "pytest-isolate-mpi",
        "none",
        (*_PYTEST[:3], "-v", "-p", "pytest_isolate_mpi._plugin", "test_isolate_mpi.py"),
        modules=("pytest_isolate_mpi", "mpi4py"),
        programs=("mpirun",),
        more=3,
        is_timed=False,
        packages=("pytest-isolate-mpi", "mpi4py"),
    ),
)
