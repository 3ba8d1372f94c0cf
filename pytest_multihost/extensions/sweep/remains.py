"""The remains of a world that its events lack: collectives, output, saved files.

It is read after the ranks have ended, and before the world's directory is removed. A disturbed run
is compared with the undisturbed one: only things in order there can be wrong.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.launch.scratch import shared_directory
from pytest_multihost.core.model.json_values import from_json, parse_json, to_json
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.extensions.sweep.order import Clash, read_clashes
from pytest_multihost.extensions.sweep.saved import (
    NO_ACTS,
    Acts,
    Damage,
    SavedFiles,
    find_damage,
    look_at,
)
from pytest_multihost.extensions.sweep.sayings import is_said, lines_said

_USUAL = "usual.json"


@dataclass(frozen=True, slots=True)
class Remains:
    """The remains of a world.

    Attributes:
        said: The prints, logs and warnings of its ranks; None if they are too long.
        files: The files they have saved in their shared folder.
        acts: The calls of the undisturbed run on these files.
    """

    clashes: tuple[Clash, ...] = ()
    said: tuple[str, ...] | None = None
    files: SavedFiles = field(default_factory=lambda: SavedFiles(is_all=False))
    acts: Acts = NO_ACTS


@dataclass(frozen=True, slots=True)
class FoundErrors:
    """The errors in the remains of a disturbed world that the undisturbed world lacks.

    Attributes:
        clashes: Collectives that cannot match, the earliest first.
        is_said: Whether ranks may have reported something that they had not reported undisturbed.
        damage: Damaged files. Files that an index or a mark declares complete come first.
        overwrites: Whether the disturbed file had been written before, so that a good one is lost
            if it does not load.
    """

    clashes: tuple[Clash, ...] = ()
    is_said: bool = True
    damage: tuple[Damage, ...] = ()
    overwrites: bool = False


def read_remains(
    result: WorldResult, directory: Path, scratch: Path, *, usual: Remains | None = None
) -> Remains:
    """Return the remains of a world.

    Files are only read if each rank has ended by itself: others may have been ended while writing.

    Args:
        directory: The folder with the logs of the ranks.
        usual: The remains of the undisturbed run; None if this is that run.
    """
    has_ended = result.ending == "self"
    expected = usual.files if usual is not None else None
    return Remains(
        clashes=read_clashes(scratch, result.spec.size),
        said=lines_said(result, directory),
        files=look_at(shared_directory(scratch), expected)
        if has_ended
        else SavedFiles(is_all=False),
    )


def write_usual(folder: Path, remains: Remains) -> None:
    """Write the remains of the undisturbed run, for the lanes: they may be too large to send."""
    text = json.dumps(to_json(remains))
    files.write(folder / _USUAL, text.encode("utf-8", "surrogateescape"))


@lru_cache(maxsize=1)
def read_usual(folder: Path) -> Remains:
    """Return the remains of the undisturbed run.

    A lane reads it once for all worlds of a sweep, because each sweep has a folder of its own.
    """
    text = (folder / _USUAL).read_text("utf-8", "surrogateescape")
    return from_json(Remains, parse_json(text))


def compare(usual: Remains, now: Remains, *, overwrites: bool = False) -> FoundErrors:
    """Return the errors in `now`.

    Args:
        overwrites: See `FoundErrors`.
    """
    known = {each.key for each in usual.clashes}
    return FoundErrors(
        clashes=tuple(each for each in now.clashes if each.key not in known),
        is_said=is_said(now.said, usual.said),
        damage=find_damage(usual.files, now.files, usual.acts),
        overwrites=overwrites,
    )
