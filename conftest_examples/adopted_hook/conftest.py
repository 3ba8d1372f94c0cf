"""Adopts the tests with this project's own marker."""

from pytest_multihost.extensions.adopt.adopted import Adopted


def pytest_multihost_adopt(item):
    """Run a test with the marker `nprocs` on that many ranks."""
    if mark := item.get_closest_marker("nprocs"):
        return Adopted(ranks=mark.args[0], backend="gloo")
    return None
