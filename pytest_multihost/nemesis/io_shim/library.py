"""The shim's library: compiled on first use, kept in the user's cache, and preloaded.

The wheel holds its source, so that one wheel fits every system; a library that lies beside the
source is taken as it is. Without a C compiler there is no shim, `why_missing` says so, and
everything else works.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pytest_multihost.nemesis.io_shim.rules_page import IoPage

SOURCE = Path(__file__).with_name("shim.c")

COMPILER_S = 120.0
"""How long a compiler may take."""

PAGE_VARIABLE = "PYTEST_MULTIHOST_IO_SHIM"
"""Names the page that a process follows from its exec on; without it, none until `attach`."""

# Fortified headers define read() and others as inline wrappers; the shim defines them itself.
_FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-U_FORTIFY_SOURCE", "-pthread")
_LIBRARIES = ("-ldl",)


def find_library() -> Path | None:
    """Return the shim's library, compiled now if it must be; None if there is no way."""
    return _find_once()[0]


def why_missing() -> str:
    """Return why there is no library; empty if there is one."""
    return _find_once()[1]


@functools.cache
def _find_once() -> tuple[Path | None, str]:
    """Return the path of the library, or None and why it is not available.

    Looked for once per process; the server does it for all ranks that it forks.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return None, "it is for Linux with the GNU C library"
    if (beside := SOURCE.with_name(file_name())).exists():
        return beside, ""
    # Not Path.expanduser, which raises where there is no home.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    target = Path(base, "pytest-multihost-hangs", file_name())
    if not target.is_absolute():  # no home: never load code from the current directory
        return None, f"there is no directory to keep it in: {target.parent} is not an absolute path"
    problem = ("" if target.exists() else build(target)) or _why_untrusted(target)
    return (None, problem) if problem else (target, "")


def _why_untrusted(target: Path) -> str:
    """Return why the library must not be loaded: another user may have written it."""
    for path in (target.parent, target):
        found = path.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & stat.S_IWOTH:
            return f"other users can write {path}; name another cache in XDG_CACHE_HOME"
    return ""


def file_name() -> str:
    """Return the library's name; the digest of its source keeps versions apart in the cache."""
    made_from = "\n".join((platform.machine(), *_FLAGS, *_LIBRARIES)).encode()
    return f"_shim-{hashlib.sha256(made_from + SOURCE.read_bytes()).hexdigest()[:16]}.so"


def build(target: Path) -> str:
    """Compile the shim to `target`, which appears complete or not at all.

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
            command = [*compiler, *_FLAGS, "-o", str(made), str(SOURCE), *_LIBRARIES]
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


def preload_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that give the shim to a process that is exec'd with `environment`.

    Empty if there is no library. Libraries that are preloaded already stay, behind the shim.
    """
    library = find_library()
    if library is None:
        return {}
    others = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    return {"LD_PRELOAD": ":".join(dict.fromkeys([str(library), *others]))}


def is_loaded() -> bool:
    """Return whether this process, or the one that has forked it, was exec'd with the shim."""
    return _attach_function() is not None


def attach(path: Path) -> IoPage:
    """Follow the rules in the page at `path` from now on, and no others.

    The page is created if it is absent. Processes that this one execs later follow it as well.

    Raises:
        RuntimeError: The shim is not loaded: this process was exec'd without it.
        OSError, ValueError: The page cannot be created, or the file is no page.
    """
    set_page = _attach_function()
    if set_page is None:
        reason = why_missing() or "preload_variables() returns the variables for that"
        raise RuntimeError(
            "This process has no I/O shim: it must be preloaded when the process is exec'd"
            f" ({reason})."
        )
    page = IoPage.open(path) if path.exists() else IoPage.create(path)
    if error := set_page(os.fsencode(path)):
        raise OSError(error, os.strerror(error), os.fspath(path))
    os.environ[PAGE_VARIABLE] = os.fspath(path)
    return page


def detach() -> None:
    """Follow no rules any more."""
    os.environ.pop(PAGE_VARIABLE, None)
    if (set_page := _attach_function()) is not None:
        set_page(b"")


@functools.cache
def _attach_function() -> ctypes._NamedFuncPointer | None:
    """Return the shim's entry point; None in a process without the shim.

    CDLL(None) is dlopen(NULL): it finds symbols of the program itself and of what was preloaded.
    """
    try:
        function = ctypes.CDLL(None).multihost_shim_attach
    except (AttributeError, OSError, TypeError):  # absent; Windows has no program to look in
        return None
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int
    return function
