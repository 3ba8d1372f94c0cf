"""Versions of the software that must be the same in all processes of a run."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

PACKAGE = "pytest-multihost-hangs"
_RUNTIMES = ("torch", "jax")


def relevant_versions() -> Mapping[str, str]:
    """Return the versions of Python, of this package, and of the runtimes that are installed."""
    found = {"Python": _release(platform.python_version()), PACKAGE: version(PACKAGE)}
    for name in _RUNTIMES:
        try:
            found[name] = _public(version(name))
        except PackageNotFoundError:
            continue
    return found


def version_conflict(named: Sequence[tuple[str, Mapping[str, str]]]) -> str:
    """Return a sentence on the first version that differs between processes; empty if none does.

    A process that does not have a runtime does not count: pytest's own needs none.

    Args:
        named: The processes' names in messages, and their versions.
    """
    first: dict[str, tuple[str, str]] = {}
    for name, versions in named:
        for software, found in versions.items():
            other, expected = first.setdefault(software, (name, found))
            if found != expected:
                return f"{software} is {expected} in {other}, and {found} in {name}."
    return ""


def _release(text: str) -> str:
    """Return the first two numbers: patches of Python change no protocol."""
    return ".".join(text.split(".")[:2])


def _public(text: str) -> str:
    """Return a version without its local part, as in "2.13.0+cpu"."""
    return text.partition("+")[0]
