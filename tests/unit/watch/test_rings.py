"""When an io_uring has nothing under way."""

from __future__ import annotations

import pytest

from pytest_multihost.core.watch.kernel import descriptors

RING = """pos:\t0
SqMask:\t0xff
SqHead:\t10
SqTail:\t10
CachedSqHead:\t10
CqMask:\t0x1ff
CqHead:\t10
CqTail:\t10
CachedCqTail:\t10
PollList:
CqOverflowList:
NAPI:\tdisabled
"""


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("SqTail:\t10", "SqTail:\t11"),  # asked, not taken yet
        ("SqTail:\t10\nCachedSqHead:\t10", "SqTail:\t11\nCachedSqHead:\t11"),  # under way
        ("CqTail:\t10\nCachedCqTail:\t10", "CqTail:\t11\nCachedCqTail:\t11"),  # not read
        ("PollList:\n", "PollList:\n  op=6, task_works=0\n"),
        ("CqOverflowList:\n", "CqOverflowList:\n  user_data=1, res=0, flags=0\n"),
        ("CqHead:\t10\n", ""),  # an older kernel
        (RING, ""),  # not to be read
    ],
)
def test_only_a_ring_without_anything_under_way_is_idle(was: str, becomes: str) -> None:
    """Six counts are equal, and nothing is polled."""
    assert not descriptors._is_busy_ring(RING)
    assert descriptors._is_busy_ring(RING.replace(was, becomes))
