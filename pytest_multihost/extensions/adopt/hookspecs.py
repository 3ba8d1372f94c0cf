"""The hook by which a test of another harness becomes a test on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookspec

if TYPE_CHECKING:
    import pytest

    from pytest_multihost.extensions.adopt.adopted import Adopted, Refused

__all__ = ["pytest_multihost_adopt"]


@hookspec(firstresult=True)
def pytest_multihost_adopt(item: pytest.Item) -> Adopted | Refused | None:
    """Return how a test of another harness runs as a world; None if it is not such a test.

    Called for each collected test that has no marker `multihost`, and before that for the
    definition of each test function, because a list of sizes parametrizes it. So it must depend
    only on the collected item::

        def pytest_multihost_adopt(item):
            if mark := item.get_closest_marker("nprocs"):
                return Adopted(ranks=mark.args[0], backend="gloo")

    Returns:
        `Refused`, with the reason, for a test whose number of ranks is not certain.
    """
