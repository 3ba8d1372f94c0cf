"""Write files safely, to directories that the harness has claimed.

Each file appears at once and whole, so neither a reader, nor a full disk, nor another process
that writes there leaves half of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from pathlib import Path

from pytest_multihost.core.model.errors import SettingError

REMEDY = "Name another: --multihost-artifacts=DIR"
MARKER = ".made-by-pytest-multihost"
"""Name of the file that marks a directory as one of the harness's."""

_MARK = "pytest-multihost-hangs has made this directory, and removes old runs from it.\n"
_DAY_S = 86_400.0
_IGNORE = "# Written by pytest-multihost-hangs.\n*\n"


def artifacts_folder() -> Path:
    """Return where runs without pytest are kept."""
    return Path(os.environ.get("PYTEST_MULTIHOST_ARTIFACTS") or ".pytest_multihost")


def claim(directory: Path) -> None:
    """Make a directory the harness's, or check that it is; several processes may do so at once.

    Git ignores the directory from then on, unless it has a .gitignore of the user's.

    Raises:
        SettingError: It holds other files, or another user has made it where all users may.
        OSError: It cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    owner, above = directory.stat().st_uid, directory.resolve().parent.stat()
    if owner not in (os.geteuid(), 0) and above.st_mode & stat.S_IWOTH:
        raise SettingError(
            f"{directory} belongs to the user with the id {owner}",
            seen=f"All users may make directories in {directory.resolve().parent}.",
            remedy=REMEDY,
        )
    others, ignore = [path.name for path in directory.iterdir()], directory / ".gitignore"
    if not others or (ignore.is_file() and ignore.read_bytes() == _IGNORE.encode()):
        with contextlib.suppress(FileExistsError), (directory / MARKER).open("x") as file:
            file.write(_MARK)
    elif not (directory / MARKER).exists():  # asked last: it is the first file of any process
        raise SettingError(
            f"{directory} holds other files, such as {min(others)}",
            seen=f"It has no file {MARKER}, so it was not made by pytest-multihost-hangs.",
            remedy=REMEDY,
        )
    if not os.path.lexists(ignore):
        write(ignore, _IGNORE)


def write(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write a file beside its name, then rename it.

    What had its name is replaced; where that was a symbolic link, what it leads to stays.

    Args:
        text: Its content; what UTF-8 cannot encode becomes a question mark.

    Raises:
        OSError: It cannot be written; whatever had its name is still there.
    """
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor
            file.write(text.encode("utf-8", "replace"))
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def append(path: Path, text: str) -> None:
    """Append to a file, all of a text or nothing, whichever processes append at the same time.

    Raises:
        OSError: It cannot be written, or is a symbolic link.
    """
    import fcntl  # not on every system that can import this package

    data = text.encode("utf-8", "replace")
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o666), "ab", buffering=0) as file:  # noqa: PTH123 - a descriptor
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file.fileno()).st_size
        if file.write(data) < len(data):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def link(path: Path, target: str) -> None:
    """Make a symbolic link in one step; only another link is replaced.

    Raises:
        FileExistsError: Something else has its name.
    """
    if path.exists() and not path.is_symlink():
        raise FileExistsError(errno.EEXIST, "it is no link, so it is left as it is", str(path))
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    new.symlink_to(target)
    new.replace(path)


def hold(directory: Path) -> None:
    """Make a directory, and keep it from being removed by `remove_unheld`.

    Until this process and all that it has forked have ended: the lock is never given back.
    """
    import fcntl

    while True:  # another process may remove it meanwhile
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock = _open_lock(directory)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_nlink:
            return
        os.close(lock)


def remove_unheld(directory: Path) -> None:
    """Remove a directory, unless a process holds it, on whichever host or in whichever container.

    On a file system without locks, unless it has changed within a day.
    """
    import fcntl

    with contextlib.suppress(OSError):
        age_s = time.time() - directory.stat().st_mtime
        lock = _open_lock(directory)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            is_unheld = not isinstance(error, BlockingIOError) and age_s > _DAY_S
        else:
            is_unheld = True
        if is_unheld:
            shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)
        directory.rmdir()  # on NFS it could not go before its open file


def _open_lock(directory: Path) -> int:
    # For writing as well: NFS gives no exclusive lock without.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(directory / ".lock", flags, 0o666)
