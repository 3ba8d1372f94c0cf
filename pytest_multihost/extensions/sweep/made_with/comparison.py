"""Says what differs between a sweep and an earlier one, whose results it might take over."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pytest_multihost.extensions.sweep.result import MadeWith

_MAX_NAMED = 3
"""The maximum of differences in a sentence."""


def differences(earlier: MadeWith | None, now: MadeWith, digest: Callable[[str], str]) -> list[str]:
    """Return why the results of an earlier sweep say nothing about a test as it is now.

    Args:
        earlier: What the results of the earlier sweep depend on; None if it was not recorded.
        now: The same of the undisturbed run that has just been made.
        digest: Returns the digest of a file, given its path relative to the rootdir; empty if
            there is no such file.
    """
    if earlier is None:
        return ["an older version of pytest-multihost-hangs has made them"]
    return [*_code(earlier, now, digest), *_packages(earlier, now), *_settings(earlier, now)]


def _code(earlier: MadeWith, now: MadeWith, digest: Callable[[str], str]) -> Iterator[str]:
    for name in earlier.changed:
        yield f"{name} changed during that sweep"
    for name in now.changed:
        yield f"{name} has changed since pytest began"
    for name, known in sorted(earlier.code.items()):
        found = now.code.get(name) or digest(name)
        if found != known and name not in now.changed:
            yield f"{name} has changed" if found else f"{name} is gone"
    for name in sorted(now.code.keys() - earlier.code.keys() - {*now.changed}):
        yield f"{name} is new"


def _packages(earlier: MadeWith, now: MadeWith) -> Iterator[str]:
    """Yield the packages with other versions; which ones are loaded may differ by chance."""
    for name, version in sorted(now.packages.items()):
        if (before := earlier.packages.get(name)) is not None and before != version:
            yield f"{name} is now {version}, not {before}"


def _settings(earlier: MadeWith, now: MadeWith) -> Iterator[str]:
    for name in sorted(earlier.settings.keys() | now.settings.keys()):
        if earlier.settings.get(name) != now.settings.get(name):
            yield f"{name} has changed"


def combined(now: MadeWith, before: MadeWith) -> MadeWith:
    """Return what two sets of runs depend on together; files that differ count as changed.

    Args:
        now: Of the later runs.
    """
    differ = {name for name in now.code.keys() & before.code if now.code[name] != before.code[name]}
    return MadeWith(
        code={**before.code, **now.code},
        packages={**before.packages, **now.packages},
        settings=now.settings,
        changed=tuple(sorted({*now.changed, *before.changed, *differ})),
    )


def because(reasons: list[str]) -> str:
    """Return reasons as one clause, "a.py has changed, and 4 other things"."""
    named = reasons[:_MAX_NAMED]
    if len(reasons) > _MAX_NAMED:
        return f"{', '.join(named)}, and {len(reasons) - _MAX_NAMED} more"
    return " and ".join(([", ".join(named[:-1])] if named[:-1] else []) + named[-1:])
