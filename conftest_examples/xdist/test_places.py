import os
import socket

import pytest


@pytest.mark.multihost
@pytest.mark.parametrize("number", range(6))
def test_worlds_share_nothing(world, shared_tmp_path, number):
    mine = shared_tmp_path / f"rank-{world.rank}"
    mine.write_text(str(number))
    world.barrier("written")
    assert {path.read_text() for path in shared_tmp_path.iterdir()} == {str(number)}


@pytest.fixture(autouse=True)
def port(world):
    """The rendezvous port is this world's alone: rank 0 can listen on it."""
    if world.is_primary:
        with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
            yield
    else:
        yield
