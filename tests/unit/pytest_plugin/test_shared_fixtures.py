"""Session fixtures that ranks cannot share."""

from __future__ import annotations

import pytest

from pytest_multihost.core.pytest_plugin.shared_fixtures import share_fixtures
from pytest_multihost.testing import SettingError

REFUSED = {
    "narrow scope": ("scope='module'", "return 1", "its scope is 'module'"),
    "parameters": ("scope='session', params=[1, 2]", "return 1", "it has parameters"),
    "socket": ("scope='session'", "yield socket.socket()", "it opens a socket"),
    "thread": ("scope='session'", "yield started_thread()", "reader"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_fixture_that_a_fork_would_break_is_refused(pytester, kind: str) -> None:
    """The error names the fixture, what it holds, and the setting."""
    options, body, seen = REFUSED[kind]
    items = pytester.getitems(
        f"""
        import pytest, socket, threading

        END = threading.Event()

        def started_thread():
            thread = threading.Thread(target=END.wait, name="reader", daemon=True)
            thread.start()
            return thread

        @pytest.fixture({options})
        def model():
            {body}

        def test_it(model):
            pass
        """
    )
    try:
        with pytest.raises(SettingError) as error:
            share_fixtures(["model"], items)
    finally:
        items[0].module.END.set()
    assert "'model'" in error.value.happened
    assert seen in error.value.seen
    assert "multihost_shared_fixtures" in error.value.remedy
