from pathlib import Path

import letters

from pytest_multihost.hookspecs import Backend


def start(spec):
    """Join this world's letters. Runs in each rank."""
    letters.join(Path(spec.scratch, "letters"), spec.rank, spec.world.size)


def pytest_multihost_backends():
    return [
        Backend(
            name="letters",
            start=start,
            symptoms=(r"letters: none of rank \d+",),
            offered_by="custom_backend/conftest.py",
        )
    ]
