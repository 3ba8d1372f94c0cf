"""This plugin."""

import os

import pytest
from work import work


@pytest.mark.multihost(ranks=int(os.environ["RANKS"]), backend=os.environ["BACKEND"], timeout=200)
def test_one(world, tmp_path, value):
    assert work(world.size, value) == value * world.size
