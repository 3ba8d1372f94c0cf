"""Tests of other harnesses run as worlds: they have the results that their harness would have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from foreign_classes import CASE

from pytest_multihost.extensions.adopt.calls import AdoptedCalls
from pytest_multihost.extensions.adopt.differences import DIFFERENCES
from pytest_multihost.extensions.adopt.option import ADAPTERS

Worlds = Any  # of tests/conftest.py
RunWorlds = Callable[..., Worlds]

POOL = """
import multiprocessing, os, pytest

class DistributedTest:
    is_dist_test = True
    world_size = 2

    def __call__(self, request):
        self.name, size = request.function.__name__, self.world_size
        self.values = self._get_fixture_kwargs(request, getattr(self, self.name))
        for each in [size] if isinstance(size, int) else size:
            self._launch_procs(each)

    def _get_fixture_kwargs(self, request, function):
        return {name: request.getfixturevalue(name) for name in ("tmp_path",)}

    def _launch_procs(self, size):
        pool = multiprocessing.Pool(size)
        skips = pool.starmap_async(self._dist_run, [(rank, size) for rank in range(size)]).get(600)
        pool.close()
        if any(skips):
            pytest.skip(skips[0])

    def _dist_run(self, rank, size):
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(size))
        try:
            getattr(self, self.name)(**self.values)
        except pytest.skip.Exception as skip:
            return skip.msg
        return ""
"""
CONFTEST = """
import os, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item):
    if getattr(item.cls, "is_dist_test", False):
        item.cls()(item._request)
        item.runtest = lambda: True
"""
"""The shape of DeepSpeed's `DistributedTest`, and of the hook that starts it."""

ARGS = ("--multihost-adopt=torch,deepspeed,spawn",)


@pytest.mark.program(
    CASE
    + """
class Test(Case):
    def test_it(self):
        from pytest_multihost import current_world
        world = current_world()
        assert (world.rank, world.size) == (self.rank, self.world_size)
        [[name, inherited]] = {*world.gather((self.file_name, os.environ["FROM_PARENT"]))}
        assert name == inherited

    def test_ends(self):
        sys.exit(self.rank)

    def test_skips(self):
        raise unittest.SkipTest("no GPU here")

    def test_fails(self):
        assert self.rank != 1, "the reason"
""",
    *ARGS,
)
@pytest.mark.claim("run tests of torch, DeepSpeed or `mp.spawn` on it, unedited")
def test_a_class_that_spawns_a_process_for_each_rank_runs_as_a_world(worlds: Worlds) -> None:
    """Ranks have one parent's files; exit codes count as there; a rank's own error is shown."""
    worlds.run.assert_outcomes(passed=2, skipped=1, failed=1)
    worlds.run.stdout.fnmatch_lines(["*AssertionError: the reason*"])
    assert all(each["world_size"] == 2 for each in worlds.all_verdicts)
    worlds.run.stdout.no_fnmatch_line("*exit code*")


@pytest.mark.program(
    """
import unittest

class Test(unittest.TestCase):
    MAIN_PROCESS_RANK = -1
    world_size = 2
    rank = -2

    def __init__(self, methodName="runTest"):
        super().__init__(methodName)
        if methodName != "runTest":
            setattr(self, methodName, self._worker_run_main_wait(getattr(self, methodName)))

    def _worker_run_main_wait(self, run):
        def wait():
            if self.rank >= 0:
                return run()
            for _, results in zip(self.processes, self.completion_queues):
                if isinstance(ended := results.get(timeout=60), BaseException):
                    raise ended
        return wait

    def setUp(self):
        self._spawn_processes(self.world_size)
        self.rank = -1
        for each in self.task_queues:
            each.put(self._testMethodName)

    def _spawn_processes(self, size): raise NotImplementedError

    @classmethod
    def _worker_loop(cls, rank, size, file, tasks, results):
        cls.rank = rank
        while name := tasks.get():
            try:
                getattr(cls(name), name)()
                results.put(name)
            except SystemExit:
                results.put(unittest.SkipTest("no GPU here"))
            except Exception as error:
                raised = RuntimeError("in a worker")
                raised.__cause__ = error
                results.put(raised)

    def test_passes(self):
        assert self.rank in (0, 1)

    def test_skips(self):
        raise SystemExit(75)

    def test_fails(self):
        assert self.rank != 1, "the reason"
""",
    *ARGS,
)
def test_a_class_whose_processes_serve_all_its_tests_runs_as_worlds(worlds: Worlds) -> None:
    """The worker's loop runs in each rank, and its results count."""
    worlds.run.assert_outcomes(passed=1, skipped=1, failed=1)
    worlds.run.stdout.fnmatch_lines(["*AssertionError: the reason*"])


