"""Whose code a frame is, and how its file is called."""

from __future__ import annotations

import json
import sysconfig
import threading
from pathlib import Path

import pytest

import pytest_multihost
from pytest_multihost.core.model.stack import (
    Frame,
    innermost_package_frame,
    innermost_user_frame,
    is_library,
    relative_to,
    short_path,
)

OURS = str(Path(pytest_multihost.__file__).parent)
SITE = "/opt/venv/lib/python3.11/site-packages"
STDLIB = sysconfig.get_path("stdlib")


@pytest.mark.parametrize(
    "file",
    [
        threading.__file__,
        json.decoder.__file__,
        f"{SITE}/torch/distributed/distributed_c10d.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "<frozen importlib._bootstrap>",
        "<string>",
        f"{OURS}/core/rank/world.py",
    ],
)
def test_a_library_is_not_the_users_code(file: str) -> None:
    """Neither Python, nor what is installed, nor what has no file, nor ourselves."""
    assert is_library(file)


@pytest.mark.parametrize(
    "file",
    [
        "/home/u/project/test_it.py",
        "test_it.py",
        "/home/u/site-packages-of-mine/test_it.py",
        str(Path(OURS).parent / "tests" / "unit" / "model" / "test_frames.py"),
    ],
)
def test_the_users_code_is_not_a_library(file: str) -> None:
    """Wherever it lies, as long as it is not installed."""
    assert not is_library(file)


@pytest.mark.parametrize("file", [f"{OURS}_examples/test_it.py", f"{STDLIB}-mine/test_it.py"])
def test_a_neighbour_with_a_longer_name_is_not_a_library(file: str) -> None:
    """A directory is left only at a slash."""
    assert not is_library(file)


def test_the_innermost_frame_of_the_user_is_found() -> None:
    """The first that is not a library's; frames come innermost first."""
    wait = Frame(threading.__file__, 324, "wait")
    restore, test = Frame("restore.py", 88, "restore"), Frame("test_it.py", 3, "test_it")
    assert innermost_user_frame([wait, restore, test]) == restore
    assert innermost_user_frame([wait]) is None


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("/home/u/project/tests/test_it.py", "tests/test_it.py"),
        ("/home/u/other/test_it.py", "/home/u/other/test_it.py"),
        ("/home/u/project-2/test_it.py", "/home/u/project-2/test_it.py"),
        (f"{SITE}/torch/distributed/c10d.py", "torch/distributed/c10d.py"),
        ("/home/u/project/.venv/lib/python3.11/site-packages/jax/api.py", "jax/api.py"),
        (f"{OURS}/core/rank/world.py", "pytest_multihost/core/rank/world.py"),
        (threading.__file__, "threading.py"),
        ("<string>", "<string>"),
    ],
)
def test_a_file_is_called_what_the_reader_calls_it(file: str, name: str) -> None:
    """Below rootdir, by its package, or by its bare name in Python's library."""
    assert short_path("/home/u/project", file) == name


def test_a_file_outside_of_the_root_keeps_its_name() -> None:
    """A chain of ".." would help nobody."""
    assert relative_to("/home/u/project", "/srv/x.py") == "/srv/x.py"
    assert relative_to("/home/u/project", "/home/u/project/a/b.py") == "a/b.py"


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ([threading.__file__, f"{OURS}/at.py", f"{SITE}/orbax/save.py", "test_it.py"], 2),
        ([threading.__file__, "test_it.py", f"{SITE}/_pytest/python.py"], None),
        ([f"{SITE}/orbax/save.py", f"{SITE}/orbax/path.py"], 0),
        ([], None),
    ],
)
def test_an_error_is_of_the_package_that_the_user_called(files: list[str], found: int) -> None:
    """Python's library and this package are in between; the user's own call comes first."""
    frames = [Frame(file, line, "f") for line, file in enumerate(files)]
    frame = innermost_package_frame(frames)
    assert (frame.line if frame else None) == found
