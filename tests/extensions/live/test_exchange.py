"""What pytest tells its watcher."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.extensions.live.watch.exchange import Told, tell, told_in

pytestmark = pytest.mark.unit

LONG = Told(1, "tests/test_a.py::test_with_a_long_name", has_alarm=True, is_call=True)
SHORT = Told(2)


def test_the_last_test_that_was_told_counts(tmp_path: Path) -> None:
    """Its line may be shorter than the one before it."""
    tell(tmp_path, 40, LONG)
    assert told_in(tmp_path) == {40: LONG}
    tell(tmp_path, 40, SHORT)
    assert told_in(tmp_path) == {40: SHORT}


def test_a_line_that_is_not_whole_is_not_believed(tmp_path: Path) -> None:
    """It was read while another one was written over it."""
    tell(tmp_path, 40, LONG)
    [path] = tmp_path.iterdir()
    path.write_bytes(path.read_bytes().replace(b"test_a", b"test_b"))
    assert told_in(tmp_path) == {}
