"""Write files safely, and compile the libraries that are preloaded into ranks.

Files are written only to directories that the harness has claimed. Each appears at once and whole,
so neither a reader, nor a full disk, nor another process that writes there leaves half of it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import platform
import secrets
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
        path: The file.
        text: Its content; what UTF-8 cannot encode becomes a question mark.
        mode: Its permissions, less the umask.

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


# Libraries that are preloaded into ranks: compiled on first use, and kept in the user's cache.
#
# The wheel holds their sources, so that one wheel fits every system; a library that lies beside its
# source is taken as it is. Without a C compiler there is none, `why_missing` says so, and
# everything else works.


COMPILER_S = 120.0
"""How long a compiler may take."""

# Fortified headers define read() and others as inline wrappers; the libraries define them.
_FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-U_FORTIFY_SOURCE", "-pthread")
_LIBRARIES = ("-ldl",)


@dataclass(frozen=True, slots=True)
class PreloadedLibrary:
    """A library to preload.

    Attributes:
        source: Its source, one file of C.
    """

    source: Path

    def find(self) -> Path | None:
        """Return the library, compiled now if it must be; None if there is no way."""
        return _find_once(self)[0]

    def why_missing(self) -> str:
        """Return why there is no library; empty if there is one."""
        return _find_once(self)[1]

    @property
    def file_name(self) -> str:
        """Its name; the digest of its source keeps versions apart in the cache."""
        made_from = "\n".join((platform.machine(), *_FLAGS, *_LIBRARIES)).encode()
        digest = hashlib.sha256(made_from + self.source.read_bytes()).hexdigest()[:16]
        return f"_{self.source.stem}-{digest}.so"

    def build(self, target: Path) -> str:
        """Compile it to `target`, which appears complete or not at all.

        Of several processes that do so at once, the last replaces what the others have made.

        Returns:
            Why it could not be done; empty if it could.
        """
        try:
            compiler = shlex.split(os.environ.get("CC") or "cc")
        except ValueError:  # an open quote
            compiler = []
        if not compiler or not shutil.which(compiler[0]):
            return "there is no C compiler (cc, or what CC names)"
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as directory:
                made = Path(directory, target.name)
                command = [*compiler, *_FLAGS, "-o", str(made), str(self.source), *_LIBRARIES]
                done = subprocess.run(
                    command,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    timeout=COMPILER_S,
                    check=False,
                )
                if done.returncode:
                    return f"it could not be compiled: {done.stderr.strip()[:2000]}"
                made.replace(target)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"compiling it was given up: {error}"
        return ""


@functools.cache
def _find_once(library: PreloadedLibrary) -> tuple[Path | None, str]:
    """Return the path of a library, or None and why it is not available.

    Looked for once per process; the server does it for all ranks that it forks.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return None, "it is for Linux with the GNU C library"
    if (beside := library.source.with_name(library.file_name)).exists():
        return beside, ""
    # Not Path.expanduser, which raises where there is no home.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    target = Path(base, "pytest-multihost-hangs", library.file_name)
    if not target.is_absolute():  # no home: never load code from the current directory
        return None, f"there is no directory to keep it in: {target.parent} is not an absolute path"
    problem = ("" if target.exists() else library.build(target)) or _why_untrusted(target)
    return (None, problem) if problem else (target, "")


def _why_untrusted(target: Path) -> str:
    """Return why the library must not be loaded: another user may have written it."""
    for path in (target.parent, target):
        found = path.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & stat.S_IWOTH:
            return f"other users can write {path}; name another cache in XDG_CACHE_HOME"
    return ""


def preload_variables(
    environment: Mapping[str, str], libraries: Sequence[Path | None]
) -> dict[str, str]:
    """Return the variables that preload libraries into a process exec'd with `environment`.

    None stands for one that is missing; empty if all are. Libraries that are preloaded already
    stay, behind these.
    """
    found = [str(each) for each in libraries if each is not None]
    others = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    return {"LD_PRELOAD": ":".join(dict.fromkeys([*found, *others]))} if found else {}
