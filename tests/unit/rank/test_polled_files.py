"""Ranks that poll for a file, from hand-made facts; and how the file is found in a frame."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import FrameType

import pytest

from pytest_multihost.core.rank.polled_files import polled_file
from pytest_multihost.core.rank.world import World
from pytest_multihost.testing import Frame, RankSpec, make_spec

FRAME = Frame("/t.py", 3, "wait")


def _interrupted() -> FrameType:
    """Return the caller's frame, as a signal would interrupt it."""
    return sys._getframe(1)


def waits_for(path: Path) -> FrameType:
    """Poll for a file, once."""
    while not os.path.exists(path / f"{'a'}.lock"):  # noqa: PTH110 - as programs do it
        return _interrupted()
    return _interrupted()


def takes(path: str) -> FrameType:
    """Try to create a file, once."""
    for _ in range(1):
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return _interrupted()
    return _interrupted()


def works(path: str) -> FrameType:
    """Read a file in a loop: it asks for no file, nor does it create one."""
    for _ in range(1):
        with open(path) as file:  # noqa: PTH123 - as programs do it
            file.read()
        time.sleep(0.0)
        return _interrupted()
    return _interrupted()


def test_a_loop_that_asks_for_a_file_polls_for_it(tmp_path: Path) -> None:
    """It is one that may not exist yet."""
    found = polled_file(waits_for(tmp_path))
    assert found is not None
    assert (found.path, found.exists) == (str(tmp_path / "a.lock"), False)


class Strange:
    """An object of the program whose property must not be called."""

    @property
    def rank(self) -> int:
        """Return 9, when the program asks."""
        return 9


def polls_for(expression: str, tmp_path: Path) -> str:
    """Return the name of the file for which a loop polls, by an expression for it."""
    source = f"while not os.path.exists({expression}):\n    frame = interrupted()\n    break\n"
    program = tmp_path / "program.py"
    program.write_text(source)
    spec = RankSpec(world=make_spec(3), rank=1, directory="/d", scratch="/s", ports=(1, 2))
    world = World(spec, None, None, None)  # type: ignore[arg-type]
    names = {"os": os, "folder": str(tmp_path), "world": world, "strange": Strange(), "step": 7}
    names["interrupted"] = _interrupted
    exec(compile(source, str(program), "exec"), names)  # noqa: S102
    found = polled_file(names["frame"])  # type: ignore[arg-type]
    return "" if found is None else os.path.basename(found.path)  # noqa: PTH119


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("f'{folder}/done-{world.size}'", "done-3"),
        ("f'{folder}/{world.rank}.lock'", "1.lock"),
        ("f'{folder}/{(world.rank + 2) % world.size}.lock'", "0.lock"),
        ("f'{folder}/step-{step:04d}'", "step-0007"),
        ("folder + '/of-' + str(world.rank)", "of-1"),
        ("'%s/%d.lock' % (folder, step)", "7.lock"),
        ("f'{folder}/{step!r:>4}'", ""),
        ("f'{folder}/{strange.rank}'", ""),
    ],
)
def test_the_name_of_a_file_is_read_from_its_expression(
    expression: str, name: str, tmp_path: Path
) -> None:
    """No code of the program runs for it, and a name that is unknown is not guessed."""
    assert polls_for(expression, tmp_path) == name


def test_a_loop_that_tries_to_create_a_file_polls_for_it(tmp_path: Path) -> None:
    """Somebody else has made it."""
    lock = tmp_path / "lock"
    lock.touch()
    found = polled_file(takes(str(lock)))
    assert found is not None
    assert (found.path, found.exists) == (str(lock), True)


def test_a_loop_that_reads_a_file_does_not_poll(tmp_path: Path) -> None:
    """It looks alike, and works."""
    (tmp_path / "data").touch()
    assert polled_file(works(str(tmp_path / "data"))) is None
