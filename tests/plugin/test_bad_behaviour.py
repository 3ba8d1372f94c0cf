"""Whatever a test does to its process: a clear message, no hang, and the next test runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

HEADER = '''
import atexit, json, os, pathlib, pytest, resource, signal, socket, struct, subprocess, sys
import threading, time

class Unpicklable(Exception):
    def __reduce__(self):
        raise TypeError("never")

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no")
    __repr__ = __str__

class Leaves(BaseException):
    def __str__(self):
        sys.exit("text")
    __repr__ = __str__

@pytest.fixture
def broken_on_rank_1(world):
    if world.rank:
        raise OSError("no data")

@pytest.fixture
def stuck_in_setup(world):
    if world.rank:
        time.sleep(600)

@pytest.fixture
def stuck_in_teardown(world):
    yield
    if world.rank:
        time.sleep(600)

def channel():
    """Return the descriptor of the rank's connection to pytest."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                return int(name)
        except OSError:
            continue
    raise LookupError("no socket")

def limit_memory():
    """Leave the process 64 MiB more than it has."""
    has = int(pathlib.Path("/proc/self/statm").read_text().split()[5]) * 4096
    resource.setrlimit(resource.RLIMIT_DATA, (has + (64 << 20),) * 2)
'''

NEXT = """
@pytest.mark.multihost(ranks=2)
def test_next{name}(world):
    world.barrier()
"""


@pytest.fixture
def run_before_next(run_worlds) -> Callable[..., Any]:
    """Run a source text with one more test behind it, which must pass."""

    def run(source: str, *args: str) -> Any:  # noqa: ANN401 - see the conftest
        worlds = run_worlds(textwrap.dedent(source) + NEXT.format(name=""), *args)
        assert worlds.verdicts["test_next"]["status"] == "passed", worlds.stdout
        return worlds

    return run


@dataclass(frozen=True)
class Case:
    """What a test does, and how pytest must report it.

    Attributes:
        body: What both ranks do.
        status: The status of the verdict.
        told: What the report says.
        mark: A decorator of the test.
    """

    body: str
    status: str = "passed"
    told: str = ""
    mark: str = ""

    def source(self, name: str, timeout_s: float) -> str:
        """Return the case as a test, and behind it a test that must pass."""
        body = textwrap.indent(textwrap.dedent(self.body), "    ")
        head = f"\n{self.mark}\n@pytest.mark.multihost(ranks=2, timeout={timeout_s})\n"
        test = f"def test_{name}(world, record_property):\n{body}\n"
        return head + test + NEXT.format(name=f"_after_{name}")


@dataclass(frozen=True)
class Told:
    """How one test was reported."""

    status: str | None
    text: str


def run_cases(directory: Path, cases: Mapping[str, Case], timeout_s: float) -> dict[str, Told]:
    """Run all cases, one after the other, in one run of pytest."""
    tests = [case.source(name, timeout_s) for name, case in cases.items()]
    (directory / "test_worlds.py").write_text(HEADER + "".join(tests))
    (directory / "pytest.ini").write_text("[pytest]\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs", "--junitxml=out.xml"],
        cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=110,
        check=False,
    )
    assert run.returncode in (0, 1), run.stdout.decode("utf-8", "backslashreplace")
    lines = (directory / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    statuses = {v["nodeid"].rpartition("::test_")[2]: v["status"] for v in map(json.loads, lines)}
    return {
        test.get("name", "").removeprefix("test_"): Told(
            statuses.get(test.get("name", "").removeprefix("test_")), _text(test)
        )
        for test in ET.parse(directory / "out.xml").iter("testcase")  # noqa: S314 - our own
    }


def _text(test: ET.Element) -> str:
    return "\n".join(f"{each.get('message', '')}\n{each.text or ''}" for each in test)


def check(told: Mapping[str, Told], cases: Mapping[str, Case], name: str) -> None:
    """Compare one case with what it must be; the test behind it must have passed."""
    case = cases[name]
    assert told[f"next_after_{name}"] == Told("passed", "")
    assert (told[name].status, case.told in told[name].text) == (case.status, True), told[name].text


WHOSE = "other code than this package wrote into the rank's connection to pytest"
LOST = "rank 1: lost its connection to pytest in the test, exit code 70"

QUICK = {
    # What does not concern the test's result must not change it.
    "own_session": Case(
        """
        with pytest.raises(PermissionError):
            os.setsid()
        with pytest.raises(PermissionError):
            os.setpgid(0, 0)
        """
    ),
    "environment_cleared": Case("os.environ.clear()\nworld.barrier()"),
    "environment_replaced": Case("os.environ = {}\nworld.barrier()"),
    "environment_poisoned": Case(
        """
        os.environ.update(PATH="", PYTHONPATH="/nowhere", PYTEST_ADDOPTS="--bad", RANK="77")
        os.environ.update(PYTEST_MULTIHOST_RANK="x", PYTEST_CURRENT_TEST="x", LD_PRELOAD="/no")
        world.barrier()
        assert world.rank < 2
        """
    ),
    "directory_gone": Case(
        """
        gone = pathlib.Path(f"gone-{world.rank}").resolve()
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
        world.barrier()
        """
    ),
    "thread_left": Case("threading.Thread(target=time.sleep, args=(600,)).start()"),
    "thread_talks_on": Case(
        """
        def talk():
            while True:
                print("on and on")
        threading.Thread(target=talk, daemon=True).start()
        time.sleep(0.1)
        """
    ),
    "exit_handler_raises": Case("atexit.register(lambda: 1 / 0)"),
    "streams_closed": Case(
        "sys.stdout.close()\nsys.stderr.close()\nworld.barrier()",
    ),
    "streams_none": Case(
        "sys.stdout = sys.stderr = None\nworld.barrier()",
    ),
    "getpid_replaced": Case(
        "os.getpid = lambda: 1\nworld.barrier()",
    ),
    "exit_replaced": Case(
        "os._exit = lambda code: None\nworld.barrier()",
    ),
    "json_replaced": Case(
        "json.dumps = lambda *args, **kwargs: 1 / 0\nworld.barrier()",
    ),
    "property_with_odd_keys": Case(
        'record_property("odd", {(1, 2): 3})',
    ),
    "property_in_a_circle": Case(
        'circle = []\ncircle.append(circle)\nrecord_property("circle", circle)',
    ),
    # Whatever is raised is told, with who raised it.
    "keyboard_interrupt": Case(
        "if world.rank: raise KeyboardInterrupt('user')\nworld.barrier()",
        "failed",
        "rank 1: KeyboardInterrupt: user",
    ),
    "generator_exit": Case(
        "if world.rank: raise GeneratorExit\nworld.barrier()", "failed", "rank 1: GeneratorExit"
    ),
    "system_exit": Case(
        "if world.rank: raise SystemExit('text')\nworld.barrier()",
        "failed",
        "rank 1: SystemExit: text",
    ),
    "exception_group": Case(
        "raise ExceptionGroup('two', [ValueError('one'), KeyError('other')])",
        "failed",
        "ranks 0,1: ExceptionGroup: two (2 sub-exceptions)",
    ),
    "unpicklable": Case("raise Unpicklable('text')", "failed", "ranks 0,1: Unpicklable: text"),
    "unprintable": Case(
        "raise Unprintable", "failed", "ranks 0,1: Unprintable: <its str() raises ValueError>"
    ),
    "leaves_when_printed": Case(
        "raise Leaves",
        "failed",
        "ranks 0,1: Leaves: <its str() raises SystemExit>",
    ),
    "recursion": Case(
        "def again(): again()\nagain()",
        "failed",
        "RecursionError: maximum recursion depth exceeded",
    ),
    "fixture_of_one_rank": Case(
        "world.barrier()",
        "error",
        "rank 1: OSError: no data",
        mark='@pytest.mark.usefixtures("broken_on_rank_1")',
    ),
    "gather_of_what_cannot_be_pickled": Case(
        "world.gather(lambda: 0 if world.rank else 1)",
        "failed",
        f"Can't {'get' if sys.version_info[:2] == (3, 13) else 'pickle'} local object",
    ),
    # Out of something.
    "out_of_memory": Case(
        """
        limit_memory()
        held = []
        while True:
            held.append(bytearray(1 << 20))
        """,
        "failed",
        "ranks 0,1: MemoryError",
    ),
    "out_of_descriptors": Case(
        """
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        while True:
            held.append(open("/dev/null"))
        """,
        "failed",
        "ranks 0,1: OSError: [Errno 24] Too many open files",
    ),
    # Gone, or out of reach.
    "killed_for_its_memory": Case(
        "if world.rank: os.kill(os.getpid(), signal.SIGKILL)\nworld.barrier()",
        "failed",
        "rank 1: was killed by SIGKILL in the test",
    ),
    "another_program": Case(
        "if world.rank: os.execv('/bin/true', ['true'])\nworld.barrier()",
        "failed",
        "rank 1: exited with code 0 in the test, before it had reported",
    ),
    "exit_handler_leaves": Case(
        "atexit.register(os._exit, 3)", "failed", "exited with code 3 in shutdown"
    ),
    "descriptors_closed": Case(
        "if world.rank: os.closerange(0, 1024)\nworld.barrier()",
        "failed",
        LOST,
    ),
    "descriptors_closed_at_the_end": Case(
        "if world.rank: os.closerange(0, 1024)",
        "failed",
        LOST,
    ),
    "connection_closed": Case(
        "if world.rank: os.close(channel())\nworld.barrier()",
        "failed",
        LOST,
    ),
    # What is no record of ours, on our own connection.
    **{
        f"connection_gets_{name}": Case(
            f"if world.rank: os.write(channel(), {data})\nworld.barrier()",
            "error",
            WHOSE,
        )
        for name, data in {
            "noise": r"b'\xff' * 100",
            "text": "b'step 1: loss 0.5, and so on'",
            "zeros": "bytes(8)",
            "a_list": "struct.pack('!II', 2, 0) + b'[]'",
            "half_a_length": r"b'\0\0'",
            "half_a_letter": r"struct.pack('!II', 1, 0) + b'\xff'",
            "a_record_of_the_server": """struct.pack('!II', 17, 0) + b'{"kind":"exited"}'""",
            "four_gigabytes": "struct.pack('!II', 2, 0xffffffff) + b'{}'",
        }.items()
    },
}


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """Run all cases that end by themselves."""
    return run_cases(tmp_path_factory.mktemp("quick"), QUICK, 8)


@pytest.mark.parametrize("name", QUICK)
def test_it_is_told_for_what_it_is_and_the_next_test_runs(
    quick: dict[str, Told], name: str
) -> None:
    """The verdict, the words, and an undisturbed test behind it."""
    check(quick, QUICK, name)


def test_an_interruption_shows_where_it_was_raised_and_not_our_own_frames(
    quick: dict[str, Told],
) -> None:
    """KeyboardInterrupt leaves pytest's protocol in the rank, far above the test."""
    text = quick["keyboard_interrupt"].text
    assert 'raise KeyboardInterrupt("user")' in text.replace("'", '"')
    assert "pluggy" not in text


HANGS = {
    "setup": Case(
        "pass",
        "failed",
        "HUNG  rank 1 sleeps in setup, and no other rank waits for it",
        mark='@pytest.mark.usefixtures("stuck_in_setup")',
    ),
    "teardown": Case(
        "pass",
        "failed",
        "HUNG  rank 1 sleeps in teardown, and no other rank waits for it",
        mark='@pytest.mark.usefixtures("stuck_in_teardown")',
    ),
    "exit_handler": Case(
        "if world.rank: atexit.register(time.sleep, 600)",
        "failed",
        "HUNG  rank 1 sleeps in shutdown, and no other rank waits for it",
    ),
    "signals_ignored": Case(
        """
        if world.rank:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            signal.signal(signal.SIGURG, signal.SIG_IGN)
            time.sleep(600)
        """,
        "failed",
        "» time.sleep(600)",  # read by py-spy
    ),
    "signals_blocked": Case(
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(600)",
        "failed",
        "» time.sleep(600)",
    ),
    "descriptors_closed": Case(
        "if world.rank:\n  os.closerange(0, 1024)\n  time.sleep(600)",
        "failed",
        "HUNG  rank 1 sleeps in the test, and no other rank waits for it",
    ),
    "another_program": Case(
        "if world.rank: os.execvp('sleep', ['sleep', '600'])",
        "failed",
        "HUNG  rank 1 sleeps in the test, and no other rank waits for it",
    ),
    "stopped": Case(
        "if world.rank: os.kill(os.getpid(), signal.SIGSTOP)\nworld.barrier()",
        "failed",
        "HUNG  rank 1 is stopped by a signal such as SIGSTOP; rank 0 waits for it in world.barrier",
    ),
    "handler_raises_when_it_is_ended": Case(
        """
        signal.signal(signal.SIGTERM, lambda *args: sys.exit("bye"))
        time.sleep(600)
        """,
        "failed",
        "HUNG  ranks 0,1 sleep in the test, and no other rank waits for them",
    ),
    "record_without_end": Case(
        """
        header = json.dumps({"kind": "sync_point", "at_s": 1.0}).encode()
        if world.rank:
            os.write(channel(), struct.pack("!II", len(header), 0xFFFFFFFF) + header)
        """,
        "failed",
        "HUNG  rank 1 is stuck in the test, and no other rank waits for it",
    ),
}


@pytest.fixture(scope="module")
def hangs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Told]:
    """Run all cases that do not end by themselves."""
    return run_cases(tmp_path_factory.mktemp("hangs"), HANGS, 2)


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_ended_for_certain_and_the_next_test_runs(
    hangs: dict[str, Told], name: str
) -> None:
    """Whatever the rank has done to be out of reach."""
    check(hangs, HANGS, name)


def test_a_rank_that_hangs_in_our_own_code_shows_where_that_is(hangs: dict[str, Told]) -> None:
    """Without a frame of the user's, the innermost ones tell most."""
    assert "pytest_multihost/core/launch/wire.py" in hangs["record_without_end"].text


def test_memory_used_up_to_the_last_byte_ends_in_a_word_about_it(run_before_next) -> None:
    """The rank tells of it if it can. If not, CPython aborts, and its last words are shown."""
    worlds = run_before_next(
        HEADER
        + """
@pytest.mark.multihost(ranks=2, timeout=60)
def test_it(world):
    limit_memory()
    held = []
    while True:
        held.append([None] * 20)
"""
    )
    worlds.run.assert_outcomes(failed=1, passed=1)
    told = "MemoryError" in worlds.stdout
    assert told or "was killed by SIGABRT in the test" in worlds.stdout
    assert "lost its connection" not in worlds.stdout


def test_output_that_is_no_utf8_is_shown_with_escapes(run_before_next) -> None:
    """Raw bytes on the descriptor, past Python's own streams."""
    worlds = run_before_next(
        r"""
        import os, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            os.write(1, b"a\xff\xfe b\n")
            assert False
        """
    )
    worlds.run.assert_outcomes(failed=1, passed=1)
    assert r"a\xff\xfe b" in worlds.stdout
    assert (worlds.directory("test_it") / "rank-0.log").read_bytes() == b"a\xff\xfe b\n"


def test_40_mb_of_output_are_kept_and_a_little_of_it_is_shown(
    run_before_next, pytester: pytest.Pytester
) -> None:
    """Head and tail stand in the report, which says where the rest is; pytest holds none of it."""
    pytester.makeconftest(
        """
        import pathlib, re

        def pytest_unconfigure():
            # Not ru_maxrss: that survives the exec, and pytest was forked from a larger process.
            status = pathlib.Path("/proc/self/status").read_text()
            pathlib.Path("used_kb").write_text(re.search(r"VmHWM:\\s+(\\d+)", status)[1])
        """
    )
    worlds = run_before_next(
        """
        import os, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            if world.rank:
                print("the head")
                for _ in range(40):
                    os.write(1, b"x" * 999_999 + b"\\n")
                print("the tail")
            assert False
        """
    )
    worlds.run.assert_outcomes(failed=1, passed=1)
    log = worlds.directory("test_it") / "rank-1.log"
    assert log.stat().st_size == 40_000_000 + len("the head\nthe tail\n")
    assert all(words in worlds.stdout for words in ("the head\n", "the tail\n", str(log)))
    assert "bytes left out; all of it:" in worlds.stdout
    assert len(worlds.stdout) < 1_000_000
    assert int((worlds.path / "used_kb").read_text()) < 150_000


@pytest.mark.parametrize("message", ["'x' * 10_000_000", r"'x\n' * 100_000"])
def test_of_a_huge_message_head_and_tail_are_shown(run_before_next, message: str) -> None:
    """Every rank sends its own, and nobody reads the middle."""
    worlds = run_before_next(
        f"""
        import pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            raise ValueError("the head " + {message} + " the tail")
        """
    )
    worlds.run.assert_outcomes(failed=1, passed=1)
    assert all(words in worlds.stdout for words in ("the head", "the tail", "left out"))
    assert len(worlds.stdout) < 1_000_000
    assert (worlds.directory("test_it") / "history.jsonl").stat().st_size < 10_000_000


CHILDREN = """
import os, pathlib, pytest, signal, subprocess, time

def note(pid):
    with open("pids", "a") as file:
        file.write(f"{pid}\\n")

@pytest.mark.multihost(ranks=2)
def test_it(world):
    if os.fork() == 0:  # as most are left: forgotten
        note(os.getpid())
        time.sleep(600)
    if os.fork() == 0:  # deaf, and in a group of its own
        os.setpgid(0, 0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(os.getpid())
        time.sleep(600)
    if os.fork() == 0:  # a daemon by the book
        os.setsid()
        if os.fork():
            os._exit(0)
        note(os.getpid())
        os.chdir("/")
        os.closerange(0, 1024)
        time.sleep(600)
    note(subprocess.Popen(["sleep", "600"]).pid)
    note(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    while len(pathlib.Path("pids").read_text().splitlines()) < 5 * world.size:
        time.sleep(0.01)
    world.barrier()
    END
"""


@pytest.mark.parametrize("end", ["pass", "assert False", "os.abort()"])
def test_no_child_of_a_rank_outlives_its_world(run_before_next, end: str) -> None:
    """However the child hides, and however the test ends."""
    worlds = run_before_next(CHILDREN.replace("END", end))
    assert worlds.verdicts["test_next"]["status"] == "passed"
    pids = [int(line) for line in (worlds.path / "pids").read_text().splitlines()]
    assert len(pids) == 5 * 2
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


def test_children_that_a_failed_test_has_left_are_named(run_before_next) -> None:
    """They may be why it failed."""
    worlds = run_before_next(CHILDREN.replace("END", "assert False"))
    [count] = re.findall(
        r"ended (\d+) processes that ranks had left running: sleep 600", worlds.stdout
    )
    assert int(count) >= 2


def test_a_forked_child_cannot_use_the_world_and_is_told_so(run_before_next) -> None:
    """Its frames would tear the rank's apart."""
    worlds = run_before_next(
        """
        import os, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            if os.fork() == 0:
                try:
                    world.barrier()
                except Exception as error:
                    print(error)
                os._exit(0)
            os.wait()
        """
    )
    worlds.run.assert_outcomes(passed=2)
    assert worlds.output("test_it", 1) == (
        "a forked child of a rank used the rank's world\n"
        "Use world and the fixtures only in the rank's own process.\n"
    )


def test_what_a_forked_child_raised_is_in_the_log(run_before_next) -> None:
    """A child that runs on into the end of the test is ended there, with its last words."""
    worlds = run_before_next(
        """
        import os, pytest

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            if os.fork() == 0:
                raise ValueError("in the child")
            os.wait()
        """
    )
    worlds.run.assert_outcomes(passed=2)
    assert "ValueError: in the child\na forked child of this rank returned from the test" in (
        worlds.output("test_it", 0)
    )


def test_a_thread_that_raises_is_told_as_pytest_tells_it(run_before_next) -> None:
    """A warning, which filterwarnings = error makes a failure."""
    worlds = run_before_next(
        """
        import pytest, threading

        @pytest.mark.multihost(ranks=2)
        def test_it(world):
            thread = threading.Thread(target=lambda: 1 / 0, name="loud")
            thread.start()
            thread.join()
        """
    )
    worlds.run.assert_outcomes(passed=2, warnings=1)
    assert "PytestUnhandledThreadExceptionWarning: Exception in thread loud" in worlds.stdout


CLOCKS = {
    "by a test": "time.monotonic = replacement",
    "by freezegun": """
real = time.monotonic
for module in list(sys.modules.values()):
    for name in [name for name, value in vars(module).items() if value is real]:
        setattr(module, name, replacement)
""",
}


@pytest.mark.parametrize("now", ["0.0", "1e12"])
@pytest.mark.parametrize("how", CLOCKS)
def test_a_replaced_clock_does_not_confuse_ours(run_before_next, how: str, now: str) -> None:
    """Tests like to stop the time, everywhere; when things happened is told by the real one."""
    worlds = run_before_next(
        f"""
import pytest, sys, time

def replacement():
    return {now}

def replace():
{textwrap.indent(CLOCKS[how], "    ")}

@pytest.mark.multihost(ranks=2)
def test_it(world):
    if world.rank:
        replace()
        raise ValueError("first")
    world.barrier()
"""
    )
    worlds.run.assert_outcomes(failed=1, passed=1)
    line = next(line for line in worlds.stdout.splitlines() if line.startswith("  ► rank 1"))
    assert 0 <= float(line.partition("+")[2].partition(" s")[0]) < 60


def ids(*texts: str) -> str:
    """Return the source of parameters with these ids."""
    return ", ".join(f"pytest.param(0, id={text!r})" for text in texts)


ODD_IDS = (
    "a/b\\c",
    "../../../etc",
    "é 漢 🎉",
    "nul\0 bell\a \x1b[31m",
    " ",
    "..",
    "x::y[z]",
    "a\nb",
)


@pytest.mark.parametrize("mode", ["fork", "server"])
def test_any_parameter_id_gets_a_folder_of_its_own(run_before_next, mode: str) -> None:
    """Slashes, control characters, other alphabets, and more than a file name may have."""
    worlds = run_before_next(
        f"""
        import pytest

        @pytest.mark.parametrize("x", [{ids(*ODD_IDS, "l" * 5000, "l" * 5001)}])
        @pytest.mark.multihost(ranks=2)
        def test_it(world, x):
            world.barrier()
        """,
        f"--multihost-launch={mode}",
    )
    worlds.run.assert_outcomes(passed=len(ODD_IDS) + 3)
    run = worlds.path / ".pytest_multihost" / "latest"
    assert len({verdict["dir"] for verdict in worlds.all_verdicts}) == len(ODD_IDS) + 3
    assert all((run / verdict["dir"]).is_dir() for verdict in worlds.all_verdicts)


def test_an_id_that_utf8_cannot_hold_runs(run_before_next, pytester: pytest.Pytester) -> None:
    """Pytest escapes it unless it is told not to."""
    pytester.makeini(
        "[pytest]\ndisable_test_id_escaping_and_forfeit_all_rights_to_community_support = true\n"
    )
    source = f"""
        import pytest

        @pytest.mark.parametrize("x", [{ids(chr(0xDCFF))}])
        @pytest.mark.multihost(ranks=2)
        def test_it(world, x):
            world.barrier()
        """
    worlds = run_before_next(source, "-p", "no:cacheprovider")
    worlds.run.assert_outcomes(passed=2)


def test_an_id_that_is_too_long_for_ranks_is_refused_in_time(run_worlds) -> None:
    """Before anything has run, with what to do."""
    worlds = run_worlds(
        f"""
        import pytest

        @pytest.mark.parametrize("x", [{ids("l" * 200_000)}])
        @pytest.mark.multihost(ranks=2)
        def test_it(world, x):
            pass
        """
    )
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    assert "Give the parameter a shorter id" in worlds.run.stderr.str()


def test_a_server_is_told_of_any_number_of_files(run_worlds, pytester: pytest.Pytester) -> None:
    """Their names together may be longer than one variable of the environment."""
    deep = pytester.path.joinpath(*["d" * 200] * 15)
    deep.mkdir(parents=True)
    for number in range(50):
        (deep / f"test_{number}.py").write_text(
            "import pytest\n@pytest.mark.multihost(ranks=1)\ndef test_it(world): pass\n"
        )
    worlds = run_worlds("", "--multihost-launch=server", "-q")
    worlds.run.assert_outcomes(passed=50)


def test_200_worlds_in_a_row_pass(run_worlds) -> None:
    """Quickly, and each with results of its own."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.parametrize("x", range(200))
        @pytest.mark.multihost(ranks=2)
        def test_it(world, x):
            assert world.gather(x) == [x, x]
            print(x)
        """,
        "-q",
        timeout=100,
    )
    worlds.run.assert_outcomes(passed=200)
    assert [worlds.output(f"test_it[{x}]", 1) for x in range(200)] == [f"{x}\n" for x in range(200)]


@pytest.mark.parametrize("mode", ["fork", "server", "spawn"])
def test_a_file_with_a_syntax_error_beside_worlds_does_not_stop_them(
    run_before_next, pytester: pytest.Pytester, mode: str
) -> None:
    """With pytest's own option to go on; without it pytest itself stops."""
    pytester.makepyfile(test_broken="def test_it(:\n")
    worlds = run_before_next(
        "import pytest\n",
        "--continue-on-collection-errors",
        f"--multihost-launch={mode}",
    )
    worlds.run.assert_outcomes(errors=1, passed=1)


ORDINARY = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_good(world):
    print("printed", world.rank)

@pytest.mark.multihost(ranks=2)
def test_bad(world):
    print("printed", world.rank)
    assert world.rank == 0, "told"

@pytest.mark.multihost(ranks=2)
def test_next(world):
    world.barrier()
"""


@pytest.mark.parametrize("place", ["file", "file/below", "/sys/kernel/no", "/dev/full"])
def test_artifacts_that_cannot_be_written_are_a_usage_error(
    run_worlds, pytester: pytest.Pytester, place: str
) -> None:
    """A file in its place, or a place where nobody may write; told before anything runs."""
    (pytester.path / "file").touch()
    worlds = run_worlds(ORDINARY, f"--multihost-artifacts={place}")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    errors = worlds.run.stderr.str()
    assert f"the artifacts directory {pytester.path / place} cannot be used" in errors
    assert "--multihost-artifacts=DIR" in errors


def test_a_directory_with_files_of_the_user_is_refused(
    run_worlds, pytester: pytest.Pytester
) -> None:
    """None of them is replaced, and git ignores none of them from then on."""
    mine = {".gitignore": "*.pyc\n", "verdicts.jsonl": "mine\n", "latest": "mine\n"}
    for name, text in mine.items():
        (pytester.path / name).write_text(text)
    worlds = run_worlds(ORDINARY, "--multihost-artifacts=.")
    assert worlds.run.ret == pytest.ExitCode.USAGE_ERROR
    errors = worlds.run.stderr.str()
    assert f"{pytester.path} holds other files, such as .gitignore" in errors
    assert "Name another: --multihost-artifacts=DIR" in errors
    assert {name: (pytester.path / name).read_text() for name in mine} == mine
    assert [*pytester.path.glob(".made-by*"), *pytester.path.glob("20*Z-*")] == []


def test_the_same_test_in_two_workers_has_two_folders(run_worlds) -> None:
    """Otherwise the workers of `--dist each` would overwrite each other's verdicts."""
    worlds = run_worlds(
        """
        import pytest

        @pytest.mark.multihost(ranks=1)
        def test_it(world):
            pass
        """,
        *("-p", "xdist", "-n", "2", "--dist", "each"),
    )
    worlds.run.assert_outcomes(passed=2)
    verdicts = worlds.all_verdicts
    assert sorted(each["worker"] for each in verdicts) == ["gw0", "gw1"]
    for each in verdicts:
        folder = worlds.path / ".pytest_multihost" / each["run_id"] / each["dir"]
        assert json.loads((folder / "verdict.json").read_text())["worker"] == each["worker"]


def on_a_small_disk(disk: Path, kib: int = 24) -> list[str]:
    """Return the start of a command line that runs a program where `disk` holds few KiB.

    In a mount namespace of its own, so nothing is left behind. Some systems let nobody but root
    make one.
    """
    ways = (["unshare", "--user", "--map-root-user"], ["sudo", "-nE", "unshare"])
    mount = f'mount -t tmpfs -o size={kib}k none {disk} && exec "$@"'
    for way in ways:
        start = [*way, "--mount", "sh", "-c", mount, "sh"]
        if subprocess.run([*start, "true"], check=False, capture_output=True).returncode == 0:
            return start
    pytest.skip(f"none of these can mount here: {ways}")


IS_WHOLE = """
import json, pathlib, sys
for path in pathlib.Path("disk").rglob("*.json*"):
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    for line in lines:
        json.loads(line)
    print("whole:", path.name)
    assert path.suffix == ".jsonl" or lines != [""]
assert not [path for path in pathlib.Path("disk").rglob(".*.*") if path.name[1] not in "gm"]
"""
"""Fails if a file of JSON is empty or incomplete, or if a draft of one is left."""


@pytest.mark.parametrize(
    ("kib", "options"),
    [(0, ""), (4, ""), (12, ""), (16, ""), (24, ""), (12, "-p xdist -n 1")],
)
def test_a_full_disk_costs_artifacts_and_no_result(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kib: int, options: str
) -> None:
    """Reports need no artifacts; what could not be kept is said in one line, at the end.

    Whatever is there is whole. Of no size at all, the disk is full before the first file.
    """
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_worlds=ORDINARY, is_whole=IS_WHOLE)
    full = "" if kib else "head -c 4096 /dev/zero > disk/full;"
    program = f"{sys.executable} -m pytest -p multihost_hangs {options}"
    command = f"{full} {program} --multihost-artifacts=disk/a"
    start = on_a_small_disk(pytester.mkdir("disk"), kib or 4)
    run = pytester.run(
        *start, "sh", "-c", f"{command}; {sys.executable} is_whole.py && echo all whole", timeout=60
    )
    run.assert_outcomes(passed=2, failed=1)
    assert "rank 1: AssertionError: told" in run.stdout.str()
    [line] = [each for each in run.outlines if "be written" in each]
    assert "No space left on device" in line
    assert "all whole" in run.stdout.str()


@pytest.mark.program(
    """
    import pytest, shutil

    @pytest.mark.multihost(ranks=2)
    def test_it(world):
        world.barrier()
        if world.is_primary:
            shutil.rmtree(".pytest_multihost")

    @pytest.mark.multihost(ranks=2)
    def test_next(world):
        world.barrier()
    """
)
def test_artifacts_that_a_test_has_removed_cost_no_result(worlds) -> None:
    """`git clean` in a test, say."""
    worlds.run.assert_outcomes(passed=2)
    assert "could not be written. First: test_worlds.py::test_it" in worlds.stdout


LOUD = """
import logging, os, pytest

@pytest.mark.multihost(ranks=2)
def test_prints(world):
    print("the first line")
    for _ in range(12 if world.rank == 0 else 0):
        os.write(1, (b"x" * 99 + b"\\n") * 100_000)
    print("the last line")
    assert world.rank == 1, "that is enough"

@pytest.mark.multihost(ranks=1)
def test_logs():
    for _ in range(2_000):
        logging.getLogger().warning("y" * 1_000)
    assert 0
"""


def test_a_rank_that_prints_without_end_does_not_fill_the_disk(run_worlds) -> None:
    """The first and the last part of its log are kept, and log and page say that it was cut."""
    worlds = run_worlds(LOUD)
    worlds.run.assert_outcomes(failed=2)
    text = worlds.output("test_prints", 0)
    assert len(text) < 50_000_000
    assert text.startswith("the first line\n")
    assert text.endswith("the last line\n")
    assert "bytes of this log were cut here" in text
    assert "were cut from" in worlds.stdout
    assert "were cut from" in (worlds.directory("test_prints") / "report.html").read_text()
    assert len((worlds.directory("test_logs") / "history.jsonl").read_text()) < 1_000_000
