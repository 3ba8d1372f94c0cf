"""Refuse to patch a version of a package whose code was not checked."""

from __future__ import annotations


class UnknownVersionError(RuntimeError):
    """The patch was not made for this version of the package. Nothing was changed."""


def refuse_unknown(package: str, found: str, *, first: str, last: str, instead: str) -> None:
    """Raise unless a patch was made for this version of `package`.

    Args:
        package: Its name on PyPI.
        found: The version that is imported.
        first: The oldest version that is known.
        last: The newest one.
        instead: What to do with any other version, a sentence.

    Raises:
        UnknownVersionError: It is older, newer or no version at all.
    """
    if _numbers(first) <= _numbers(found) <= _numbers(last):
        return
    raise UnknownVersionError(
        f"{package} {found} was not patched.\n"
        f"The patch was made for {first} to {last}; the code of other versions may differ.\n"
        f"{instead}"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return a release's numbers; of anything else, say 0.13.0rc1, those up to its first letter."""
    parts = version.split(".")
    known = [int(part) for part in parts if part.isdecimal()]
    return tuple(known) if len(known) == len(parts) else ()
