"""Records the files of code that a rank loads.

Each file is recorded before its code runs, because a rank may be killed at any time. Children that
a rank forks record theirs as well.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from os import O_APPEND, O_CLOEXEC, O_CREAT, O_WRONLY, close, write  # by name: a test may replace
from os import open as open_file
from pathlib import Path

from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.services import RankPart

RECORD_NAME = "service-code"
"""The file in a world's scratch directory with the paths, one in each line."""

PROGRAMS = "*"
"""The line that stands for other programs, whose code nobody records."""

_FILE_AT: Mapping[str, int] = {"exec": 0, "import": 1, "ctypes.dlopen": 0}
"""The index of the argument with the code or file, by the audit events of code that is loaded."""

_STARTS = frozenset({"os.exec", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen"})
"""The audit events of other programs."""

_SPAWNS = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
"""The modules that are loaded when multiprocessing starts new interpreters."""


def join(spec: RankSpec) -> RankPart:
    """Record what this rank has loaded, and from now on what it loads.

    Raises:
        OSError: The record cannot be written.
    """
    settings = next(
        part.settings
        for part in spec.world.services.values()
        if part.rank == f"{__name__}:{join.__name__}"
    )
    known = str(settings.get("known") or "")
    seen = set(Path(known).read_text("utf-8", "surrogateescape").splitlines()) if known else set()
    record = str(settings.get("record") or Path(spec.scratch, RECORD_NAME))
    found = loaded_files()
    if any(each in sys.modules for each in _SPAWNS):
        found.add(PROGRAMS)
    _append(record, seen, found)
    sys.addaudithook(_recorder(record, seen))
    return RankPart()


def loaded_files() -> set[str]:
    """Return the files of all modules of this process, as absolute paths."""
    found = set()
    for each in list(sys.modules.values()):
        try:
            # Not by getattr, which makes a lazy module load.
            names = object.__getattribute__(each, "__dict__")
        except AttributeError:
            continue
        origin = getattr(names.get("__spec__"), "origin", None)
        found |= {_path(file) for file in (names.get("__file__"), origin)}
    return found - {""}


def _recorder(record: str, seen: set[str]) -> Callable[[str, tuple[object, ...]], None]:
    def note(event: str, args: tuple[object, ...]) -> None:
        index = _FILE_AT.get(event)
        if index is None and event not in _STARTS:
            return
        with contextlib.suppress(Exception):  # it would end what the program does
            found = {PROGRAMS, *_arguments(args)} if index is None else {_file(args[index])}
            _append(record, seen, found - {""})

    return note


def _file(code: object) -> str:
    """Return the path of a code object or of a file; empty if there is none."""
    return _path(getattr(code, "co_filename", code))


def _arguments(args: object) -> set[str]:
    """Return the files among the arguments of a program."""
    if isinstance(args, list | tuple):
        return set().union(*map(_arguments, args))
    path = _path(args)
    return {path} if path and Path(path).is_file() else set()


def _path(file: object) -> str:
    """Return an absolute path; empty for what is no file, such as "<string>"."""
    if isinstance(file, bytes):
        file = os.fsdecode(file)
    if not isinstance(file, str) or not file or file[0] == "<" or "\n" in file:
        return ""
    if file in ("built-in", "frozen", "namespace"):
        return ""
    return os.path.abspath(file)  # noqa: PTH100 - not resolved: a link may lead elsewhere later


def _append(record: str, seen: set[str], files: set[str]) -> None:
    new = files - seen
    if not new:
        return
    seen |= new
    text = "".join(f"{each}\n" for each in sorted(new))
    descriptor = open_file(record, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0o600)
    try:
        write(descriptor, text.encode("utf-8", "surrogateescape"))
    finally:
        close(descriptor)
