"""Libraries that are preloaded into ranks: compiled on first use, and kept in the user's cache.

The wheel holds their sources, so that one wheel fits every system. A library that lies beside its
source is used as it is. Without a C compiler the library is missing, `why_missing` returns the
reason, and everything else works.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.trust import why_untrusted

COMPILER_S = 120.0
"""The compiler's timeout."""

# Fortified headers define read() and others as inline wrappers; the libraries define them.
_FLAGS = ("-O2", "-fPIC", "-shared", "-std=gnu11", "-U_FORTIFY_SOURCE", "-pthread")
_LIBRARIES = ("-ldl",)

_SPECIAL = re.compile(r"[\s:;$]")
"""The characters with a meaning in LD_PRELOAD (ld.so(8))."""


@dataclass(frozen=True, slots=True)
class PreloadedLibrary:
    """A library to preload.

    Attributes:
        source: Its source, one file of C.
    """

    source: Path

    def find(self) -> Path | None:
        """Return the library's path, compiling it if necessary; None if it is not available."""
        return _find_once(self)[0]

    def why_missing(self) -> str:
        """Return why the library is not available; empty if it is."""
        return _find_once(self)[1]

    @property
    def file_name(self) -> str:
        """Its name; the digest of its source keeps versions apart in the cache."""
        made_from = "\n".join((platform.machine(), *_FLAGS, *_LIBRARIES)).encode()
        digest = hashlib.sha256(made_from + self.source.read_bytes()).hexdigest()[:16]
        return f"_{self.source.stem}-{digest}.so"

    def build(self, target: Path) -> str:
        """Compile it to `target`, which appears complete or not at all.

        If several processes compile it at once, the last one's result stays.

        Returns:
            Why it failed; empty if it succeeded.
        """
        try:
            compiler = shlex.split(os.environ.get("CC") or "cc")
        except ValueError:  # an open quote
            compiler = []
        if not compiler or not shutil.which(compiler[0]):
            return "there is no C compiler (cc, or the one that CC names)"
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

    Searched once per process; the server searches for all ranks that it forks.
    """
    if not sys.platform.startswith("linux") or platform.libc_ver()[0] != "glibc":
        return None, "it is for Linux with the GNU C library"
    if (beside := library.source.with_name(library.file_name)).exists():
        problem = _why_unloadable(beside)
        return (None, problem) if problem else (beside, "")
    # Path.expanduser would raise if there is no home.
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111
    target = Path(base, "pytest-multihost-hangs", library.file_name)
    if not target.is_absolute():  # no home: never load code from the current directory
        return None, f"there is no directory to keep it in: {target.parent} is not an absolute path"
    problem = ("" if target.exists() else library.build(target)) or _why_untrusted(target)
    return (None, problem) if problem else (target.resolve(), "")


def _why_untrusted(target: Path) -> str:
    """Return why the library must not be loaded: another user may have written it, or its name."""
    try:
        why = why_untrusted(target) or _why_unloadable(target.resolve())
    except OSError as error:
        why = str(error)
    return f"{why}; name another cache in XDG_CACHE_HOME" if why else ""


def _why_unloadable(path: Path) -> str:
    """Return why the loader would take a path for others: it separates and replaces some signs."""
    is_plain = not _SPECIAL.search(str(path))
    return "" if is_plain else f"the dynamic loader would not read {str(path)!r} as one path"


def preload_variables(
    environment: Mapping[str, str], libraries: Sequence[Path | None]
) -> dict[str, str]:
    """Return the variables that preload libraries into a process exec'd with `environment`.

    Libraries that `environment` already preloads stay, after these.

    Args:
        libraries: None stands for a missing library; if all are missing, the result is empty.
    """
    found = [str(each) for each in libraries if each is not None]
    others = environment.get("LD_PRELOAD", "").replace(":", " ").split()
    return {"LD_PRELOAD": ":".join(dict.fromkeys([*found, *others]))} if found else {}
