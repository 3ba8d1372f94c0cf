import itertools
import time

import pytest
from commit import publish
from hypothesis import given, settings
from hypothesis import strategies as st

skews = st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.02, 0.1]))
numbers = itertools.count()


def check(world, directory, skew, *, patient):
    late, seconds = skew
    world.barrier("together")
    if world.rank == late:
        time.sleep(seconds)
    path = directory / f"step-{next(numbers)}"
    assert publish(world, path, patient=patient) == "step 1000"


@pytest.mark.multihost(timeout=60)
@settings(max_examples=20)
@given(skew=skews)
def test_the_patient_protocol_holds_whoever_is_late(world, shared_tmp_path, skew):
    check(world, shared_tmp_path, skew, patient=True)


@pytest.mark.xfail(raises=AssertionError, strict=True)
@pytest.mark.multihost(timeout=60)
@settings(max_examples=20)
@given(skew=skews)
def test_the_hopeful_protocol_breaks_when_the_writer_is_late(world, shared_tmp_path, skew):
    check(world, shared_tmp_path, skew, patient=False)
