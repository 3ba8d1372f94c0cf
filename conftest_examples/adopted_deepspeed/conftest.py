"""The hook of the harness, as in DeepSpeed's tests/conftest.py."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    """Start the processes of a test, in place of its function."""
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item._request)  # noqa: SLF001 - as there
        item.runtest = lambda: None
