"""Files for whose removal torch's builds wait.

`torch.utils.cpp_extension` builds while it has a file open that it has made (FileBaton). All other
processes look every 0.1 s whether the file is gone. If the build was killed, the file stays behind,
and they wait for ever. Another machine may be building there, so this proves nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.rank_names import PLAIN
from pytest_multihost.core.watch.kernel import link
from pytest_multihost.core.watch.probes.py_spy import SpiedThread

_WAIT = ("/torch/utils/file_baton.py", "wait")
_FOLDERS = ("build_directory", "build_dir", "folder")
_FILES = ("lock_file_path", "lock_path", "lock_file", "path")
_LOCK = "lock"
_TEXT = re.compile(r"[\"'](.*)[\"']")


def awaited_files(threads: Mapping[int, Sequence[SpiedThread]]) -> Mapping[int, str]:
    """Return the file for whose removal each rank waits; empty if its stack does not show it."""
    found = {}
    for rank, each in threads.items():
        main = next((one for one in each if one.is_main), None)
        frames = main.frames if main is not None else ()
        at = next((i for i, f in enumerate(frames) if _is_wait(f.file, f.function)), None)
        if main is not None and at is not None:
            found[rank] = next(_paths(main.values[at:]), "")
    return found


def _is_wait(file: str, function: str) -> bool:
    return file.endswith(_WAIT[0]) and function.rpartition(".")[2] == _WAIT[1]


def _paths(values: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield the lock files that variables name and that exist, the innermost first."""
    for each in values:
        texts = {n: m[1] for n, text in each.items() if (m := _TEXT.fullmatch(text))}
        named = [texts[name] for name in _FILES if name in texts]
        named += [f"{texts[name]}/{_LOCK}" for name in _FOLDERS if name in texts]
        yield from (p for p in named if Path(p).is_absolute() and Path(p).is_file())


def left_behind(files: Mapping[int, str]) -> tuple[str, ...]:
    """Return a sentence for each file for whose removal ranks wait and that no process has open."""
    return tuple(
        _sentence(path, sorted(ranks))
        for path, ranks in group_by_value((p, rank) for rank, p in files.items()).items()
        if not path or not _has_open(path)
    )


def _sentence(path: str, ranks: Sequence[int]) -> str:
    verb = "waits" if len(ranks) == 1 else "wait"
    who = f"{PLAIN.of(ranks)} {verb} in torch's FileBaton until"
    if not path:
        return f"{who} its file is gone, which another process is to remove"
    return (
        f"{who} the file {path} is gone, which no process of this machine has open: the build that"
        " has made it has ended; remove it"
    )


def _has_open(path: str) -> bool:
    """Return whether a process of this machine that may be read has a file open."""
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        folder = f"/proc/{pid}/fd"
        with suppress(OSError):
            if any(link(f"{folder}/{each}") == path for each in os.listdir(folder)):
                return True
    return False
