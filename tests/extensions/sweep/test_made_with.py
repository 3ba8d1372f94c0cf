"""Results of an earlier sweep are taken over only if nothing that they depend on has changed."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_multihost.extensions.sweep.made_with.code import Project, file_digest, read_code
from pytest_multihost.extensions.sweep.made_with.comparison import combined, differences
from pytest_multihost.extensions.sweep.made_with.in_rank import PROGRAMS
from pytest_multihost.extensions.sweep.made_with.settings import digest_of
from pytest_multihost.extensions.sweep.record import read_sweep
from pytest_multihost.extensions.sweep.result import MadeWith, SweepResult

BEFORE = MadeWith(
    code={"test_a.py": "1", "storage.py": "2", "recovery.py": "3"},
    packages={"torch": "2.13.0", "numpy": "2.4.6"},
    settings={"the world's size": "2"},
)
UNDISTURBED = replace(BEFORE, code={"test_a.py": "1", "storage.py": "2"})
"""The run that begins the next sweep: it does not meet the error that loads recovery.py."""


def reasons(now: MadeWith, before: MadeWith | None = BEFORE, **files: str) -> list[str]:
    """Return what differs, with the digests of files that the undisturbed run has not loaded."""
    on_disk: Mapping[str, str] = {"recovery": "3", **files}
    return differences(before, now, lambda name: on_disk.get(name.removesuffix(".py"), ""))


def test_equal_code_and_settings_do_not_differ() -> None:
    """Also if a disturbed run has loaded a file, and another package is loaded by chance."""
    assert reasons(UNDISTURBED) == []
    assert reasons(replace(UNDISTURBED, packages={"torch": "2.13.0", "rich": "1"})) == []


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (replace(UNDISTURBED, code={"test_a.py": "9", "storage.py": "2"}), "test_a.py has changed"),
        (replace(UNDISTURBED, code={**UNDISTURBED.code, "conftest.py": "1"}), "conftest.py is new"),
        (
            replace(UNDISTURBED, packages={"torch": "2.14.0"}),
            "torch is now 2.14.0, not 2.13.0",
        ),
        (replace(UNDISTURBED, settings={}), "the world's size has changed"),
        (
            replace(UNDISTURBED, settings={**BEFORE.settings, "the variable MODE": "1"}),
            "the variable MODE has changed",
        ),
        (
            replace(UNDISTURBED, changed=("storage.py",)),
            "storage.py has changed since pytest began",
        ),
    ],
)
def test_each_difference_is_named(now: MadeWith, said: str) -> None:
    """By the name of the file, the package or the setting."""
    assert reasons(now) == [said]


def test_a_file_that_only_disturbed_runs_load_counts() -> None:
    """The undisturbed run says nothing about it, so it is read."""
    assert reasons(UNDISTURBED, recovery="4") == ["recovery.py has changed"]
    assert reasons(UNDISTURBED, recovery="") == ["recovery.py is gone"]


def test_a_sweep_that_did_not_record_its_code_does_not_count() -> None:
    """An older version of this plugin has written it."""
    assert len(reasons(UNDISTURBED, None)) == 1


def test_a_file_that_changes_during_a_sweep_makes_its_results_useless() -> None:
    """Nobody knows which run has met the old content."""
    made = combined(replace(BEFORE, code={**BEFORE.code, "storage.py": "5"}), BEFORE)
    assert reasons(UNDISTURBED, made)[0] == "storage.py changed during that sweep"


# Reading files


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project with two tests, of which the first is swept."""
    root = tmp_path / "project"
    root.mkdir()
    for name in ("test_a.py", "test_b.py", "storage.py", "conftest.py"):
        (root / name).write_text(f"# {name[0]}")
    return Project(
        root=root,
        own=root / "test_a.py",
        test_files=("test_*.py",),
        plugins=frozenset({str(root / "conftest.py")}),
        temporary=tmp_path / "temporary",
        began_s=time.time() + 1,
    )


def used_by(project: Project) -> set[str]:
    """Return all files of a project, as a server that has collected all of them."""
    return {str(each) for each in project.root.iterdir()}


def test_the_file_of_another_test_does_not_count(project: Project) -> None:
    """A server holds it, because it has collected all tests."""
    assert set(read_code(used_by(project), project).digests) == {
        "test_a.py",
        "storage.py",
        "conftest.py",
    }


def test_the_file_of_another_test_counts_if_a_counted_file_names_it(project: Project) -> None:
    """The test may import it, also through another test."""
    (project.root / "test_c.py").write_text("import test_b")
    (project.root / "storage.py").write_text("from test_c import save")
    assert {"test_b.py", "test_c.py"} <= set(read_code(used_by(project), project).digests)


def test_a_file_that_has_changed_since_pytest_began_is_told_apart(project: Project) -> None:
    """The rank may have loaded its former content."""
    code = read_code(used_by(project), replace(project, began_s=0.0))
    assert code.changed == ("conftest.py", "storage.py", "test_a.py")


def test_a_file_that_the_run_has_made_does_not_count(project: Project) -> None:
    """A test may write code into its tmp_path and load it."""
    project.temporary.mkdir()
    made = project.temporary / "made.py"
    made.write_text("")
    assert read_code([str(made)], project).digests == {}


def test_an_installed_package_counts_by_its_version(project: Project) -> None:
    """As long as its file is as it was installed."""
    assert read_code([pytest.__file__], project).packages == {"pytest": pytest.__version__}
    assert read_code([pytest.__file__], project).digests == {}


