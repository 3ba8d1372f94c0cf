"""A file has the same result under plain pytest and as worlds of one rank, with `-W error`.

pytest checks a few things only when a test or the whole run ends; a rank leaves before pytest does.
What plain pytest finds after the last test fails its run; for a world it is an error at teardown.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtimes import needs_pytest

HEADER = """
import asyncio, atexit, gc, logging, os, socket, sys, threading, time, unittest, warnings
import pytest

class Bad:
    def __del__(self):
        raise ValueError("in a finalizer")

def cycle(bad):
    bad.itself = bad
"""

CASES = {
    "nothing": "def test_it(): pass",
    "finalizer_at_once": "def test_it(): Bad()",
    "finalizer_in_a_cycle": "def test_it(): cycle(Bad())",
    "finalizer_in_a_collected_cycle": "def test_it():\n    cycle(Bad())\n    gc.collect()",
    "finalizer_in_a_cycle_of_a_fixture": """
        @pytest.fixture
        def bad():
            bad = Bad()
            cycle(bad)
            return bad
        def test_it(bad): pass
    """,
    "finalizer_in_a_cycle_of_a_failed_test": "def test_it():\n    cycle(Bad())\n    assert 0",
    "finalizer_in_a_cycle_of_a_skipped_test": "def test_it():\n    cycle(Bad())\n    pytest.skip()",
    "finalizer_of_a_session_fixture": """
        @pytest.fixture(scope="session")
        def bad():
            yield Bad()
        def test_it(bad): pass
    """,
    "finalizer_of_a_global": "bad = Bad()\ndef test_it(): pass",
    "finalizer_in_a_cycle_though_a_mark_ignores_it": """
        @pytest.mark.filterwarnings("ignore")
        def test_it(): cycle(Bad())
    """,
    "thread_that_raises": """
        def test_it():
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
    """,
    "thread_that_raises_in_teardown": """
        @pytest.fixture
        def thread():
            yield
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
        def test_it(thread): pass
    """,
    "thread_that_ends_much_later": """
        def test_it(): threading.Thread(target=lambda: time.sleep(0.3)).start()
    """,
    "unclosed_file": "def test_it(): open(__file__)",
    "unclosed_file_in_a_cycle": """
        def test_it():
            holder = [open(__file__)]
            holder.append(holder)
    """,
    "unclosed_socket": "def test_it(): socket.socket()",
    "unclosed_file_of_a_global": "file = open(__file__)\ndef test_it(): pass",
    "coroutine_never_awaited": """
        async def nothing(): pass
        def test_it(): nothing()
    """,
    "coroutine_never_awaited_in_a_cycle": """
        async def nothing(): pass
        def test_it():
            holder = [nothing()]
            holder.append(holder)
    """,
    "unclosed_event_loop": "def test_it(): asyncio.new_event_loop()",
    "fixture_finalizer_raises": """
        @pytest.fixture
        def bad():
            yield
            1 / 0
        def test_it(bad): pass
    """,
    "fixture_finalizer_and_test_raise": """
        @pytest.fixture
        def bad():
            yield
            1 / 0
        def test_it(bad): assert 0
    """,
    "addfinalizer_raises": """
        def test_it(request): request.addfinalizer(lambda: 1 / 0)
    """,
    "session_fixture_teardown_raises": """
        @pytest.fixture(scope="session")
        def bad():
            yield
            1 / 0
        def test_it(bad): pass
    """,
    "setup_raises": """
        @pytest.fixture
        def bad(): 1 / 0
        def test_it(bad): pass
    """,
    "teardown_module_raises": "def teardown_module(): 1 / 0\ndef test_it(): pass",
    "teardown_class_raises": """
        class TestIt:
            @classmethod
            def teardown_class(cls): 1 / 0
            def test_it(self): pass
    """,
    "class_cleanup_raises": """
        class TestIt(unittest.TestCase):
            @classmethod
            def setUpClass(cls): cls.addClassCleanup(lambda: 1 / 0)
            def test_it(self): pass
    """,
    "warning_in_the_test": "def test_it(): warnings.warn('now')",
    "warning_that_a_mark_ignores": """
        @pytest.mark.filterwarnings("ignore:now")
        def test_it(): warnings.warn("now")
    """,
    "warning_in_a_fixture": """
        @pytest.fixture
        def bad(): warnings.warn("now")
        def test_it(bad): pass
    """,
    "warning_in_teardown": """
        @pytest.fixture
        def bad():
            yield
            warnings.warn("now")
        def test_it(bad): pass
    """,
    "warning_as_error_by_mark_only": """
        @pytest.mark.filterwarnings("default", "error::UserWarning")
        def test_it(): warnings.warn("now")
    """,
    "test_returns_a_value": "def test_it(): return 3",
    "warning_in_atexit": "def test_it(): atexit.register(warnings.warn, 'now')",
    "raise_in_atexit": "def test_it(): atexit.register(lambda: 1 / 0)",
    "unraisable_hook_replaced": """
        def test_it():
            sys.unraisablehook = lambda _: None
            cycle(Bad())
    """,
    "unraisable_hook_replaced_for_a_while": """
        def test_it(monkeypatch):
            monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
            Bad()
    """,
    "thread_hook_replaced": """
        def test_it(monkeypatch):
            monkeypatch.setattr(threading, "excepthook", lambda _: None)
            thread = threading.Thread(target=lambda: 1 / 0)
            thread.start()
            thread.join()
    """,
    "xfail_and_teardown_raises": """
        @pytest.fixture
        def bad():
            yield
            1 / 0
        @pytest.mark.xfail(reason="known", raises=AssertionError)
        def test_it(bad): assert 0
    """,
    "logging_into_a_closed_stream": """
        def test_it():
            with open(os.devnull, "w") as file:
                handler = logging.StreamHandler(file)
            logging.getLogger("x").addHandler(handler)
            logging.getLogger("x").warning("lost")
    """,
    "standard_output_closed": "def test_it(): os.close(os.dup(1)); print('x')",
    "system_exit": "def test_it(): sys.exit(3)",
    "system_exit_in_a_thread": """
        def test_it():
            thread = threading.Thread(target=sys.exit)
            thread.start()
            thread.join()
    """,
    "exception_group_in_teardown": """
        def test_it(request):
            request.addfinalizer(lambda: 1 / 0)
            request.addfinalizer(lambda: [][0])
    """,
    "changed_directory": "def test_it(tmp_path): os.chdir(tmp_path)",
}

PROGRAM = """
import gc, json, os, sys
from pathlib import Path
import pytest

