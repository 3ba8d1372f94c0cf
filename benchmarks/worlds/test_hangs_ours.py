"""One of eight ways to hang, under this plugin."""

import os

import hangs
import pytest

NAME = os.environ["CASE"]


@pytest.fixture
def torn_down(world):
    yield
    hangs.tear_down(NAME, world.rank)


@pytest.mark.multihost(ranks=3, backend="gloo", timeout=float(os.environ["LIMIT_S"]))
def test_one(world, torn_down):
    hangs.run(NAME, world.rank)