@pytest.mark.program(
    """
import os, pytest

@pytest.mark.world_size([1, 2])
def test_sizes():
    assert os.environ["WORLD_SIZE"] in "12"

@pytest.mark.world_size("all")
def test_of_no_size():
    pass
""",
    *ARGS,
)
def test_a_list_of_sizes_runs_once_for_each_size(worlds: Worlds) -> None:
    """A size that is no number is no size: that test runs in its own harness."""
    worlds.run.assert_outcomes(passed=3)
    assert {each["nodeid"][-3:]: each["world_size"] for each in worlds.all_verdicts} == {
        "[1]": 1,
        "[2]": 2,
    }


@pytest.mark.program(
    """
import os, pytest, pytest_multihost, time

def leaves(rank, code):
    if rank == 1:
        raise SystemExit(code)

def test_it(tmp_path):
    seen = []
    pytest_multihost.spawn(lambda rank: (tmp_path / str(rank)).write_text("x"), nprocs=3)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["0", "1", "2"]

def test_raises():
    def fails(rank):
        assert rank != 1, "the reason"
    with pytest.raises(RuntimeError, match="Process 1 terminated(.|\\n)*the reason") as caught:
        pytest_multihost.spawn(fails)
    assert caught.value.error_index == 1

def test_leaves():
    with pytest.raises(RuntimeError, match="process 1 terminated with exit code 7"):
        pytest_multihost.spawn(leaves, args=(7,))

def test_dies():
    with pytest.raises(RuntimeError, match="process 1 terminated with signal SIGKILL"):
        pytest_multihost.spawn(lambda rank: rank == 1 and os.kill(os.getpid(), 9))

def test_hangs():
    def waits(rank):
        if rank == 1:
            time.sleep(1000)
        pytest_multihost.current_world().barrier("all")
    pytest_multihost.spawn(waits)
""",
    *ARGS,
)
def test_a_function_that_a_test_spawns_has_a_verdict(worlds: Worlds) -> None:
    """It raises what multiprocessing's harnesses raise; a hang fails the test with its page."""
    worlds.run.assert_outcomes(passed=4, failed=1)
    worlds.run.stdout.fnmatch_lines(["*HUNG  rank 1 *", "*rank 1*sleeping*"])
    assert worlds.verdicts["test_it"]["world_size"] == 3


@pytest.mark.program(
    """
import gc, os, pytest_multihost

def test_it(tmp_path):
    own, known = os.getpid(), len(gc.get_objects())
    def note(phase, info):
        if os.getpid() != own:
            with (tmp_path / "seen").open("a") as file:
                print(len(gc.get_objects()), file=file)
    gc.callbacks.append(note)
    pytest_multihost.spawn(lambda rank: gc.collect())
    gc.callbacks.remove(note)
    assert max(map(int, (tmp_path / "seen").read_text().split())) < known / 2
""",
    *ARGS,
)
def test_the_processes_of_a_call_collect_no_garbage_of_pytests_process(worlds: Worlds) -> None:
    """They would copy all its memory: half of the time of a call in a suite of torch."""
    worlds.run.assert_outcomes(passed=1)


@pytest.mark.unit
def test_a_call_outside_of_a_test_starts_processes_as_before() -> None:
    """Its real function is called."""
    calls, seen = AdoptedCalls(), []
    calls.start_processes(lambda *args, **_: seen.append(args), print, (1,), 2, join=False)
    assert seen == [(print, (1,), 2, False)]


