"""`multihost run` has the backends and faults that tests in the same folder have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scripts import run_script

MESH = """
import os
from pytest_multihost.core.backends import Backend

def start(spec):
    os.environ["MESH"] = f"{spec.rank} of {spec.world.size}"

def pytest_multihost_backends():
    return [Backend(name="mesh", start=start, offered_by="this project")]
"""
LOSE = """
from pytest_multihost.faults.kind import FaultKind

def perform(strike):
    raise OSError("the lease is lost")

def pytest_multihost_faults():
    return [FaultKind(name="lose", perform=perform)]
"""
SHOW = "import os\nprint('mesh:', os.environ.get('MESH'))\n"
STORED = "import storage\nstorage.load()\n"
FAULT = "other('lose', rank=1, at=at.call('storage:load'))"


def test_a_backend_of_a_conftest_is_started_in_the_ranks(tmp_path: Path) -> None:
    """As in a test."""
    (tmp_path / "conftest.py").write_text(MESH)
    code, printed = run_script(tmp_path, SHOW, "--backend", "mesh", "train.py")
    assert code == 0
    assert sorted(printed.splitlines()) == ["[rank 0] mesh: 0 of 2", "[rank 1] mesh: 1 of 2"]


def test_a_fault_of_a_conftest_is_performed(tmp_path: Path) -> None:
    """As in a test; the line that runs it again names it."""
    (tmp_path / "conftest.py").write_text(LOSE)
    (tmp_path / "storage.py").write_text("def load():\n    return 1\n")
    code, printed = run_script(tmp_path, STORED, "--fault", FAULT, "train.py")
    assert code == 1
    assert "FAILED  rank 1: OSError: the lease is lost" in printed
    assert "replay    multihost run --ranks 2 --fault" in printed


def test_a_conftest_beside_the_script_counts(tmp_path: Path) -> None:
    """Though the command is given in another folder."""
    there = tmp_path / "jobs"
    there.mkdir()
    (there / "conftest.py").write_text(MESH)
    (there / "job.py").write_text(SHOW)
    code, printed = run_script(tmp_path, "", "--backend", "mesh", "jobs/job.py")
    assert (code, printed.count(" of 2")) == (0, 2)


def test_a_named_module_counts(tmp_path: Path) -> None:
    """-p, as for pytest; it is part of the line that runs the script again."""
    (tmp_path / "leases.py").write_text(LOSE)
    (tmp_path / "storage.py").write_text("def load():\n    return 1\n")
    args = ("-p", "leases", "--fault", FAULT, "train.py")
    code, printed = run_script(tmp_path, STORED, *args, PYTHONPATH=_path(tmp_path))
    assert code == 1
    assert "FAILED  rank 1: OSError: the lease is lost" in printed
    assert "replay    multihost run --ranks 2 -p leases --fault" in printed


def test_an_installed_plugin_counts(tmp_path: Path) -> None:
    """Also where it replaces what is built in, if its distribution requires this one."""
    site = tmp_path / "site"
    about = site / "mesh-1.dist-info"
    about.mkdir(parents=True)
    (site / "mesh.py").write_text(MESH.replace('"mesh"', '"none"'))
    (about / "entry_points.txt").write_text("[pytest11]\nmesh = mesh\n")
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: mesh\nVersion: 1\n"
        "Requires-Dist: pytest-multihost-hangs>=0.2\n"
    )
    code, printed = run_script(tmp_path, SHOW, PYTHONPATH=_path(site))
    assert (code, printed.count(" of 2")) == (0, 2)


def test_an_unknown_backend_is_told_as_in_a_test(tmp_path: Path) -> None:
    """With all that there are."""
    (tmp_path / "conftest.py").write_text(MESH)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.multihost(ranks=2, backend='moon')\ndef test_it(): pass\n"
    )
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:randomly", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    code, printed = run_script(tmp_path, "", "--backend", "moon", "train.py")
    happened, there_are = printed.removeprefix("multihost run: ").splitlines()
    assert code == 2
    assert happened == "unknown backend 'moon'"
    assert there_are.startswith("There are: mesh, ")
    assert ", none, " in there_are
    assert f"{happened}. {there_are.rstrip('.')}" in tested.stdout + tested.stderr


def test_a_conftest_that_has_nothing_to_offer_is_not_loaded(tmp_path: Path) -> None:
    """It may need what is not installed where jobs run."""
    (tmp_path / "conftest.py").write_text("import no_such_module\n")
    code, printed = run_script(tmp_path, "print('runs')\n")
    assert (code, printed.count("runs")) == (0, 2)


def test_a_plugin_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """With its file and the error, and no rank is started."""
    (tmp_path / "conftest.py").write_text("import no_such_module\n")
    code, printed = run_script(tmp_path, "", "--backend", "mesh", "train.py")
    assert code == 2
    assert "the plugins that pytest has here cannot be loaded" in printed
    assert f"{tmp_path / 'conftest.py'}: ModuleNotFoundError" in printed


def test_the_modules_of_the_script_come_before_those_of_a_conftest(tmp_path: Path) -> None:
    """The script imports what it would import without plugins."""
    there = tmp_path / "jobs"
    there.mkdir()
    (tmp_path / "conftest.py").write_text(MESH)
    (tmp_path / "settings.py").write_text("WHOSE = 'of the conftest'\n")
    (there / "settings.py").write_text("WHOSE = 'of the script'\n")
    (there / "job.py").write_text("import settings\nprint(settings.WHOSE)\n")
    code, printed = run_script(tmp_path, "", "--backend", "mesh", "jobs/job.py")
    assert (code, printed.count("of the script")) == (0, 2)


def test_variables_that_a_conftest_sets_are_not_those_of_a_script_without_it(
    tmp_path: Path,
) -> None:
    """Its ranks need nothing of that file, though it is read to know that."""
    (tmp_path / "conftest.py").write_text(f"{MESH}\nos.environ['MESH'] = 'set for tests'\n")
    code, printed = run_script(tmp_path, SHOW)
    assert (code, printed.count("mesh: None")) == (0, 2)


def test_a_subcommand_of_a_conftest_is_run(tmp_path: Path) -> None:
    """With the options that it has declared, and the hooks of all plugins."""
    (tmp_path / "conftest.py").write_text(
        MESH
        + """
