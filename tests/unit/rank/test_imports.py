"""Acting on a module after its import."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_multihost.core.rank.recorder.imports import after_import

NAME = "imported_later"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The source of a module that can be imported, and has not been."""
    monkeypatch.syspath_prepend(tmp_path)
    finders = list(sys.meta_path)
    file = tmp_path / f"{NAME}.py"
    file.write_text("value = 1\n")
    yield file
    sys.modules.pop(NAME, None)
    sys.meta_path[:] = finders


def test_a_module_that_comes_later_is_handed_over_complete(file: Path) -> None:
    """Whoever patches it finds everything there is to patch."""
    seen: list[int] = []
    after_import(NAME, lambda module: seen.append(module.value))
    assert seen == []
    importlib.import_module(NAME)
    importlib.import_module(NAME)
    assert seen == [1]


def test_a_module_that_is_there_is_handed_over_at_once(file: Path) -> None:
    """A forked rank has what its server has imported."""
    module = importlib.import_module(NAME)
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    assert seen == [module]


def test_asking_whether_a_module_exists_does_not_count(file: Path) -> None:
    """Libraries look for torch and jax so, and import them only when they need them."""
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    assert importlib.util.find_spec(NAME) is not None
    assert seen == []
    module = importlib.import_module(NAME)
    assert seen == [module]


def test_a_module_is_what_it_is_without_us(file: Path) -> None:
    """Its loader is asked for sources and resources, and must be the usual one."""
    usual = importlib.import_module(NAME)
    del sys.modules[NAME]
    after_import(NAME, lambda _: None)
    watched = importlib.import_module(NAME)
    assert type(watched.__loader__) is type(usual.__loader__)
    assert vars(watched.__loader__) == vars(usual.__loader__)
    assert watched.__spec__ == usual.__spec__


def test_an_error_of_ours_is_no_error_of_the_import(file: Path) -> None:
    """Nor does it keep others from hearing of it."""
    seen: list[ModuleType] = []
    after_import(NAME, lambda module: module.is_not_there)
    after_import(NAME, seen.append)
    assert importlib.import_module(NAME).value == 1
    assert len(seen) == 1


def test_a_failed_import_fails_as_ever_and_can_be_repeated(file: Path) -> None:
    """What could not be imported is not handed over; what can be in the end, is."""
    file.write_text("import no_such_module_anywhere\n")
    seen: list[ModuleType] = []
    after_import(NAME, seen.append)
    with pytest.raises(ModuleNotFoundError, match="no_such_module_anywhere"):
        importlib.import_module(NAME)
    assert seen == []
    file.write_text("value = 22\n")  # another size: not taken for the same source
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert [module.value for module in seen] == [22]


def test_a_module_that_does_not_exist_is_as_missing_as_ever() -> None:
    """The usual error, with the usual text."""
    after_import("no_such_module_anywhere", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'no_such_module_anywhere'$"):
        importlib.import_module("no_such_module_anywhere")


def test_recorders_import_no_runtime() -> None:
    """A world of another backend pays nothing for jax and torch."""
    code = "from pytest_multihost.core.rank.recorder import jax; import sys; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"jax", "jaxlib", "torch", "numpy"} & {*run.stdout.split()}