def test_deepspeeds_class_runs_as_worlds_and_starts_nothing_in_pytests_process(
    run_worlds: RunWorlds, pytester: pytest.Pytester
) -> None:
    """With the fixtures of rank 0, a list of sizes, skips, and a failure of one rank."""
    pytester.makeconftest(CONFTEST)
    worlds = run_worlds(
        POOL
        + """
class TestRanks(DistributedTest):
    world_size = [2, 3]

    def test_it(self, tmp_path):
        (tmp_path / os.environ["RANK"]).touch()
        from pytest_multihost import current_world
        current_world().barrier()
        assert len(os.listdir(tmp_path)) == int(os.environ["WORLD_SIZE"]) == current_world().size

class TestOthers(DistributedTest):
    def test_skips(self, tmp_path):
        pytest.skip("no GPU here")

    def test_fails(self, tmp_path):
        assert os.environ["RANK"] == "0", "the reason"
""",
        *ARGS,
    )
    worlds.run.assert_outcomes(passed=2, skipped=1, failed=1)
    worlds.run.stdout.fnmatch_lines(["multihost: 4 tests are adopted", "*the reason*"])
    assert sorted(each["world_size"] for each in worlds.all_verdicts) == [2, 2, 2, 3]


def test_a_timeout_of_the_run_counts_more_than_that_of_a_class(
    run_worlds: RunWorlds, pytester: pytest.Pytester
) -> None:
    """Without one, a class has its own."""
    pytester.makeconftest(CONFTEST)
    source = (
        POOL
        + """
class TestOfASecond(DistributedTest):
    exec_timeout = 1

    def test_it(self, tmp_path):
        import time
        time.sleep(2)
"""
    )
    run_worlds(source, *ARGS).run.assert_outcomes(failed=1)
    run_worlds(source, *ARGS, "--multihost-timeout=100").run.assert_outcomes(passed=1)


def test_what_tests_of_worlds_have_works_on_adopted_tests(
    run_worlds: RunWorlds, pytester: pytest.Pytester
) -> None:
    """A fault, junit's file, a list of the tests, and an expected hang."""
    source = """
import pytest

@pytest.mark.world_size(2)
@pytest.mark.multihost_expect(culprits=1)
def test_it():
    from pytest_multihost import current_world
    current_world().barrier("all")
"""
    fault = "freeze(rank=1)"
    listed = run_worlds(source, *ARGS, "--collect-only", "-q")
    listed.run.stdout.fnmatch_lines(["multihost: 1 test is adopted", "*::test_it  2 ranks"])
    page = pytester.path / "junit.xml"
    worlds = run_worlds(source, *ARGS, f"--junitxml={page}", "--multihost-fault", fault)
    worlds.run.assert_outcomes(passed=1)
    assert worlds.all_verdicts[0]["expected"] is True
    assert 'tests="1"' in page.read_text()


@pytest.mark.unit
def test_the_command_lists_what_differs_for_each_adapter() -> None:
    """It prints this text."""
    assert all(f"{name}:\n  * " in DIFFERENCES for name in ADAPTERS)


def test_a_test_of_several_sizes_is_found_by_the_id_that_it_has_in_its_harness(
    run_worlds: RunWorlds,
) -> None:
    """With all its sizes; an id with a size finds that one, and any other is not found."""
    source = """
import pytest

@pytest.mark.world_size([1, 2])
@pytest.mark.parametrize("kind", ["a-1", "b"])
def test_it(kind):
    pass
"""

    def ids(*params: str) -> list[str]:
        chosen = (f"test_worlds.py::test_it[{each}]" for each in params)
        found = run_worlds(source, *ARGS, "-pno:randomly", "--collect-only", "-q", *chosen)
        named = (
            each.strip().partition("[")[2] for each in found.run.outlines if "ranks" not in each
        )
        return [each for each in named if each.endswith("]")]

    assert ids("b", "a-1") == ["b-1]", "b-2]", "a-1-1]", "a-1-2]"]
    assert ids("a-1-2") == ["a-1-2]"]
    assert ids("b", "c") == []
