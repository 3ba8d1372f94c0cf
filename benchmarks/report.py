"""How long report.html takes to write and to open: 64 ranks, 10,000 operations.

    python benchmarks/report.py [RANKS [OPERATIONS]]

Writes the page of a world made by hand, and opens it from disk in Debian's Chromium, where
playwright is installed (`pip install --group browser`, `apt-get install chromium`).
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_multihost.core.blame import judge_world
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.report import (
    Attempt,
    build_verdict,
    write_attempt,
    write_facts,
)
from pytest_multihost.core.report.html import PageModel, write_index, write_page
from pytest_multihost.testing import (
    RUNTIME_SCOPE,
    Activity,
    Dump,
    Event,
    Frame,
    Operation,
    Operations,
    RankSnapshot,
    SourceContext,
    WorldResult,
    WorldSnapshot,
    make_dump,
    make_event,
    make_spec,
    to_json,
)

ROOT = "/home/u/project"
STARTED_S = 1000.0
STEP_S = 0.01
RUNS = 5
SOURCES = {17: "return handle.read()", 31: "restore(step)", 88: "dist.all_reduce(x)"}


def world(size: int, operations: int, *, late: int = 0) -> WorldResult:
    """Return a world in which one rank does not get to the last all_reduce.

    Args:
        size: Number of ranks.
        operations: Of all of them together.
        late: Who stays behind.
    """
    each = operations // size
    pages = tuple(_page(rank, size, each, is_late=rank == late) for rank in range(size))
    ended_s = STARTED_S + 0.5 + each * STEP_S + 2.2
    look = WorldSnapshot(
        at_s=ended_s, reason="end", ranks=tuple(_seen(page, late) for page in pages)
    )
    return WorldResult(
        spec=make_spec(size),
        launch="fork",
        started_at="2026-11-21T00:00:00Z",
        started_s=STARTED_S,
        ended_s=ended_s + 0.1,
        history=tuple(sorted(_history(size, ended_s), key=lambda event: event.at_s)),
        ending="proof",
        reason="nothing can move before the deadline: ranks still in call",
        dumps=tuple(_dump(rank, is_late=rank == late) for rank in range(size)),
        snapshots=(look,),
        operations=pages,
        progress_s=ended_s - 2.2,
        detected_s=ended_s,
    )


def _page(rank: int, size: int, count: int, *, is_late: bool) -> Operations:
    last = count - 1 if is_late else count
    recent = tuple(_operation(rank, size, n, is_open=n == count) for n in range(1, last + 1))
    key = (tuple(range(size)), 0, RUNTIME_SCOPE)
    return Operations(rank, recent, {key: last})


def _operation(rank: int, size: int, sequence: int, *, is_open: bool) -> Operation:
    begin_s = STARTED_S + 0.5 + sequence * STEP_S + 0.0001 * ((rank * 7 + sequence * 3) % 40)
    return Operation(
        name="all_reduce" if sequence % 3 else "all_gather",
        kind="collective",
        group=tuple(range(size)),
        sequence=sequence,
        since_s=begin_s,
        waited_s=begin_s,
        ended_s=None if is_open else STARTED_S + 0.5 + sequence * STEP_S + 0.007,
        detail="f32[4096]",
        frame=Frame(f"{ROOT}/restore.py", 88, "restore"),
    )


def _seen(page: Operations, late: int) -> RankSnapshot:
    reads = Activity("read", "/data/ckpt/shard-0")
    entered = tuple(page.entered.items())
    return RankSnapshot(
        rank=page.rank,
        label="IO" if page.rank == late else "BLOCKED",
        activity=reads if page.rank == late else Activity("futex"),
        operations=page.open,
        entered=entered,
    )


def _dump(rank: int, *, is_late: bool) -> Dump:
    where = "storage.py:17 read_shard" if is_late else "restore.py:88 restore"
    return make_dump(rank, f"{ROOT}/{where}", f"{ROOT}/test_ckpt.py:31 test_restore")


def _history(size: int, ended_s: float) -> Iterator[Event]:
    usage = {"cpu_s": 0.3, "peak_rss_bytes": 180 << 20}
    for rank in range(size):
        yield make_event(STARTED_S + 0.01, rank, "forked", {"pid": 4000 + rank})
        yield make_event(STARTED_S + 0.02, rank, "hello")
        yield make_event(STARTED_S + 0.4, rank, "ready")
        yield make_event(STARTED_S + 0.45, rank, "released", {"gate": "go"})
        yield make_event(STARTED_S + 0.46, rank, "phase", {"phase": "setup"})
        yield make_event(STARTED_S + 0.47, rank, "phase", {"phase": "call"})
        by_harness = {"code": None, "signal": 15, "by_harness": True}
        yield make_event(ended_s + 0.05, rank, "exited", {**by_harness, **usage})


def write_folder(directory: Path, result: WorldResult) -> Path:
    """Write everything that a run leaves of a world, but its page; return the attempt's folder."""
    attempt = directory / "test_ckpt.py-test_restore-1"
    attempt.mkdir(parents=True)
    context = SourceContext(ROOT, _source_of)
    judged = judge_world(result, Symptoms(), context)
    about = _about(attempt)
    told = to_json(build_verdict(judged, about))
    write_facts(attempt, result, Symptoms(), about, root=ROOT)
    write_attempt(attempt, told, result.history, origin_s=result.started_s)
    (directory / "verdicts.jsonl").write_text(json.dumps(told) + "\n", encoding="utf-8")
    for rank in range(result.spec.size):
        text = "".join(f"step {step} of rank {rank}\n" for step in range(200))
        (attempt / f"rank-{rank}.log").write_text(text, encoding="utf-8")
    return attempt


