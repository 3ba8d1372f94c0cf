"""Names of files that are the same in every run."""

from __future__ import annotations

import pytest

from pytest_multihost.extensions.faults.portable_names import portable_glob
from pytest_multihost.intercept.files import matcher

pytestmark = pytest.mark.unit

FOLDERS = ("/s/w1/rank-0", "/s/w1", "/tmp")  # noqa: S108 - no file is made there
PIDS = frozenset({4711, 4712})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/s/w1/rank-0/test_it0/ckpt/x", "*/test_it0/ckpt/x"),
        ("/s/w1/shared/x", "*/shared/x"),
        ("/tmp/tmp3xk_9a0b/x", "*/*/x"),  # noqa: S108
        ("/data/step_00010000/x", "/data/step_00010000/x"),
        ("/data/x.tmp-4712", "/data/x.tmp-*"),
        ("/data/x.tmp-4713", "/data/x.tmp-4713"),
        ("/data/47112", "/data/47112"),
        ("/data/1763812345678901.tmp", "/data/*.tmp"),
        ("/data/run-2026-11-22T12-00-01/x", "/data/run-*/x"),
        ("/data/0e3f4a2b-0000-4000-8000-1234567890ab", "/data/*"),
        ("/data/deadbeef01/x", "/data/*/x"),
        ("/data/what[1]?", "/data/what[[]1][?]"),
    ],
)
def test_what_differs_between_runs_becomes_a_star(path: str, expected: str) -> None:
    """Temporary folders, process ids, run ids and times do; the number of a step does not."""
    assert portable_glob(path, FOLDERS, PIDS) == expected
    assert matcher(expected)(path)
