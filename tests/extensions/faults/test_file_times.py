"""When a file was made and changed, as the fault `stale_files` reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_multihost.extensions.faults.file_views import born_and_changed_s

pytestmark = pytest.mark.unit


def test_when_a_file_was_made_stays_when_it_changes(tmp_path: Path) -> None:
    """And there is no time of a file that does not exist."""
    file = tmp_path / "a"
    file.write_text("text")
    first = born_and_changed_s(str(file))
    file.chmod(0o600)
    second = born_and_changed_s(str(file))
    assert first is not None
    assert second is not None
    assert second[1] == pytest.approx(file.stat().st_ctime)
    assert second[0] in (first[0], second[1])  # the latter on a file system without that time
    assert born_and_changed_s(str(tmp_path / "b")) is None
