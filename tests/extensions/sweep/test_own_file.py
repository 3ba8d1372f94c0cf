"""A script imports files of the project alone, however a sweep.json names others."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

from pytest_multihost.extensions.sweep.reproduce.own_file import check_own_module, file_of_test
from pytest_multihost.extensions.sweep.reproduce.shims import shim_of
from pytest_multihost.testing import Fault, MultihostError, Point

pytestmark = pytest.mark.unit

CODE = "__import__('os').system('touch /tmp/owned')"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with tests, artifacts of its own, and a file outside."""
    root = tmp_path / "project"
    for folder in ("tests/deep", ".pytest_multihost/run/attempt", "downloaded/run/attempt"):
        (root / folder).mkdir(parents=True)
    (root / "pytest.ini").touch()
    (root / "downloaded/.made-by-pytest-multihost").touch()
    for name in (
        *("tests/test_a.py", "tests/deep/test_b.py", "test_c.py", "downloaded/run/attempt/evil.py"),
        *(".pytest_multihost/run/attempt/evil.py", "../outside.py", "tests/log.txt"),
    ):
        (root / name).write_text("def test_save(world): pass\n")
    (root / "tests/link.py").symlink_to(root / "downloaded/run/attempt/evil.py")
    (root / "linked").symlink_to(root / "downloaded/run")
    return root


@pytest.mark.parametrize("name", ["tests/test_a.py", "tests/deep/test_b.py", "test_c.py"])
def test_a_test_of_the_project_is_found(project: Path, name: str) -> None:
    """From the root, and from a folder below it, as pytest's node ids begin at the root."""
    artifacts = project / ".pytest_multihost"
    assert file_of_test(f"{name}::test_save[a/b]", project, artifacts) == Path(name)
    below = file_of_test(f"{name}::test_save", project / "tests", artifacts)
    assert (project / "tests" / below).resolve() == project / name


@pytest.mark.parametrize(
    "name",
    [
        "../outside.py",
        "tests/../../outside.py",
        "/etc/passwd.py",
        "./test_c.py",
        "tests//test_a.py",
        "downloaded/run/attempt/evil.py",
        ".pytest_multihost/run/attempt/evil.py",
        "tests/link.py",
        "linked/attempt/evil.py",
        "tests/log.txt",
        "tests/missing.py",
        "tests",
        "",
        "a\0.py",
    ],
)
def test_no_other_file_is_imported(project: Path, name: str) -> None:
    """Neither one that came with artifacts, nor one outside, nor what a link leads to."""
    with pytest.raises(MultihostError, match="not of this project"):
        file_of_test(f"{name}::test_save", project, project / "downloaded")


def test_artifacts_that_are_not_marked_are_named_by_the_command(project: Path) -> None:
    """Whatever --artifacts names, its files are not imported."""
    (project / "downloaded/.made-by-pytest-multihost").unlink()
    with pytest.raises(MultihostError, match="a file of the artifacts"):
        file_of_test("downloaded/run/attempt/evil.py::test_save", project, project / "downloaded")


@pytest.mark.parametrize("module", ["train", "math", "tests.test_a", "torch.utils.data"])
def test_modules_of_the_project_and_of_packages_may_be_named(project: Path, module: str) -> None:
    """They are what a test of the project imports, too."""
    check_own_module(module, [project], project / "downloaded")


@pytest.mark.parametrize(
    "module", ["downloaded.run.attempt.evil", "linked.attempt.evil", "tests.link", "a b", "x;y", ""]
)
def test_other_modules_may_not_be_named(project: Path, module: str) -> None:
    """A folder without an __init__.py can be imported from, too."""
    with pytest.raises(MultihostError, match="not of this project"):
        check_own_module(module, [project], project / "downloaded")


FAULTS = [
    Fault("fails", (0,), Point("io", "*/a", call="open"), {"error": "EIO"}),
    Fault("fails", (0,), Point("io", "*/a", call="write"), {"error": "ENOSPC"}),
    Fault("hold", (1,), Point("collective", "barrier"), {"until": "others-wait", "min_s": 1.0}),
    Fault("raise_at", (1,), Point("collective", "barrier"), {"error": "OSError", "message": "m"}),
    Fault("kill", (1,), Point("io", "*/a", call="rename"), {"signal": "SIGKILL"}),
    Fault("clock_skew", (1,), Point("start"), {"seconds": 7200.0}),
    Fault("elapsed_time", (1,), Point("start"), {"seconds": 86400.0, "read": 3}),
    Fault("hash_seed", (1,), Point("start"), {"seed": 2}),
    Fault("returns", (1,), Point("call", "train:loss", when="after"), {"value": 3.0}),
    Fault("returns", (1,), Point("call", "train:loss", when="after"), {"value": "text"}),
    Fault("short_data", (0,), Point("batch", "train:Loader", nth=3)),
    Fault("empty_data", (0,), Point("batch", "train:load")),
    Fault("shuffled_listing", (0,), Point("start"), {"path": "*/steps"}),
    Fault("stale_files", (0,), Point("start"), {"path": "*/steps", "seconds": 5.0}),
]
HOSTILE = [
    CODE,
    f"EIO if {CODE} else 0",
    f"1' if {CODE} else '2",
    f"'+{CODE}+'",
    f"a\n{CODE}\n",
    [CODE],
]


def variants() -> list[Fault]:
    """Faults of which one value is code."""
    found = []
    for fault in FAULTS:
        for text in HOSTILE:
            found += [
                dataclasses.replace(fault, params={**fault.params, name: text})
                for name in (*fault.params, "extra")
            ]
            found += [
                dataclasses.replace(fault, at=dataclasses.replace(fault.at, **{name: text}))
                for name in ("name", "call", "nth", "when", "onwards")
            ]
    return found


@pytest.mark.parametrize("backend", ["gloo", "jax", "none"])
def test_texts_of_a_file_stay_texts_in_the_script(backend: str) -> None:
    """A value that is no name, number or quoted text is refused."""
    taken = 0
    for fault in variants():
        try:
            shim = shim_of(fault, backend)
        except MultihostError:
            continue
        taken += 1
        lines = ["if True:", *(f"    {each}" for each in (*shim.lines, *shim.before_test, "pass"))]
        tree = ast.parse("\n".join(lines))
        assert all(each.isidentifier() for each in shim.own.split(".") if shim.own)
        names = {e.id for e in ast.walk(tree) if isinstance(e, ast.Name)}
        assert "__import__" not in names
    assert taken, "texts that may be any, such as a path, are taken"


def test_honest_faults_become_scripts() -> None:
    """Each of these is taken as it is."""
    for fault in FAULTS:
        assert shim_of(fault, "gloo")