def _about(attempt: Path) -> Attempt:
    versions = {"python": "3.11.7", "torch": "2.13.0"}
    return Attempt(attempt.parent.name, attempt.name, None, versions)


def _source_of(file: str, line: int) -> str:
    return SOURCES.get(line, "") if file.startswith(ROOT) else ""


def page_model_of(attempt: Path, result: WorldResult) -> PageModel:
    """Return what the page of a folder is made from."""
    context = SourceContext(ROOT, _source_of)
    judged = judge_world(result, Symptoms(), context)
    return PageModel(judged=judged, verdict=build_verdict(judged, _about(attempt)))


def opening_times(page: Path) -> dict[str, float] | None:
    """Return milliseconds from the start of the navigation, or None without a browser."""
    chromium = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if chromium is None:
        return None
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        found = [_opened(browser, page) for _ in range(RUNS)]
        browser.close()
    return {name: statistics.median(each[name] for each in found) for name in found[0]}


def _opened(browser: Any, page: Path) -> dict[str, float]:  # noqa: ANN401 - playwright's
    tab = browser.new_page()
    tab.goto(page.as_uri())
    while not tab.evaluate("performance.getEntriesByName('first-contentful-paint').length"):
        tab.wait_for_timeout(50)
    times: dict[str, float] = tab.evaluate(
        """(() => {
          const named = (name) => performance.getEntriesByName(name)[0].startTime;
          return {
          "first contentful paint": named("first-contentful-paint"),
          "lanes drawn": named("lanes drawn"),
          "load event": performance.getEntriesByType("navigation")[0].loadEventEnd,
        }; })()"""
    )
    tab.close()
    return times


def main(size: int = 64, operations: int = 10_000) -> None:
    """Write and open a page, and print how long each takes."""
    with tempfile.TemporaryDirectory() as folder:
        result = world(size, operations)
        attempt = write_folder(Path(folder, "run"), result)
        model = page_model_of(attempt, result)
        times = []
        for _ in range(RUNS):
            begin = time.process_time()
            page = write_page(attempt, model)
            times.append(time.process_time() - begin)
        begin = time.process_time()
        write_index(attempt.parent)
        index_s = time.process_time() - begin
        print(f"{size} ranks, {operations} operations: {page.stat().st_size / 1024:.0f} KiB")
        print(f"  written in {statistics.median(times):.3f} s, the run's page in {index_s:.3f} s")
        opened = opening_times(page)
        if opened is None:
            print("  not opened: there is no chromium, or no playwright")
        else:
            print("".join(f"  {name} after {ms:.0f} ms\n" for name, ms in opened.items()), end="")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
