"""The scratch directories of a run's worlds. A passed world leaves its own to the next world.

ext4 takes 0.5 ms to create a file while other files are being removed: it does not use the inode of
a file that was removed in the last seconds, and reads each such inode. So the files that every rank
writes are emptied and used again, not removed and created again. The next world treats such a file
as it treats a new one, because a slot page without content counts as missing.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pytest_multihost.core.pytest_private import base_temp

_SLOTS = re.compile(r"rank-\d+\.slots")
_STACKS = re.compile(r"rank-\d+\.stacks")


@dataclass(slots=True)
class ScratchFolders:
    """Gives each world a scratch directory, and removes it after the world.

    Attributes:
        _spare: Directories with nothing but empty files, for the next worlds. More than one only if
            several worlds ran at the same time.
    """

    config: pytest.Config
    _spare: list[Path] = field(default_factory=list)

    def take(self, seed: int) -> Path:
        """Return an empty directory, or one with empty files of ranks.

        Raises:
            OSError: It cannot be made.
        """
        prefix, base = f"world-{seed}-", base_temp(self.config)
        while self._spare:
            path = base / f"{prefix}{secrets.token_hex(4)}"
            with contextlib.suppress(OSError):  # the spare one was removed
                self._spare.pop().rename(path)
                return path
        # Not with the factory's `mktemp`, which leaves a symbolic link for every name.
        return Path(tempfile.mkdtemp(prefix=prefix, dir=base))

    def lend_stacks(self, scratch: Path, directory: Path, size: int) -> None:
        """Move the empty files for stacks of a world's ranks into the directory of its logs."""
        for rank in range(size):
            name = f"rank-{rank}.stacks"
            with contextlib.suppress(OSError):  # it has none: the rank creates it
                os.rename(f"{scratch}/{name}", f"{directory}/{name}")  # noqa: PTH104 - for each test

    def take_stacks(self, scratch: Path, directory: Path) -> None:
        """Move the empty files for stacks of a world that has passed into its scratch directory."""
        for each in _entries(directory):
            if _STACKS.fullmatch(each.name) and each.stat().st_size == 0:
                with contextlib.suppress(OSError):  # it is on another file system
                    os.rename(each.path, f"{scratch}/{each.name}")  # noqa: PTH104 - as above

    def give_back(self, scratch: Path, *, is_clean: bool) -> None:
        """Empty the directory of a world that has passed for the next world, or remove it.

        With tmp_path_retention_policy = "all", which is pytest's default, the test's own files are
        kept: they are in directories. The files of this package, half a megabyte for a world of
        four, are not.

        Args:
            is_clean: Whether no process of the world is left that may still write.
        """
        keeps_all = str(self.config.getini("tmp_path_retention_policy")) == "all"
        entries = _entries(scratch)
        usable = [each for each in entries if is_clean and _is_of_next_world(each)]
        for each in entries:
            if each not in usable:
                _remove(each, keeps_directories=keeps_all)
        if is_clean and len(_entries(scratch)) == len(usable) and all(map(_empty, usable)):
            self._spare.append(scratch)
            return
        for each in usable:  # the test's own files stay here
            _remove(each, keeps_directories=keeps_all)
        with contextlib.suppress(OSError):
            scratch.rmdir()

    def close(self) -> None:
        """Remove the directories that no world uses any more."""
        while self._spare:
            shutil.rmtree(self._spare.pop(), ignore_errors=True)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    """Return the entries of a directory; none if the test has removed it."""
    try:
        return list(os.scandir(directory))
    except OSError:
        return []


def _is_of_next_world(entry: os.DirEntry[str]) -> bool:
    """Return whether the next world can use a file, once it is empty."""
    is_known = _SLOTS.fullmatch(entry.name) or _STACKS.fullmatch(entry.name)
    return bool(is_known) and entry.is_file(follow_symlinks=False)


def _empty(entry: os.DirEntry[str]) -> bool:
    """Remove the content of a file; return whether that was possible."""
    try:
        if entry.stat(follow_symlinks=False).st_size:
            os.truncate(entry.path, 0)
    except OSError:
        return False
    return True


def _remove(entry: os.DirEntry[str], *, keeps_directories: bool) -> None:
    """Remove an entry of a scratch directory.

    Args:
        keeps_directories: Whether a directory that has a test's files stays.
    """
    with contextlib.suppress(OSError):
        if not entry.is_dir(follow_symlinks=False):
            os.unlink(entry.path)  # noqa: PTH108 - as many calls as files, for each test
        elif entry.name.startswith("service-") or not keeps_directories:
            shutil.rmtree(entry.path, ignore_errors=True)
        else:
            os.rmdir(entry.path)  # noqa: PTH106
