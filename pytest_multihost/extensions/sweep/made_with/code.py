"""Reads the code that a sweep has used: digests of the project's files, versions of packages.

A package counts by its version, as long as its files are as they were installed. Python's own
library counts by Python's version, and this package by the digest of all its files. All other files
that ranks have loaded count by their content, except:

* files of other tests, unless a file that counts names them: a server holds all collected tests;
* files that a run makes itself, among the temporary files.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import os
import re
import stat
import sys
import sysconfig
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest_multihost
from pytest_multihost.core.model.stack import is_ours
from pytest_multihost.extensions.sweep.made_with.in_rank import PROGRAMS

_LIBRARY = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_KERNEL = ("/proc/", "/sys/", "/dev/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A project, as one test sees it.

    Attributes:
        root: pytest's rootdir.
        own: The file of the test.
        test_files: The patterns of the names of test files.
        plugins: The files of pytest's plugins, including conftest.py files.
        temporary: Where the run makes its temporary files.
        began_s: When pytest began, as the times of files.
    """

    root: Path
    own: Path
    test_files: tuple[str, ...]
    plugins: frozenset[str]
    temporary: Path
    began_s: float


@dataclass(frozen=True, slots=True)
class UsedCode:
    """The code of runs.

    Attributes:
        digests: Digests of files, by their paths relative to the rootdir.
        packages: Versions of installed packages.
        changed: The files that have changed since pytest began.
    """

    digests: Mapping[str, str] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()


def read_code(used: Collection[str], project: Project) -> UsedCode:
    """Return the code in files that ranks have recorded."""
    packages: dict[str, str] = {}
    files: dict[str, os.stat_result] = {}
    sources = _sources(project.root) if PROGRAMS in used else ()
    for name in {*used, *sources} - {PROGRAMS}:
        path, status = _regular_file(name)
        if status is None or is_ours(path) or _is_of_python(path):
            continue
        if _is_generated(path, status, project):
            continue
        package = _package_of(path)
        if package is None:
            files[path] = status
        else:
            packages[package[0]] = package[1]
    counted = _without_other_tests(files, project)
    names = {path: os.path.relpath(path, project.root) for path in counted}
    found = {name: file_digest(path) for path, name in sorted(names.items())}
    digests = {name: digest for name, digest in found.items() if digest}
    changed = (name for path, name in names.items() if files[path].st_ctime > project.began_s)
    return UsedCode(digests, dict(sorted(packages.items())), tuple(sorted(changed)))


@cache
def own_digest() -> str:
    """Return the digest of all files of this package."""
    files = sorted(Path(pytest_multihost.__file__).parent.rglob("*.[pc]*"))
    texts = (f"{each.name}:{file_digest(each)}" for each in files if each.suffix in (".py", ".c"))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def file_digest(path: str | Path) -> str:
    """Return the digest of a file's content; empty if there is no such file."""
    try:
        return _digest(path).hex()[:16]
    except OSError:
        return ""


def _digest(path: str | Path) -> bytes:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _regular_file(name: str) -> tuple[str, os.stat_result | None]:
    """Return a recorded file, or the archive that it is in, with its status; None if it is gone."""
    for path in (name, *map(str, Path(name).parents)):
        if path.startswith(_KERNEL):
            break
        try:
            found = Path(path).stat()
        except NotADirectoryError:
            continue
        except (OSError, ValueError):
            break
        return path, found if stat.S_ISREG(found.st_mode) else None
    return name, None


def _is_of_python(path: str) -> bool:
    parts = Path(path).parts
    return _INSTALLED.isdisjoint(parts) and any(Path(path).is_relative_to(e) for e in _LIBRARY)


def _is_generated(path: str, found: os.stat_result, project: Project) -> bool:
    if Path(path).is_relative_to(project.temporary):
        return True
    is_new = found.st_ctime > project.began_s and not Path(path).is_relative_to(project.root)
    return is_new and Path(path).is_relative_to(tempfile.gettempdir())


def _sources(root: Path) -> Iterator[str]:
    """Yield the Python files below a directory, except those of environments and hidden folders."""
    for folder, folders, names in os.walk(root):
        folders[:] = [
            each
            for each in folders
            if each[0] != "."
            and each not in ("__pycache__", "node_modules")
            and not Path(folder, each, "pyvenv.cfg").exists()
        ]
        yield from (f"{folder}/{each}" for each in names if each.endswith(".py"))


# Installed packages


@cache
def _installed() -> Mapping[str, tuple[str, str, str]]:
    """Return each file of installed packages with the package, its version and the file's hash."""
    found: dict[str, tuple[str, str, str]] = {}
    for place in dict.fromkeys(each for each in sys.path if each):
        for record in Path(place).glob("*.dist-info/RECORD"):
            package, _, version = record.parent.name.removesuffix(".dist-info").rpartition("-")
            for row in _rows(record):
                if len(row) > 1 and row[1]:
                    file = os.path.normpath(f"{place}/{row[0]}")
                    found[file] = package, version, row[1]
    return found


def _rows(record: Path) -> list[list[str]]:
    try:
        with record.open(newline="", encoding="utf-8", errors="replace") as lines:
            return list(csv.reader(lines))
    except (OSError, csv.Error):
        return []


def _package_of(path: str) -> tuple[str, str] | None:
    """Return the package of an installed file and its version; None if the file has changed."""
    known = _installed().get(path)
    if known is None:
        return None
    with contextlib.suppress(OSError):
        if _is_as_installed(path, Path(path).stat().st_mtime_ns, known[2]):
            return known[0], known[1]
    return None


@cache
def _is_as_installed(path: str, _mtime_ns: int, recorded: str) -> bool:
    digest = base64.urlsafe_b64encode(_digest(path)).decode().rstrip("=")
    return recorded == f"sha256={digest}"


# Other tests


def _without_other_tests(files: Mapping[str, object], project: Project) -> set[str]:
    others = {each for each in files if _is_other_test(each, project)}
    counted = new = set(files) - others
    while new:
        words = set().union(*map(_words, new))
        new = {each for each in others if Path(each).stem in words}
        counted, others = counted | new, others - new
    return counted


def _is_other_test(path: str, project: Project) -> bool:
    name = Path(path).name
    if Path(path) == project.own or path in project.plugins or name == "__init__.py":
        return False
    return any(fnmatch(path if "/" in each else name, each) for each in project.test_files)


def _words(path: str) -> set[str]:
    """Return the words in a source file; empty for another file."""
    if not path.endswith(".py"):
        return set()
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return set()
    return set(re.findall(r"\w+", text))
