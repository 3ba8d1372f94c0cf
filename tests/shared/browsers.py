"""A real browser: Debian's Chromium, driven by playwright; without it its tests are skipped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Start the browser."""
    reason = "playwright is not installed: pip install --group browser"
    playwright = pytest.importorskip("playwright.sync_api", reason=reason)
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()
