import pytest
from halo import Ring


@pytest.fixture
def ring(world, shared_tmp_path):
    """All ranks of the world in a ring."""
    ring = Ring(shared_tmp_path, world.rank, world.size)
    yield ring
    ring.close()
