"""Rules of the house that no linter knows."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import pytest_multihost

ROOM = Path(pytest_multihost.__file__).parent
MODULES = sorted(ROOM.rglob("*.py"))
FACES = [path for path in MODULES if path.name == "__init__.py" and path.parent != ROOM]
ARCHITECTURE = ROOM.parent.joinpath("ARCHITECTURE.md").read_text(encoding="utf-8")
HEAVY = {"jax", "jaxlib", "numpy", "torch"}
MAX_MODULES = 15
MEDIAN_LINES = 9
MOST_LINES = 25
MAX_ANY = 140
MAX_NAMES = 8


def full_name(path: Path) -> str:
    """Return the name by which a module is imported."""
    return ".".join(path.relative_to(ROOM.parent).with_suffix("").parts).removesuffix(".__init__")


NAMES = {full_name(path) for path in MODULES}
PACKAGES = {full_name(path) for path in MODULES if path.name == "__init__.py"}
# Values that everything speaks of, and modules that users import by their names.
WITHOUT_FACE = {"pytest_multihost", "pytest_multihost.core.model", "pytest_multihost.fixes"}
# Single modules that others may import: a second subject of their folder, complete in one module.
FACES_OF_THEIR_OWN = {
    f"pytest_multihost.{name}"
    for name in (
        "blame.divergence",
        "blame.inferred",
        "launch.docker",
        "launch.job_spec",
        "launch.launcher_env",
        "launch.libc",
        "launch.reaper",
        "launch.wire",
        "live.joined",
        "live.processes",
        "nemesis.interpose",
        "nemesis.object_store",
        "nemesis.targets",
        "outcome.finding",
        "outcome.points",
        "outcome.rank_facts",
        "proof.blockers",
        "proof.proof_state",
        "proof.threads",
        "rank.agent",
        "rank.recorder.calls",
        "report.artifacts",
        "report.hazards",
        "report.sweep",
        "report.sweep_words",
        "report.text",
        "slots.rank_files",
        "slots.readers",
        "sweep.families.family",
        "sweep.judge",
        "sweep.mendings",
        "sweep.plan",
        "sweep.rest",
        "sweep.weaknesses",
        "watch.clock_jumps",
        "watch.kernel.stack_words",
        "watch.probes.deep_probe",
        "watch.probes.dump",
        "watch.remote_ranks",
    )
}


def imported_with(module: str) -> set[str]:
    """Return the top-level names of everything that a fresh interpreter imports with a module."""
    program = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_us_imports_neither_pytest_nor_a_runtime() -> None:
    """A program under test may use current_world() in production; it pays nothing for it.

    All that can be imported without a runtime and without pytest is asked for at once: what one of
    them pulls in would show.
    """
    fixes = [f"pytest_multihost.fixes.{path.stem}" for path in (ROOM / "fixes").glob("[a-z]*")]
    everything = ", ".join(("pytest_multihost.testing", "pytest_multihost.core.engine", *fixes))
    found = imported_with(everything)
    assert "pytest_multihost" in found
    assert not found & (HEAVY | {"pytest", "_pytest"})


def test_loading_the_plugin_imports_no_runtime() -> None:
    """Every run of pytest loads it, also those without a multihost test."""
    found = imported_with("pytest_multihost.core.pytest_plugin.entry")
    assert "pytest" in found
    assert not found & HEAVY
    assert "jinja2" not in found


def test_loading_the_plugin_imports_no_rule_and_nothing_that_sweeps() -> None:
    """Its options name the families of disturbances; what plans them is for those who sweep."""
    program = "import sys, pytest_multihost.core.pytest_plugin.entry; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    rooms = ("pytest_multihost.extensions.sweep", "pytest_multihost.extensions.hazards")
    found = {name for name in done.stdout.split() if name.startswith(rooms)}
    assert found == {
        "pytest_multihost.extensions.sweep",
        "pytest_multihost.extensions.sweep.families",
    }


def test_a_folder_holds_few_enough_modules_to_know_them_all() -> None:
    """A larger one has a second subject."""
    found = Counter(str(path.parent.relative_to(ROOM)) for path in MODULES)
    assert {folder: count for folder, count in found.items() if count > MAX_MODULES} == {}


def test_functions_are_short() -> None:
    """Half of them fit a glance, and nearly all a screen; signature and docstring count."""
    lengths = sorted(
        node.end_lineno - node.lineno + 1
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno
    )
    assert lengths[len(lengths) // 2] <= MEDIAN_LINES
    assert lengths[len(lengths) * 9 // 10] <= MOST_LINES


def test_few_values_may_be_anything() -> None:
    """`Any` is for JSON and for what torch, jax and pytest do not let the type checker see.

    Where such a thing has a name of its own, as in `ProcessGroup = Any`, that name counts once.
    """
    names = (
        node.id
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name)
    )
    assert Counter(names)["Any"] < MAX_ANY


@pytest.mark.parametrize("path", FACES, ids=lambda path: str(path.parent.relative_to(ROOM)))
def test_a_face_is_small(path: Path) -> None:
    """What a sub-package exports is what others have to know of it."""
    bodies = ast.parse(path.read_text(encoding="utf-8")).body
    names = [
        ast.literal_eval(node.value)
        for node in bodies
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert all(len(each) <= MAX_NAMES for each in names)


def exported(module: str) -> set[str]:
    """Return what a sub-package's face exports; the name of a function may be a module's, too."""
    path = ROOM.parent.joinpath(*module.split("."), "__init__.py")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lists = (node for node in ast.parse(text).body if isinstance(node, ast.Assign))
    return {
        name
        for node in lists
        if ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    }


def imported_modules(path: Path) -> Iterator[str]:
    """Yield the full names of the package's modules and sub-packages that a module imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in NAMES)
        elif isinstance(node, ast.ImportFrom) and node.module in NAMES:
            names = {each.name for each in node.names} - exported(node.module)
            yield from {f"{node.module}.{each}" for each in names} & NAMES or {node.module}


