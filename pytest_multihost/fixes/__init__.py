"""Published fixes of hangs and out-of-memory errors, each proven on the real library.

Each module holds one: a value `FIX` with the known facts, and functions for your own code. They
need neither pytest nor the rest of this package, and are meant for production code as well. Import
the module that you need: `from pytest_multihost.fixes import replicate`.

The modules are `mesh_scope`, `orbax_barrier`, `prewarm`, `replicate` and `ring`. `Fix` has the
facts about each: its source, and the versions that it may patch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A published fix for a hang or an out-of-memory error, as it was found to work.

    Attributes:
        name: Short name; also the name of its module and of its page in the guide.
        title: Its effect, in a few words.
        upstream: Link to the report or change that made it public.
        symptom: The visible sign of the bug.
        affected: Versions that have the bug, as requirement specifiers: `("jax>=0.8",)`.
        tried: Versions that it was tested with, both sides: `("jax==0.10.2",)`.
        upstream_since: The first version in which upstream has fixed it, as a specifier; None while
            there is none.
        differs: Where measurements differ from the publication; empty where it does not.
    """

    name: str
    title: str
    upstream: str
    symptom: str
    affected: tuple[str, ...]
    tried: tuple[str, ...]
    upstream_since: str | None = None
    differs: str = ""


class UnknownVersionError(RuntimeError):
    """The patch was not made for this version of the package. Nothing was changed."""


def refuse_unknown(package: str, found: str, *, first: str, last: str, instead: str) -> None:
    """Raise unless a patch was made for this version of `package`.

    Args:
        found: The version that is imported.
        first: The oldest version that is known.
        instead: The advice for any other version, a sentence.

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
