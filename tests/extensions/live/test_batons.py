"""Ranks that wait until a file of a killed build is gone are told with the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.core.watch.probes import SpiedThread
from pytest_multihost.extensions.live.batons import awaited_files, left_behind
from pytest_multihost.testing import Frame

pytestmark = pytest.mark.unit

WAIT = Frame("/v/torch/utils/file_baton.py", 50, "FileBaton.wait")
BUILD = Frame("/v/torch/utils/cpp_extension.py", 2000, "_jit_compile")


def spied(*frames: Frame, **values: str) -> tuple[SpiedThread, ...]:
    """Return a main thread whose outermost frame has some variables."""
    found = ({},) * (len(frames) - 1) + (values,)
    return (SpiedThread(1, "", is_main=True, holds_gil=False, frames=frames, values=found),)


def test_the_file_is_that_of_the_folder_in_which_torch_builds(tmp_path: Path) -> None:
    """It is a variable of the function that builds."""
    (tmp_path / "lock").touch()
    ranks = {rank: spied(WAIT, BUILD, build_directory=f"'{tmp_path}'") for rank in (0, 1)}
    assert awaited_files(ranks) == dict.fromkeys((0, 1), f"{tmp_path}/lock")
    [told] = left_behind(awaited_files(ranks))
    assert told.startswith(f"ranks 0,1 wait in torch's FileBaton until the file {tmp_path}/lock is")
    assert told.endswith("the build that has made it has ended; remove it")


def test_a_file_that_a_build_has_open_is_not_left_behind(tmp_path: Path) -> None:
    """The build goes on."""
    with (tmp_path / "lock").open("w"):
        assert left_behind({0: str(tmp_path / "lock")}) == ()


def test_a_file_that_no_variable_names_is_not_guessed(tmp_path: Path) -> None:
    """The sentence says only that there is one."""
    found = awaited_files({1: spied(WAIT, BUILD, build_directory=f"'{tmp_path}/none'")})
    assert found == {1: ""}
    said = (
        "rank 1 waits in torch's FileBaton until its file is gone, which another process is to"
        " remove"
    )
    assert left_behind(found) == (said,)


def test_a_rank_elsewhere_waits_for_no_file(tmp_path: Path) -> None:
    """A user's own function of this name may do anything."""
    (tmp_path / "lock").touch()
    own = Frame("/t/file_baton.py", 1, "wait")
    assert awaited_files({0: spied(own, BUILD, build_directory=f"'{tmp_path}'")}) == {}
