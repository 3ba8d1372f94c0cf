import pytest
from restore import restore


@pytest.mark.multihost(backend="gloo", timeout=60)
def test_restore(world):
    value = restore()
    assert value.tolist() == [sum(range(world.size))] * 3
