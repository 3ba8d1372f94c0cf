"""Finds the files of this project that a script imports, and refuses all others.

A sweep.json may be foreign. It names a test by its node id, and sometimes a module. A file of the
project counts, and nothing that came with the artifacts, lies elsewhere or is reached by a link.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pytest_multihost.core.files import MARKER
from pytest_multihost.core.model.errors import MultihostError, shown

_OF_PROJECTS = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
"""Files beside which pytest finds its rootdir, which node ids begin at."""


def file_of_test(nodeid: str, start: Path, artifacts: Path) -> Path:
    """Return the path of a test's file, relative to the directory where the command was started.

    Args:
        nodeid: The test's node id, as a file has it.
        start: The directory where the command was started.
        artifacts: The directory of the artifacts; nothing in it is imported.

    Raises:
        MultihostError: There is no such file in this project.
    """
    name = nodeid.partition("::")[0]
    parts = name.split("/")
    if not name.endswith(".py") or {"", ".", ".."} & {*parts} or "\0" in name:
        raise _refused(f"{shown(name)} is not the path of a Python file below a project")
    for root in _roots(start):
        if os.path.lexists(root / name):
            check_own(root, parts, artifacts)
            return Path(os.path.relpath(root / name, start))
    raise _refused(
        f"there is no {shown(name)} in {start}, nor beside a configuration of pytest above"
    )


def check_own_module(module: str, folders: Iterable[Path], artifacts: Path) -> None:
    """Check that a module comes from the project or from an installed package.

    Args:
        folders: The folders of the project that the script imports from.

    Raises:
        MultihostError: It is not a name of a module, or lies in the artifacts or behind a link.
    """
    parts = module.split(".")
    if not all(each.isidentifier() for each in parts):
        raise _refused(f"{shown(module)} is not the name of a module")
    for folder in folders:
        for count in range(1, len(parts) + 1):
            for last in (parts[count - 1], f"{parts[count - 1]}.py"):
                path = [*parts[: count - 1], last]
                if os.path.lexists(folder.joinpath(*path)):
                    check_own(folder, path, artifacts)


def check_own(root: Path, parts: list[str], artifacts: Path) -> None:
    """Check that a path below a folder has no link in it, and is not below the artifacts.

    Raises:
        MultihostError: It has, or is.
    """
    path = root
    for each in parts:
        path /= each
        if path.is_symlink():
            raise _refused(f"{path} is a link")
    found, own = path.resolve(), artifacts.resolve()
    if own == Path.cwd().resolve() and not (own / MARKER).exists():
        own = own / ".pytest_multihost"  # --artifacts . names the project itself
    for above in (found, *found.parents):
        if above == own or (above / MARKER).exists() or above.name == ".pytest_multihost":
            raise _refused(f"{path} is a file of the artifacts {above}, not of the project")


def _roots(start: Path) -> Iterator[Path]:
    yield start
    for each in start.parents:
        if any((each / name).is_file() for name in _OF_PROJECTS):
            yield each


def _refused(why: str) -> MultihostError:
    return MultihostError(
        "the script would import a file that is not of this project",
        seen=f"The sweep names it: {why}.",
        remedy="Call this in the project's own folder, at the version that was swept.",
    )
