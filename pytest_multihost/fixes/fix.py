"""What is known of a published fix: its source, and the versions that it concerns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """A published fix for a hang or an out-of-memory error, as it was found to work.

    Attributes:
        name: Short name; also the name of its module and of its page in the guide.
        title: What it does, in a few words.
        upstream: Link to the report or change that made it public.
        symptom: What someone sees who has the bug.
        affected: Versions that have the bug, as requirement specifiers: `("jax>=0.8",)`.
        tried: Versions that it was tested with, both sides: `("jax==0.10.2",)`.
        upstream_since: The first version in which upstream has fixed it, as a specifier; None while
            there is none.
        differs: Where what was measured differs from what was published; empty where it does not.
    """

    name: str
    title: str
    upstream: str
    symptom: str
    affected: tuple[str, ...]
    tried: tuple[str, ...]
    upstream_since: str | None = None
    differs: str = ""
