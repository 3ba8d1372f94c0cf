"""The nccl backend where there are not enough GPUs: loud, and as the project wants it."""

from __future__ import annotations

import pytest

from pytest_multihost.core.backends import gpu_count

MORE = gpu_count() + 1
SOURCE = f"""
import pytest

@pytest.mark.multihost(ranks={MORE}, backend="nccl")
def test_it(world):
    pass
"""


@pytest.mark.program(SOURCE, "-rs")
def test_too_few_gpus_is_a_skip_with_that_reason(worlds) -> None:
    """A laptop can run the suite, and the summary says what was left out."""
    worlds.run.assert_outcomes(skipped=1)
    assert f"nccl takes one GPU per rank: {MORE} ranks, {MORE - 1} GPU" in worlds.stdout


def test_too_few_gpus_can_be_made_a_failure(run_worlds, pytester: pytest.Pytester) -> None:
    """A machine that is there for its GPUs must not skip for the lack of them."""
    pytester.makeini("[pytest]\nmultihost_require_gpu = true")
    run_worlds(SOURCE).run.assert_outcomes(failed=1)


@pytest.mark.program(SOURCE + "\n@pytest.mark.multihost(ranks=2)\ndef test_next(world): pass\n")
def test_counting_gpus_opens_no_driver(worlds) -> None:
    """The controller stays fit to be forked."""
    worlds.run.assert_outcomes(skipped=1, passed=1)
    assert worlds.verdicts["test_next"]["launch"] == "fork"
