"""What runs below a process, and how much it works."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from pytest_multihost.extensions.live.watch.tree import Tree, read_tree

FIRST = """
import os, sys, tempfile, time
from pathlib import Path
from pytest_multihost.extensions.live.watch.watcher import Watcher
watcher = Watcher(os.getpid(), Path(tempfile.gettempdir()) / "nowhere")
assert not any("judging" in name for name in sys.modules)
begun_s, own_s = time.thread_time(), watcher.used_s()
assert not watcher._is_rank(os.getpid())
assert any("judging" in name for name in sys.modules)
print((watcher.used_s() - own_s) / (time.thread_time() - begun_s))
"""

pytestmark = pytest.mark.processes

SPIN = """
import os, subprocess, sys
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
two = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
print("up", flush=True)
sys.stdin.readline()
[each.kill() for each in two]
"""


def test_ranks_that_wait_for_a_processor_are_not_idle() -> None:
    """Two that share one have each wanted it all the time, and have had it half of the time."""
    with subprocess.Popen(
        [sys.executable, "-c", SPIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert run.stdin is not None
        run.stdout.readline()
        before = read_tree(run.pid)
        while (now := read_tree(run.pid)).ran_since(before, now.below(run.pid)) < 500_000_000:
            time.sleep(0.1)
        below = now.below(run.pid)
        assert len(below) == 3
        assert now.used_since(before, below) > 1.5 * now.ran_since(before, below)
        run.stdin.close()


def test_the_import_for_the_first_look_does_not_delay_the_next_reading() -> None:
    """The time to it grows with what a reading costs, and would be a minute and a half."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, check=True)
    assert float(done.stdout) < 0.2


def test_a_parent_comes_before_its_children() -> None:
    """So that everything below a process is found in one pass."""
    tree = Tree({1: 0, 2: 1, 3: 2, 4: 1})
    assert tree.below(2) == {2, 3}
    assert tree.below(9) == frozenset()


def test_a_process_that_has_ended_has_nothing_below_it() -> None:
    """As pytest after its last test."""
    assert read_tree(2**22 - 1).parents == {}
    assert os.getpid() in read_tree(os.getpid()).parents
