"""The peers of descriptors: who they are, and whether data can get from there to here."""

from __future__ import annotations

from pytest_multihost.model.process import Descriptor


def describe_peer(found: Descriptor) -> str:
    """Name the peer of a descriptor for the reader."""
    if found.where == "ours":
        return "the harness"
    leads = "may lead" if found.where == "unknown" else "leads"
    return f"{found.kind} {found.peer or found.target}, which {leads} outside the world"


def addresses(found: Descriptor) -> tuple[str, str]:
    """Return the addresses of a connection without their ports: its own, its peer's."""
    own, peer = (end.rpartition(":")[0] for end in found.ends)
    return own, peer
