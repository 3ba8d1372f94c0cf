"""What a sweep takes for data of the test's own."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_multihost.extensions.sweep.marker import data_functions, thread_classes

pytestmark = pytest.mark.unit

SOURCE = """
import contextlib, threading
def train_batches():
    yield 1
def load_dataset():
    yield 2
def stages():
    yield 3
def metadata_of():
    yield 4
def batch_size():
    return 5
@contextlib.contextmanager
def open_loader():
    yield 6
alias = None
class TokenStream:
    def __iter__(self): return self
    def __next__(self): return 7
class Retries:
    def __iter__(self): return self
    def __next__(self): return 8
class DataHolder:
    data = 9
class Writer(threading.Thread):
    def run(self): pass
class Named(threading.Thread):
    pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A user's module."""
    (tmp_path / "module_of_the_user.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("module_of_the_user")
    del sys.modules["module_of_the_user"]


def test_generator_functions_that_are_called_data_are_taken_for_data(module: ModuleType) -> None:
    """Others yield steps of a program, or what a `with` opens."""
    assert list(data_functions(module)) == [
        "module_of_the_user:train_batches",
        "module_of_the_user:load_dataset",
        "module_of_the_user:TokenStream",
    ]


def test_data_functions_may_be_imported_by_name(module: ModuleType) -> None:
    """They are named by the module that has them; those of libraries are the libraries' affair."""
    test = ModuleType("test_of_the_user")
    vars(test).update(
        train_batches=vars(module)["train_batches"],
        batched=itertools.chain,
        open=contextlib.suppress,
    )
    assert list(data_functions(test)) == ["module_of_the_user:train_batches"]


def test_what_cannot_be_found_by_its_name_is_no_data(module: ModuleType) -> None:
    """Its calls could not be replaced."""
    vars(module)["alias"] = vars(module).pop("train_batches")
    assert "module_of_the_user:train_batches" not in data_functions(module)


def test_threads_of_the_user_are_found_by_their_classes(module: ModuleType) -> None:
    """A class without a `run` of its own runs that of `Thread`, which is held anyway."""
    found = thread_classes()
    assert f"{module.__name__}:Writer.run" in found
    assert f"{module.__name__}:Named.run" not in found
