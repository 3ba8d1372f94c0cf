"""Opens files that another program may have named: only regular files, without waiting for one.

A name in a dump, in a frame of another process or in a folder may lead to a FIFO, to a device, to
a file of /proc whose reading waits or consumes, or to a file of any size.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symbolic link",
}


def open_regular(path: str | os.PathLike[str], *, follows: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Args:
        follows: Whether the file may be named by a symbolic link.

    Raises:
        OSError: It is not a regular file, or cannot be opened.
    """
    try:
        # Asked first, because it can do harm to open a device: a watchdog, a tape.
        _check(path, os.stat(path, follow_symlinks=follows).st_mode)  # noqa: PTH116 - need not be a Path
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        descriptor = os.open(path, flags if follows else flags | os.O_NOFOLLOW)
    except ValueError as error:  # no file can have this name
        raise OSError(errno.EINVAL, f"no file can have this name: {error}") from error
    try:
        _check(path, os.fstat(descriptor).st_mode)  # another file may have its name by now
        return open(descriptor, "rb")  # noqa: PTH123 - a descriptor
    except OSError:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], *, max_bytes: int, follows: bool = True) -> bytes:
    """Return the content of a regular file.

    A file without a size, as those of /proc, is empty: a read of it may wait, or consume data
    of others.

    Args:
        follows: Whether the file may be named by a symbolic link.

    Raises:
        OSError: It is not a regular file, has more bytes, or cannot be read.
    """
    with open_regular(path, follows=follows) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            why = f"it has {size} bytes, and {max_bytes} are read at most"
            raise OSError(errno.EFBIG, why, os.fspath(path))
        return file.read(size)


def _check(path: str | os.PathLike[str], mode: int) -> None:
    if not stat.S_ISREG(mode):
        why = f"it is {_KINDS.get(stat.S_IFMT(mode), 'special')}, not a regular file"
        raise OSError(errno.EINVAL, why, os.fspath(path))
