"""What a reader of the terminal sees of a hang: the times that decide, in plain words."""

from __future__ import annotations

import re

import pytest
from runtimes import needs

SOURCE = """
import threading, time
import pytest

@pytest.mark.multihost(ranks=2)
def test_evaluates(world):
    if world.rank == 1:
        time.sleep(150)
    world.barrier("done")

@pytest.mark.multihost(ranks=2, timeout=30)
def test_all_sleep(world):
    time.sleep(80)

@pytest.mark.multihost(ranks=2, timeout=40)
def test_waits(world):
    if world.rank == 1:
        threading.Event().wait()
    world.barrier("done")
"""


def test_a_sleep_is_compared_with_the_timeout_and_a_lock_is_called_a_lock(run_worlds) -> None:
    """The sentence names both times and the origin of the timeout; no system call is shown."""
    worlds = run_worlds(SOURCE, "--multihost-timeout=100")
    lines = " ".join(worlds.stdout.split())
    given = "the timeout is 100 s (--multihost-timeout); found"
    assert f"rank 1 sleeps for another 150 s, and {given}" in lines
    assert "ranks 0,1 sleep for another 80 s, and the timeout is 30 s (its marker)" in lines
    assert "ranks 0,1 sleep in the test, and no other rank waits for them" in lines
    assert "no rank can make progress before the timeout of 40 s (its marker)" in lines
    assert "rank 1 blocked on a lock" in lines
    assert "futex" not in lines


LEAVES = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_gathers_alone(world):
    if world.rank == 0:
        world.gather(1)
"""


def test_a_page_that_begins_with_an_exception_still_says_that_the_world_hung(run_worlds) -> None:
    """The exception is only what the rank that waited got."""
    worlds = run_worlds(LEAVES)
    said = "HUNG  rank 1 returned from the test; rank 0 waited for it in world.gather"
    assert "WorldBrokenError: gather can never complete" in worlds.stdout
    assert said in worlds.stdout


DISAGREES = """
import pytest

@pytest.mark.multihost(ranks=2)
def test_names_differ(world):
    world.barrier("a" if world.rank else "b")
"""


def test_of_two_ranks_of_which_either_may_be_right_none_is_marked(run_worlds) -> None:
    """Both raise, but only because the other one waits elsewhere."""
    worlds = run_worlds(DISAGREES)
    assert "HUNG  rank 0 is in world.barrier 'b', rank 1 is in world.barrier 'a'" in worlds.stdout
    assert "a rank raised because of it; found" in worlds.stdout
    assert "►" not in worlds.stdout


LOCKS = """
import threading, time
import pytest

@pytest.mark.multihost(ranks=2, timeout=30)
def test_order(world):
    a, b, held = threading.Lock(), threading.Lock(), threading.Event()

    def save():
        with b:
            held.set()
            with a:
                pass

    if world.rank == 0:
        with a:
            threading.Thread(target=save, name="saver", daemon=True).start()
            held.wait()
            with b:
                pass
    world.barrier("done")
"""


@pytest.mark.program(LOCKS)
def test_a_deadlock_of_two_threads_shows_both_threads_and_both_locks(worlds) -> None:
    """Where each one waits, and where the other one took the lock."""
    diagnosis = worlds.verdicts["test_order"]["diagnosis"]
    assert (diagnosis["kind"], diagnosis["culprits"], diagnosis["cycle"]) == ("deadlock", [], [0])
    assert diagnosis["where"]["line"] == 18
    assert diagnosis["summary"] == (
        "threads MainThread and saver of rank 0 wait for each other (locks a, b);"
        " rank 1 waits for rank 0 in world.barrier 'done'"
    )
    shown = worlds.stdout
    assert "► rank 0  blocked  on a lock" in shown
    for line in (
        "saver holds b since FILE:9; MainThread waits for it at FILE:18  » with b:",
        "MainThread holds a since FILE:15; saver waits for it at FILE:11  » with a:",
    ):
        assert f"rank 0: {line.replace('FILE', 'test_worlds.py')}" in shown


@pytest.mark.program(SOURCE, "-k", "evaluates")
def test_the_default_timeout_is_named_as_the_default(worlds) -> None:
    """A reader who has set no timeout learns that there is one."""
    assert "the timeout is 120 s (the default)" in " ".join(worlds.stdout.split())


MISTAKES = """
import logging
import pytest
import torch, torch.distributed as dist

@pytest.mark.multihost(ranks=2)
def test_no_backend(world):
    logging.getLogger("mine").debug("my own record")
    dist.all_reduce(torch.ones(1))

@pytest.mark.multihost(ranks=2, backend="gloo")
def test_twice(world):
    dist.init_process_group("gloo")

@pytest.mark.multihost(ranks=2, backend="gloo")
def test_other(world):
    raise ValueError("twice is enough")

@pytest.mark.multihost(ranks=2)
def test_handled(world):
    with pytest.raises(ValueError):
        dist.all_reduce(torch.ones(1))
    assert False
"""


def part(text: str, test: str) -> str:
    """Return the part of the terminal's output about one test."""
    after = text.split(f" {test} _")[1]
    return re.split("\n____|=== short test summary", after, maxsplit=1)[0]


@needs("torch")
def test_the_two_classic_mistakes_get_a_hint_once(run_worlds) -> None:
    """Another error, and the same error if the test handles it, get none."""
    told = run_worlds(MISTAKES, "--log-level=DEBUG").stdout
    assert part(told, "test_no_backend").count('The backend "none" makes no process') == 1
    assert part(told, "test_twice").count("has initialised the process group already") == 1
    assert "  hint " not in part(told, "test_other") + part(told, "test_handled")


@needs("torch")
@pytest.mark.program(MISTAKES, "--log-level=DEBUG", "-k", "no_backend or twice")
def test_records_of_the_runtime_about_itself_are_omitted(worlds) -> None:
    """The test's own records stay."""
    told = worlds.stdout
    assert "my own record" in told
    assert "c10d-NullHandler" not in told


DEEP = """
import pytest

def deep(rank, n=0):
    # A function whose body is shown by pytest's long style.
    if n < 9:
        return deep(rank, n + 1)
    raise (ValueError if rank else KeyError)(f"of rank {rank}")

@pytest.mark.multihost(ranks=2)
def test_both(world):
    deep(world.rank)
"""


@pytest.mark.program(DEEP)
def test_only_the_first_failing_rank_shows_its_whole_traceback(worlds) -> None:
    """The others show their line and their error, and the page has the rest."""
    first, other = re.split("-+ rank [01]: .*Error -+\n", worlds.stdout)
    assert "A function whose body" in first
    assert "A function whose body" not in other
    assert "test_worlds.py:7: in deep" in other or "test_worlds.py:8:\n" in other
    assert "of rank" in other


def test_a_fixture_that_does_not_exist_is_named_in_words(run_worlds) -> None:
    """As pytest names it; the text of its exception is a tuple of objects."""
    source = "import pytest\n@pytest.mark.multihost(ranks=2)\ndef test_it(wrld): pass"
    worlds = run_worlds(source)
    assert "FixtureLookupError: fixture 'wrld' not found" in worlds.stdout