def pytest_multihost_commands(commands):
    parser = commands.add_parser("offers")
    parser.add_argument("name")
    parser.set_defaults(act=offers)

def offers(options, hook):
    found = [each.name for group in hook.pytest_multihost_backends() for each in group]
    print(options.name, options.name in found)
    return 7
"""
    )
    command = [sys.executable, "-m", "pytest_multihost.core.command.main", "offers", "mesh"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout) == (7, "mesh True\n")


@pytest.mark.parametrize("name", ["PYTEST_PLUGINS", "PYTEST_ADDOPTS"])
def test_a_plugin_that_the_environment_names_counts(tmp_path: Path, name: str) -> None:
    """As for pytest."""
    (tmp_path / "mesh.py").write_text(MESH.replace('"mesh"', '"none"'))
    value = "-p mesh" if name == "PYTEST_ADDOPTS" else "mesh"
    variables = {"PYTHONPATH": _path(tmp_path), name: value}
    code, printed = run_script(tmp_path, SHOW, **variables)
    assert (code, printed.count(" of 2")) == (0, 2)


def test_a_plugin_that_a_configuration_file_names_counts(tmp_path: Path) -> None:
    """As for pytest."""
    (tmp_path / "mesh.py").write_text(MESH.replace('"mesh"', '"none"'))
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p mesh\n")
    code, printed = run_script(tmp_path, SHOW, PYTHONPATH=_path(tmp_path))
    assert (code, printed.count(" of 2")) == (0, 2)


def _path(folder: Path) -> str:
    """Return PYTHONPATH with one more folder."""
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH", ""))))


OWN_COMMAND = """
import pathlib
pathlib.Path("loaded").touch()

def pytest_multihost_commands(commands):
    commands.add_parser("leases").set_defaults(act=lambda options, hook: 7)
"""


def multihost(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the console script in a folder."""
    command = [sys.executable, "-P", "-m", "pytest_multihost.core.command.main", *args]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=100
    )


@pytest.mark.parametrize("typed", ["atach", "lease", "xyz"])
def test_an_unknown_command_loads_nothing_of_the_folder(tmp_path: Path, typed: str) -> None:
    """It may be typed in a folder of others, and as root: no conftest.py, module or ini file."""
    for name in ("conftest.py", "test/conftest.py", "named.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(OWN_COMMAND)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p named\n")
    done = multihost(tmp_path, typed)
    assert done.returncode == 2
    assert f"invalid choice: '{typed}'" in done.stderr
    assert not (tmp_path / "loaded").exists()


@pytest.mark.parametrize("writes", ["conftest.py", "."])
def test_plugins_that_another_user_may_have_written_are_not_loaded(
    tmp_path: Path, writes: str
) -> None:
    """The command is one of the project, and all users may write there."""
    (tmp_path / "conftest.py").write_text(OWN_COMMAND)
    (tmp_path / writes).chmod(0o777)
    done = multihost(tmp_path, "leases")
    assert done.returncode == 2
    assert "may be written by all users" in done.stderr
    assert not (tmp_path / "loaded").exists()


def test_a_command_of_the_project_is_found(tmp_path: Path) -> None:
    """In a folder of one's own, as documented."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["leasing"]\n')
    (tmp_path / "leasing.py").write_text(OWN_COMMAND)
    assert multihost(tmp_path, "leases").returncode == 7