class Recorder:
    def __init__(self):
        self.found = set()
    def pytest_runtest_logreport(self, report):
        wasxfail = hasattr(report, "wasxfail")
        name = Path(report.nodeid.partition("::")[0]).stem.removeprefix("test_")
        if report.failed:
            self.found.add((name, "failed" if report.when == "call" else "error"))
        elif report.skipped:
            self.found.add((name, "xfailed" if wasxfail else "skipped"))
        elif report.when == "call":
            self.found.add((name, "xpassed" if wasxfail else "passed"))

def run(result, *args):
    child = os.fork()
    if child == 0:
        # Else a finalizer may run while pytest parses a file, and CPython 3.11.7 raises a
        # SystemError: "AST constructor recursion depth mismatch". pytest collects at its end.
        gc.disable()
        recorder = Recorder()
        try:
            pytest.main(["-W", "error", "-p", "no:cacheprovider", *args], plugins=[recorder])
        except Exception as error:  # as pytest ends
            recorder.found.add((Path(args[-1]).stem.removeprefix("test_"), "error"))
        Path(result).write_text(json.dumps(sorted(recorder.found)))
        os._exit(0)
    os.waitpid(child, 0)

directory = Path(sys.argv[1])
if sys.argv[2] == "plain":
    for file in sorted(directory.glob("test_*.py")):
        run(file.with_suffix(".plain"), str(file))
else:
    options = ("-p", "multihost_hangs", "--multihost-mode", "auto", "--ranks", "1")
    run(directory / "worlds", *options, str(directory))
