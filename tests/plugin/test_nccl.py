"""The nccl backend where there is no GPU: loud, and as the project wants it.

What it does on GPUs is in tests/corpus: hang_nccl.py and innocent_nccl.py.
"""

from __future__ import annotations

import pytest

from pytest_multihost.core.backends import gpu_count

if gpu_count():
    pytest.skip("this machine has a GPU", allow_module_level=True)

SOURCE = """
import pytest

@pytest.mark.multihost(ranks=2, backend="nccl")
def test_it(world):
    pass
"""


@pytest.mark.program(SOURCE, "-rs")
def test_without_a_gpu_it_is_a_skip_with_that_reason(worlds) -> None:
    """A laptop can run the suite, and the summary says what was left out."""
    worlds.run.assert_outcomes(skipped=1)
    assert "nccl needs a GPU: 2 ranks, no GPU here" in worlds.stdout


def test_the_lack_of_a_gpu_can_be_made_a_failure(run_worlds, pytester: pytest.Pytester) -> None:
    """A machine that is there for its GPUs must not skip for the lack of them."""
    pytester.makeini("[pytest]\nmultihost_require_gpu = true")
    run_worlds(SOURCE).run.assert_outcomes(failed=1)


@pytest.mark.program(SOURCE + "\n@pytest.mark.multihost(ranks=2)\ndef test_next(world): pass\n")
def test_counting_gpus_opens_no_driver(worlds) -> None:
    """The controller stays fit to be forked."""
    worlds.run.assert_outcomes(skipped=1, passed=1)
    assert worlds.verdicts["test_next"]["launch"] == "fork"
