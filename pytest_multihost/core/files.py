"""Write files safely, to directories that the harness has claimed.

A directory that the harness makes is its owner's alone, unless the user shares the artifacts, and a
file is never more open than its directory.

Each file appears whole or not at all: no reader sees half a file, even if the disk is full or
another process writes to the same path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from pytest_multihost.core.locks import MOMENT_S, lock, open_lock
from pytest_multihost.core.model.errors import SettingError

REMEDY = "Name another: --multihost-artifacts=DIR"
MARKER = ".made-by-pytest-multihost"
"""Name of the file that marks a directory as made by the harness."""

_MARK = "pytest-multihost-hangs has made this directory, and removes old runs from it.\n"
_LOCK = ".lock"
_DAY_S = 86_400.0
_IGNORE = "# Written by pytest-multihost-hangs.\n*\n"


def artifacts_folder() -> Path:
    """Return the directory in which runs without pytest are kept."""
    return Path(os.environ.get("PYTEST_MULTIHOST_ARTIFACTS") or ".pytest_multihost")


def mode_in(directory: Path) -> int:
    """Return the mode of a new file: those may read it who may look into its directory."""
    try:
        return 0o666 & stat.S_IMODE(directory.stat().st_mode)
    except OSError:
        return 0o600


def make_directory(directory: Path, mode: int = 0o700) -> None:
    """Make a directory for some users, and the directories above it as usual.

    A directory that exists is opened to the users, and never closed: it may be shared on purpose.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    found = directory.stat()
    if found.st_uid == os.geteuid() and mode & ~stat.S_IMODE(found.st_mode):
        directory.chmod(stat.S_IMODE(found.st_mode) | mode)


def claim(directory: Path, mode: int = 0o700) -> None:
    """Claim a directory for the harness, or check that it is claimed; safe in parallel processes.

    Git ignores the directory from then on, unless the user has put a .gitignore into it.

    Args:
        mode: The mode of the directory, if it is made now.

    Raises:
        SettingError: It holds other files, or another user made it where all users may write.
        OSError: It cannot be made.
    """
    make_directory(directory, mode)
    owner = directory.stat().st_uid
    above = directory.resolve().parents
    # In a folder as /tmp everybody may make others, but above it replace only his own.
    open_to_all = [
        each
        for each in above
        if (bits := each.stat().st_mode) & stat.S_IWOTH
        and (each == above[0] or not bits & stat.S_ISVTX)
    ]
    if owner not in (os.geteuid(), 0) and open_to_all:
        raise SettingError(
            f"{directory} belongs to the user with the id {owner}",
            seen=f"All users may make directories in {open_to_all[0]}.",
            remedy=REMEDY,
        )
    if directory.is_symlink() and directory.lstat().st_uid not in (os.geteuid(), 0):
        raise SettingError(
            f"{directory} is a link of the user with the id {directory.lstat().st_uid}",
            seen=f"It leads to {directory.resolve()}.",
            remedy=REMEDY,
        )
    others, ignore = [path.name for path in directory.iterdir()], directory / ".gitignore"
    if not others or (ignore.is_file() and ignore.read_bytes() == _IGNORE.encode()):
        marker = directory / MARKER
        with contextlib.suppress(FileExistsError), naming(marker), marker.open("x") as file:
            file.write(_MARK)
    elif not (directory / MARKER).exists():  # checked last: every process writes this file first
        raise SettingError(
            f"{directory} holds other files, such as {min(others)}",
            seen=f"It has no file {MARKER}, so it was not made by pytest-multihost-hangs.",
            remedy=REMEDY,
        )
    if not os.path.lexists(ignore):
        write(ignore, _IGNORE)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add a file's path to the errors of system calls that only know its descriptor.

    Raises:
        OSError: As in the block.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write(path: Path, text: str | bytes, *, mode: int | None = None) -> None:
    """Write a file under another name, then rename it to `path`.

    Replaces any file at `path`; of a symbolic link, the link and not its target.

    Args:
        text: The content; a character that UTF-8 cannot encode becomes a question mark.
        mode: Its mode; by default those may read it who may look into its directory.

    Raises:
        OSError: It cannot be written; an earlier file at `path` is still there.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        descriptor = os.open(new, flags, mode_in(path.parent) if mode is None else mode)
        with naming(path), open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(text if isinstance(text, bytes) else text.encode("utf-8", "replace"))
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def append(path: Path, text: str) -> None:
    """Append the whole text to a file or nothing, even if other processes append at the same time.

    Raises:
        OSError: It cannot be written, or is a symbolic link.
    """
    data = text.encode("utf-8", "replace")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with naming(path), open(os.open(path, flags, mode_in(path.parent)), "ab", buffering=0) as file:  # noqa: PTH123
        is_alone = False
        with contextlib.suppress(OSError):  # a file system without locks
            is_alone = lock(file.fileno(), within_s=MOMENT_S)
        size = os.fstat(file.fileno()).st_size
        if file.write(data) < len(data):
            if is_alone:  # else others may have appended meanwhile
                file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_named(path: Path, text: str | bytes) -> None:
    """Write a file whose name a user has given, and the user may be root in a foreign folder.

    Raises:
        OSError: It cannot be written, or is a device, a FIFO or a directory.
    """
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(path.stat().st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    write(path, text)


def put(path: Path, text: str) -> None:
    """Write a text to a file that is there: of the kernel, or one whose readers keep it open.

    Raises:
        OSError: It is not there, is a symbolic link, or cannot be written.
    """
    flags = os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with naming(path), open(os.open(path, flags), "wb", buffering=0) as file:  # noqa: PTH123
        file.write(text.encode())


def appending(path: Path) -> BinaryIO:
    """Open a file for appending; see `open_log`.

    Raises:
        OSError: It cannot be opened, or is a symbolic link.
    """
    return open(open_log(path), "ab")


def open_log(path: str | Path) -> int:
    """Return a descriptor that appends to a file, which is made if it is not there.

    Raises:
        OSError: It cannot be opened, or is a symbolic link.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(path, flags, mode_in(Path(path).parent))


def link(path: Path, target: str) -> None:
    """Make a symbolic link in one step; only another link is replaced.

    Raises:
        FileExistsError: `path` exists and is not a link.
    """
    if path.exists() and not path.is_symlink():
        raise FileExistsError(errno.EEXIST, "it is not a link, so it is left as it is", str(path))
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    new.symlink_to(target)
    new.replace(path)


def hold(directory: Path, mode: int = 0o700) -> None:
    """Make a directory, and keep `remove_unheld` from removing it.

    The lock is never released: it lasts until this process and all that it forked have ended.
    """
    while True:  # another process may remove it meanwhile
        make_directory(directory, mode)
        try:
            held = open_lock(directory / _LOCK)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            lock(held, within_s=MOMENT_S, shared=True)
        if os.fstat(held).st_nlink:
            return
        os.close(held)


def remove_unheld(directory: Path) -> None:
    """Remove a directory, unless a process of any host or container holds it.

    On a file system without locks, remove it unless it has changed within the last day.
    """
    with contextlib.suppress(OSError):
        age_s = time.time() - directory.stat().st_mtime
        held = open_lock(directory / _LOCK)
        try:
            is_unheld = lock(held, within_s=0)
        except OSError:
            is_unheld = age_s > _DAY_S
        if is_unheld:
            shutil.rmtree(directory, ignore_errors=True)
        os.close(held)
        directory.rmdir()  # NFS keeps a directory until its open file is closed
