"""A real browser: Debian's Chromium, driven by playwright; without it these tests are skipped."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sweeps import SWEEP

from pytest_multihost.core.registry import new_plugin_manager, offered_renderers
from pytest_multihost.core.report.html import write_index, write_page
from pytest_multihost.extensions.sweep.html import write_sweep_page
from pytest_multihost.testing import WorldResult

BENCHMARK = Path(__file__).parent.parent.parent / "benchmarks" / "report.py"
RENDERERS = offered_renderers(new_plugin_manager().hook)
SMALL, BIG = (4, 80), (64, 10_000)
HOSTILE = "</script><script>document.title = 'caught'</script><img src=x onerror=alert(1)>"

scenes = SimpleNamespace(**runpy.run_path(str(BENCHMARK)))


@dataclass
class Opened:
    """A page in the browser, and what the browser had to say of it.

    Attributes:
        tab: playwright's page.
        said: Messages of the console and errors that nobody caught.
        asked: Addresses that were asked for.
    """

    tab: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def chosen(self) -> str:
        """Return what is said of the operation that is chosen."""
        return str(self.tab.inner_text("#selection"))

    def center_of(self, rank: int, nth: int) -> tuple[float, float]:
        """Return where an operation of a rank is drawn."""
        x, y = self.tab.evaluate(
            """([rank, nth]) => {
              const lane = lanes[laneOf.get(rank)], each = lane.operations.at(nth);
              const area = canvas.getBoundingClientRect();
              const end = xOf(each.end === Infinity ? lane.end : each.end);
              const y = yOf(laneOf.get(rank)) + height / 2;
              return [area.left + (xOf(each.begin) + end) / 2, area.top + y];
            }""",
            [rank, nth],
        )
        return x, y


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Open]:  # noqa: ANN401 - playwright's
    """Open a file as a reader does, in a window of some size."""
    contexts = []

    def open_(path: Path, *, width: int = 1280, scheme: str = "light", **more: Any) -> Opened:  # noqa: ANN401
        size = {"width": width, "height": 900}
        context = browser.new_context(viewport=size, color_scheme=scheme, **more)
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.tab.on("console", lambda message: opened.said.append(message.text))
        opened.tab.on("pageerror", lambda error: opened.said.append(str(error)))
        opened.tab.on("request", lambda request: opened.asked.append(request.url))
        opened.tab.goto(path.as_uri())
        return opened

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write the pages that are looked at: by hand, so that they are the same every time."""
    found = {}
    sizes = {"small": SMALL, "big": BIG, "hostile": SMALL, "mismatch": SMALL}
    for name, (size, operations) in sizes.items():
        run = tmp_path_factory.mktemp(name) / "run"
        result = scenes.world(size, operations, late=1)
        if name == "hostile":
            result = replace(
                result, spec=replace(result.spec, nodeid=f"test_it.py::test[{HOSTILE}]")
            )
        if name == "mismatch":
            result = clashing(result)
        attempt = scenes.write_folder(run, result)
        (attempt / "rank-0.log").write_text(HOSTILE if name == "hostile" else "step 1\n")
        found[name] = write_page(attempt, scenes.page_model_of(attempt, result), RENDERERS)
        found[f"{name} run"] = write_index(run, RENDERERS)
    swept = tmp_path_factory.mktemp("sweep") / "run" / "test"
    swept.mkdir(parents=True)
    found["sweep"] = write_sweep_page(swept, SWEEP)
    passing = tmp_path_factory.mktemp("passing") / "run" / "test"
    passing.mkdir(parents=True)
    weaknesses = tuple(replace(each, accepted="known") for each in SWEEP.weaknesses)
    passed = replace(SWEEP, status="passed", weaknesses=weaknesses)
    found["passed sweep"] = write_sweep_page(passing, passed)
    return found


def clashing(result: WorldResult) -> WorldResult:
    """Return a world in which rank 1 is in a broadcast, and nobody else is."""
    [look] = result.snapshots
    pages, ranks = list(result.operations), list(look.ranks)
    broadcast = replace(pages[0].recent[-1], name="broadcast")
    pages[1] = replace(pages[1], recent=(*pages[1].recent, broadcast), entered=pages[0].entered)
    ranks[1] = replace(ranks[0], rank=1, operations=(broadcast,))
    looks = (replace(look, ranks=tuple(ranks)),)
    return replace(result, operations=tuple(pages), snapshots=looks, ending="mismatch")
