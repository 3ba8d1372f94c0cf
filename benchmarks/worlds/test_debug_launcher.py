"""accelerate's debug_launcher: forks the process that runs pytest."""

import os

import work
from accelerate import PartialState, debug_launcher


def check(size, value):
    PartialState(cpu=True)
    assert work.work(size, value) == size * value


def test_one(tmp_path, value):
    size = int(os.environ["RANKS"])
    debug_launcher(check, (size, value), num_processes=size)