def test_an_edited_file_of_a_package_counts_by_its_content(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its version does not tell the edit."""
    site = tmp_path / "site-packages"
    (site / "edited-1.0.dist-info").mkdir(parents=True)
    (site / "edited.py").write_text("FIXED = True")
    (site / "edited-1.0.dist-info" / "RECORD").write_text("edited.py,sha256=abc,3\n")
    monkeypatch.syspath_prepend(site)
    read_code.__globals__["_installed"].cache_clear()
    found = read_code([str(site / "edited.py")], project)
    read_code.__globals__["_installed"].cache_clear()
    assert found.packages == {}
    assert [*found.digests.values()] == [file_digest(site / "edited.py")]


def test_all_sources_count_if_a_rank_starts_another_program(project: Project) -> None:
    """Nobody records what that program loads."""
    (project.root / "package").mkdir()
    (project.root / "package" / "job.py").write_text("")
    assert "package/job.py" in read_code([PROGRAMS], project).digests
    assert "package/job.py" not in read_code([], project).digests


# Real sweeps

SOURCE = """
import pytest, storage

@pytest.mark.multihost(ranks=2, timeout=30)
def test_robust(world, shared_tmp_path, name):
    import lazy
    if world.rank == 0:
        try:
            storage.commit(shared_tmp_path / name)
        except OSError:
            import recovery
    world.barrier("end")
"""
FILES = {
    "storage": "import deeper\ndef commit(path):\n    deeper.write(path)\n",
    "deeper": "def write(path):\n    path.write_text('weights')\n",
    "lazy": "VALUE = 1\n",
    "recovery": "VALUE = 1\n",
    "conftest": "import pytest\n@pytest.fixture\ndef name():\n    return 'part'\n",
    "bystander": "",
}
SWEEP = "--multihost-sweep=fails"


def swept(path: Path) -> SweepResult:
    """Return the newest sweep of a project."""
    return read_sweep(max(path.glob(".pytest_multihost/*/*/sweep.json")))


def test_a_changed_file_that_the_test_uses_is_noticed(run_worlds, pytester) -> None:
    """Imported, imported by an import, in the test's body, or after an error; and a conftest.py."""
    pytester.makepyfile(**FILES)
    first = run_worlds(SOURCE, SWEEP).run
    first.assert_outcomes(passed=1)
    count = len(swept(pytester.path).runs)
    assert count > 0
    same = run_worlds(SOURCE, SWEEP, "--multihost-sweep-continue").run
    same.stdout.fnmatch_lines([f"*{count} result* of an earlier sweep*"])
    assert "for lack of time" not in same.stdout.str()
    for name in ("storage", "deeper", "lazy", "recovery", "conftest"):
        pytester.makepyfile(**{name: FILES[name] + "# changed"})
        run = run_worlds(SOURCE, SWEEP, "--multihost-sweep-continue").run
        run.stdout.fnmatch_lines(
            [f"*of an earlier sweep w* not used because {name}.py has changed"]
        )
        earlier = swept(pytester.path).earlier
        assert earlier is not None
        assert (earlier.used, earlier.unused) == (0, count)


def test_a_file_that_the_test_does_not_use_is_not_compared(run_worlds, pytester) -> None:
    """Neither is the file of another test of the same run."""
    pytester.makepyfile(**FILES, test_other="def test_other():\n    pass\n")
    run_worlds(SOURCE, SWEEP)
    pytester.makepyfile(bystander="# changed", test_other="def test_other():\n    assert True\n")
    run_worlds(SOURCE, SWEEP, "--multihost-sweep-continue")
    earlier = swept(pytester.path).earlier
    assert earlier is not None
    assert earlier.reason is None
    assert earlier.used > 0


def test_other_options_and_variables_are_noticed(run_worlds, pytester, monkeypatch) -> None:
    """The budget is none of them: more time is why a sweep is continued."""
    pytester.makepyfile(**FILES)
    run_worlds(SOURCE, SWEEP)
    run_worlds(SOURCE, SWEEP, "--multihost-sweep-continue", "--multihost-sweep-budget=50", "-x")
    assert getattr(swept(pytester.path).earlier, "reason", "") is None
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    run_worlds(SOURCE, SWEEP, "--multihost-sweep-continue", "-W", "error::UserWarning")
    earlier = swept(pytester.path).earlier
    assert earlier is not None
    assert earlier.reason == (
        "pytest's option pythonwarnings has changed and the variable OMP_NUM_THREADS has changed"
    )


def test_a_sweep_made_by_an_older_version_is_not_used(run_worlds, pytester) -> None:
    """Its sweep.json does not say with which code it was made."""
    pytester.makepyfile(**FILES)
    run_worlds(SOURCE, SWEEP)
    path = next(pytester.path.glob(".pytest_multihost/*/*/sweep.json"))
    record = json.loads(path.read_text())
    del record["made_with"]
    path.write_text(json.dumps(record))
    run = run_worlds(SOURCE, SWEEP, "--multihost-sweep-continue").run
    run.stdout.fnmatch_lines(["*not used because an older version of pytest-multihost-hangs*"])


SETTINGS = {"pytest's option db_password": "hunter2", "the variable TORCH_HUB_TOKEN": "tok-en"}


@pytest.mark.parametrize("name", [*SETTINGS, "the variable A of env=", "the world's roles"])
def test_a_setting_is_kept_as_a_digest(name: str) -> None:
    """sweep.json is uploaded by CI systems; equality is all that is needed of these."""
    digest = digest_of(name, "hunter2")
    assert "hunter2" not in digest
    assert digest == digest_of(name, "hunter2")
    assert digest != digest_of(name, "hunter3")


def test_a_digest_does_not_confirm_a_guess() -> None:
    """It is so short that of many words some have the same."""
    found = {digest_of("pytest's option p", f"guess {number}") for number in range(60_000)}
    assert len(found) < 60_000
