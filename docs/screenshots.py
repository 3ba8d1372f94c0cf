"""Make the pictures of pages that the guide shows: ``python docs/screenshots.py [report|sweep]``.

Runs the example first_hang, sweeps the example hidden_hang, and writes the page of a world of 64
ranks made by hand; takes pictures of all, or of `report` or `sweep` alone, in Debian's Chromium, on
a desk (1280 pixels) and on a telephone (420), light and dark. Needs torch and the group `browser`.
Times differ from run to run, so they are made anew only when the page has changed.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from pytest_multihost.core.report.html import write_page

DOCS = Path(__file__).resolve().parent
EXAMPLES = DOCS.parent / "conftest_examples"
BENCHMARK = DOCS.parent / "benchmarks" / "report.py"
IMAGES = DOCS / "images"
DESK, TELEPHONE = (1280, 960), (420, 900)


def main() -> None:
    """Take all pictures, or some."""
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    with tempfile.TemporaryDirectory() as folder, browser() as started:
        if part in "report":
            take_reports(started, Path(folder))
        if part in "sweep":
            options = ("--ranks", "3", "--multihost-sweep")
            swept = latest(Path(folder, "sweep"), "hidden_hang", "sweep.html", *options)
            for scheme in ("light", "dark"):
                take(started, swept, f"sweep-1280-{scheme}", (1280, 1280), scheme)


def take_reports(started: Any, folder: Path) -> None:  # noqa: ANN401 - playwright's browser
    """Take the pictures of report.html."""
    test = latest(folder / "hang", "first_hang", "report.html", "--ranks", "4")
    for scheme in ("light", "dark"):
        take(started, test, f"report-1280-{scheme}", DESK, scheme)
        take(started, test, f"report-420-{scheme}", TELEPHONE, scheme)
    take(started, test.parent.parent / "report.html", "report-run", (1280, 420), "light")
    lanes = big(folder / "big")
    take(started, lanes, "report-64", (1280, 1420), "light", part="section:has(#timeline)")


@contextmanager
def browser() -> Iterator[Any]:
    """Start the browser."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=arguments
        )
        yield started
        started.close()


def latest(folder: Path, example: str, page: str, *options: str) -> Path:
    """Run an example; return the page of its first test."""
    command = (sys.executable, "-m", "pytest", "-p", "timeout", "-p", "multihost_hangs", "-q")
    done = subprocess.run(
        [*command, *options, f"--multihost-artifacts={folder}"],
        cwd=EXAMPLES / example,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found = sorted((folder / "latest").glob(f"*/{page}"))
    if not found:
        sys.exit(done.stdout + done.stderr)
    return found[0]


def big(folder: Path) -> Path:
    """Write the page of a world of 64 ranks and 10,000 operations."""
    scenes = runpy.run_path(str(BENCHMARK))
    result = scenes["world"](64, 10_000, late=37)
    attempt = scenes["write_folder"](folder, result)
    return write_page(attempt, scenes["page_model_of"](attempt, result))


def take(
    started: Any,  # noqa: ANN401 - playwright's browser
    page: Path,
    name: str,
    size: tuple[int, int],
    scheme: str,
    *,
    part: str | None = None,
) -> None:
    """Take a picture of what a window shows of a page at first, or of a part of it."""
    viewport = {"width": size[0], "height": size[1]}
    tab = started.new_context(viewport=viewport, color_scheme=scheme).new_page()
    tab.goto(page.as_uri())
    tab.wait_for_timeout(200)
    path = IMAGES / f"{name}.png"
    (tab.locator(part) if part else tab).screenshot(path=path)
    tab.context.close()
    print(f"{path.relative_to(DOCS.parent)}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
