"""A test without ranks, in a run with the plugin."""


def test_one(value):
    assert value > 0
