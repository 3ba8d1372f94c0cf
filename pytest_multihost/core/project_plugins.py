"""Load the plugins that `pytest` would have in a folder, for programs that run no tests.

pytest itself finds and loads them. This takes half a second and imports pytest and every installed
plugin, so `may_offer` first checks whether any of them can implement a hook of this package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pluggy

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.plugin_source import PluginSource
from pytest_multihost.core.registry import complete, new_plugin_manager

_OURS = re.compile(r"pytest[-_.]multihost[-_.]hangs\b", re.IGNORECASE)
"""The name of this distribution in a requirement of another."""

_MAY_OFFER = re.compile(rb"multihost|pytest_plugins|import \*|register")
"""Matches every conftest.py that implements a hook of this package or loads a plugin that does."""

_NAMES_PLUGIN = re.compile(rb"(?<![\w-])-p")
_NOTHING_HERE = ("--noconftest", "-c", os.devnull, f"--rootdir={os.devnull}")
"""Options with which pytest reads no file of the working directory."""

_CONFIGURATION = (
    *(f"{dot}pytest.{ending}" for dot in ("", ".") for ending in ("toml", "ini")),
    "pyproject.toml",
    "tox.ini",
    "setup.cfg",
)
"""Files that may hold pytest's options."""


def may_offer(source: PluginSource) -> bool:
    """Return whether third-party plugins may implement hooks of this package; imports none.

    An installed plugin may if its distribution requires this one.
    """
    return bool(
        source.named
        or os.environ.get("PYTEST_PLUGINS")
        or _NAMES_PLUGIN.search(os.environ.get("PYTEST_ADDOPTS", "").encode())
        or any(_MAY_OFFER.search(text) for text in _texts(_conftests(source.folders)))
        or any(
            b"addopts" in text and _NAMES_PLUGIN.search(text)
            for text in _texts(_configurations(source.folders))
        )
        or _is_required_by_plugin()
    )


def commands_source(command: str, source: PluginSource) -> PluginSource:
    """Return where to look for a command that no plugin of this package has; imports none.

    The files of a project count if one of them adds the command by this name. Otherwise only
    installed plugins are asked.

    Raises:
        SettingError: Another user may have written a file that would be loaded.
    """
    adds = re.compile(
        rb"add_parser\(\s*[\"']%s[\"']" % re.escape(command.encode("utf-8", "replace"))
    )
    if not any(adds.search(text) for text in _texts(_programs(source.folders))):
        return PluginSource(folders=())
    loaded = (*_programs(source.folders), *_configurations(source.folders))
    for path in dict.fromkeys((*map(Path, source.folders), *filter(Path.exists, loaded))):
        if why := _why_foreign(path):
            raise SettingError(
                f"the plugins of this folder are not loaded: {path} {why}",
                seen=f"A plugin there may define the command {shown(command)}, and would"
                " run with your rights.",
            )
    return source


def _why_foreign(path: Path) -> str:
    """Return why another user may have written a file or may change a folder; empty if not."""
    found = path.stat()
    if found.st_uid not in (os.geteuid(), 0):
        return f"belongs to the user with the id {found.st_uid}"
    is_shared = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
    return "may be written by all users" if is_shared else ""


def _programs(folders: Sequence[str]) -> Iterator[Path]:
    """Yield the files that may add a command: conftest.py, and modules that one may name."""
    yield from _conftests(folders)
    for folder in folders:
        yield from Path(folder).glob("*.py")
        yield from Path(folder).glob("*/*.py")


def project_plugins(source: PluginSource) -> pluggy.PluginManager:
    """Return a manager with the plugins that pytest would have.

    Paths that conftest.py files add to `sys.path` go to its end.

    Raises:
        SettingError: A plugin cannot be loaded, or needs pytest, which is not installed.
    """
    if importlib.util.find_spec("pytest") is None:
        if source.named:
            raise SettingError("-p needs pytest, which is not installed")
        return new_plugin_manager()
    from pytest_multihost.core.pytest_private import load_plugins

    named = [part for each in source.named for part in ("-p", each)]
    with _paths_behind():
        try:
            manager = load_plugins([*named, *(source.folders or _NOTHING_HERE)])
        except Exception as error:
            raise SettingError(
                "the plugins that pytest has here cannot be loaded", seen=_why(error)
            ) from error
    complete(manager)
    return manager


@contextlib.contextmanager
def environment_kept() -> Iterator[None]:
    """Undo all changes that the block makes to environment variables."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextlib.contextmanager
def _paths_behind() -> Iterator[None]:
    """Move paths that the block adds to `sys.path` to its end, behind those of a script."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = [*before, *(each for each in sys.path if each not in before)]


def _why(error: BaseException) -> str:
    """Return why a plugin could not be loaded."""
    if isinstance(error, RecursionError):
        return f"a configuration file or a plugin is nested too deeply: {error}"
    cause = getattr(error, "cause", None)  # the error that a conftest.py raised
    text = str(error) if cause is None else f"{getattr(error, 'path', '')}: {cause!r}"
    return text or repr(error)


def _conftests(folders: Sequence[str]) -> Iterator[Path]:
    """Yield the conftest.py files that pytest may load before it collects."""
    for folder in folders:
        yield from (each / "conftest.py" for each in _upwards(folder))
        yield from Path(folder).glob("test*/conftest.py")


def _configurations(folders: Sequence[str]) -> Iterator[Path]:
    for folder in folders:
        yield from (each / name for each in _upwards(folder) for name in _CONFIGURATION)


def _upwards(folder: str) -> tuple[Path, ...]:
    path = Path(folder).absolute()
    return (path, *path.parents)


def _texts(paths: Iterator[Path]) -> Iterator[bytes]:
    """Yield the contents of those files that exist."""
    for path in dict.fromkeys(paths):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def _is_required_by_plugin() -> bool:
    import importlib.metadata  # 20 ms

    found = [each.dist for each in importlib.metadata.entry_points(group="pytest11")]
    return any(
        _OURS.match(requirement)
        for each in found
        if each is not None and not _OURS.fullmatch(each.name)
        for requirement in each.requires or ()
    )