def reaches_past(importer: str, imported: str) -> bool:
    """Whether `imported` is inside a sub-package that `importer` is not in, and not its face."""
    room = imported.rpartition(".")[0]
    is_inside = importer == room or importer.startswith(f"{room}.")
    is_face = imported in PACKAGES | FACES_OF_THEIR_OWN or room in WITHOUT_FACE
    return not (is_inside or is_face)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOM)))
def test_a_module_imports_others_by_their_faces(path: Path) -> None:
    """What is inside a sub-package can then be moved and renamed without looking outside."""
    name = full_name(path)
    assert [each for each in imported_modules(path) if reaches_past(name, each)] == []


@pytest.mark.parametrize("path", MODULES[1:], ids=lambda path: str(path.relative_to(ROOM)))
def test_a_module_is_named_where_a_reader_looks_for_it(path: Path) -> None:
    """In the docstring of its folder, or in ARCHITECTURE.md."""
    face = (path.parent.parent if path.stem == "__init__" else path.parent) / "__init__.py"
    name = path.parent.name if path.stem == "__init__" else path.stem
    docstring = ast.get_docstring(ast.parse(face.read_text(encoding="utf-8"))) or ""
    assert f"`{name}`" in docstring or f"{name}/" in ARCHITECTURE or f"`{name}`" in ARCHITECTURE


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOM)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    """In its first line, which ends like a sentence."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert docstring
    assert docstring.splitlines()[0].endswith((".", ":", "?"))


@pytest.mark.parametrize("name", pytest_multihost.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    """Itself, and what a user finds on it."""
    public = getattr(pytest_multihost, name)
    assert inspect.getdoc(public)
    for attribute, value in vars(public).items() if inspect.isclass(public) else ():
        if not attribute.startswith("_") and (callable(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{attribute}"


def test_public_names_are_those_that_are_announced() -> None:
    """Nothing that `import *` misses, and no module of ours by accident."""
    found = {
        name
        for name, value in vars(pytest_multihost).items()
        if not name.startswith("_") and not inspect.ismodule(value) and name != "TYPE_CHECKING"
    }
    found |= {"World", "current_world", "operation"}  # imported when they are asked for
    assert found == set(pytest_multihost.__all__)
    assert sorted(pytest_multihost.__all__) == pytest_multihost.__all__
