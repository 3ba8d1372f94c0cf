"""Who is at the other end of a descriptor, and whether anything gets from there to here."""

from __future__ import annotations

from pytest_multihost.model.process import Descriptor

Severed = frozenset[tuple[str, str]]
"""By addresses: whose frames do not arrive at whom."""


def describe_peer(found: Descriptor) -> str:
    """Name the other end of a descriptor for the reader."""
    if found.where == "ours":
        return "the harness"
    leads = "may lead" if found.where == "unknown" else "leads"
    return f"{found.kind} {found.peer or found.target}, which {leads} outside the world"


def is_severed(found: Descriptor, severed: Severed) -> bool:
    """Whether nothing that the other end of a connection sends arrives here."""
    own, other = _addresses(found)
    return (other, own) in severed


def is_under_way(found: Descriptor, severed: Severed) -> bool:
    """Whether a connection has sent what is not acknowledged, and may still arrive there."""
    return found.kind == "tcp" and found.queues[1] > 0 and _addresses(found) not in severed


def _addresses(found: Descriptor) -> tuple[str, str]:
    own, other = (end.rpartition(":")[0] for end in found.ends)
    return own, other
