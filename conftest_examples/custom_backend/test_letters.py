import time

import letters
import pytest

pytestmark = pytest.mark.multihost(backend="letters", timeout=20)


def test_letters_go_round(world):
    assert (
        letters.from_left_to_right(f"from {world.rank}") == f"from {(world.rank - 1) % world.size}"
    )


@pytest.mark.multihost_expect("straggler", culprits=[0])
def test_who_sends_no_letter_is_waited_for(world):
    if world.is_primary:
        time.sleep(600)
    letters.from_left_to_right("hello")


@pytest.mark.multihost_expect("raised", culprits=[0])
def test_who_waited_in_vain_is_not_blamed(world):
    if world.is_primary:
        raise ValueError("no stamps")
    letters.receive(0, patience_s=0.5)
