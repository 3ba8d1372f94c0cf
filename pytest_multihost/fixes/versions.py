"""Refuse to patch a version whose code nobody has looked at."""

from __future__ import annotations


class UnknownVersionError(RuntimeError):
    """What shall be patched is a version that the patch was not made for. Nothing was changed."""


def refuse_unknown(package: str, found: str, *, first: str, last: str, instead: str) -> None:
    """Return if a patch knows the version of `package`.

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
        f"The patch was made for {first} to {last}, and changes what others may do otherwise.\n"
        f"{instead}"
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return a release's numbers; of anything else, say 0.13.0rc1, those up to its first letter."""
    parts = version.split(".")
    known = [int(part) for part in parts if part.isdecimal()]
    return tuple(known) if len(known) == len(parts) else ()