"""


def outcomes(directory: Path, how: str) -> dict[str, set[str]]:
    """Run all cases plainly, each by itself, or as worlds; return the outcomes of each."""
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, "-c", PROGRAM, str(directory), how]
    log = directory / f"{how}.log"
    with log.open("w") as file:
        subprocess.run(
            command, cwd=directory, env=environment, stdout=file, stderr=file, check=True
        )
    pattern = "*.plain" if how == "plain" else "worlds"
    found: dict[str, set[str]] = {}
    for result in directory.glob(pattern):
        for name, outcome in json.loads(result.read_text()):
            found.setdefault(name, set()).add(outcome)
    return found


def worst(found: set[str]) -> set[str]:
    """Return the outcome that counts of those of one test."""
    return next(({each} for each in ("failed", "error") if each in found), found)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[set[str], set[str]]]:
    """Run all cases both ways."""
    from textwrap import dedent

    directory = tmp_path_factory.mktemp("parity")
    for name, source in CASES.items():
        (directory / f"test_{name}.py").write_text(HEADER + dedent(source))
    plain, worlds = outcomes(directory, "plain"), outcomes(directory, "worlds")
    return {name: (plain.get(name, set()), worlds.get(name, set())) for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_a_world_ends_as_plain_pytest(
    name: str, both: dict[str, tuple[set[str], set[str]]]
) -> None:
    """With the same outcome; a world has one report, so of several it is the worst."""
    plain, world = both[name]
    assert plain
    assert worst(world) == worst(plain)


LATE = """
import threading, time, pytest

def late():
    time.sleep(0.02)
    1 / 0

@pytest.mark.multihost(ranks=2)
def test_it():
    threading.Thread(target=late).start()
"""


@needs_pytest((8, 4), "does not wait for a thread's exception")
@pytest.mark.program(LATE, "-W", "error")
def test_a_thread_may_raise_after_the_test(worlds) -> None:
    """Plain pytest has it where the thread ends before pytest does: a few milliseconds."""
    worlds.run.assert_outcomes(passed=1, errors=1)
    assert "ZeroDivisionError" in worlds.stdout


BLOCKS = """
import time, pytest

class Bad:
    def __del__(self):
        time.sleep(100)

@pytest.mark.multihost(ranks=2, timeout=3)
def test_it(world):
    bad = Bad()
    bad.itself = bad
    if world.rank == 1:
        bad.itself = None
        Bad.__del__ = lambda self: None
"""


@pytest.mark.program(BLOCKS)
def test_a_finalizer_that_blocks_in_the_last_collection_is_bounded(worlds) -> None:
    """By the deadline of the world, and the rank is named."""
    worlds.run.assert_outcomes(failed=1)
    verdict = worlds.verdicts["test_it"]
    assert verdict["outcome"] == "hung"
    assert verdict["diagnosis"]["culprits"] == [0]


OPTIONAL = (
    "assertion",
    "cacheprovider",
    "capture",
    "debugging",
    "doctest",
    "faulthandler",
    "junitxml",
    "legacypath",
    "logging",
    "monkeypatch",
    "recwarn",
    "skipping",
    "subtests",
    "terminal",
    "threadexception",
    "unittest",
    "unraisableexception",
    "warnings",
)
"""Plugins of pytest's own that a user may switch off."""

PLAIN = """
import logging, pytest

@pytest.mark.multihost(ranks=2)
@pytest.mark.parametrize("is_good", [True, False])
def test_it(world, is_good):
    print("printed by", world.rank)
    logging.getLogger().warning("logged")
    assert is_good or world.rank == 0
"""


@pytest.mark.parametrize("name", OPTIONAL)
def test_plugins_of_pytest_may_be_switched_off(name: str, run_worlds) -> None:
    """Ranks do without them, and the reports are the same."""
    worlds = run_worlds(PLAIN, "-p", f"no:{name}")
    assert worlds.verdicts["test_it[True]"]["outcome"] == "passed"
    assert worlds.verdicts["test_it[False]"]["outcome"] == "failed"
    assert "AssertionError" in (worlds.directory("test_it[False]") / "verdict.json").read_text()
    assert "printed by 1" in worlds.output("test_it[False]", 1)


@pytest.mark.parametrize("name", ["reports", "tmpdir"])
def test_plugins_that_worlds_need_are_named(name: str, run_worlds) -> None:
    """Not by an internal error."""
    worlds = run_worlds(PLAIN, "-p", f"no:{name}")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert f"-p no:{name}" in worlds.run.stderr.str()
