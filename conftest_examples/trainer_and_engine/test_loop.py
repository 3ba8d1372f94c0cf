import loop
import pytest

ROLES = {"trainer": 1, "engine": 2, "controller": 1}


def run(world, update):
    """Run the program of this rank's role."""
    weights = world.port("trainer")
    engines = [world.port("engine", number) for number in range(2)]
    if world.role == "trainer":
        loop.train(weights)
    elif world.role == "engine":
        loop.serve(world.role_rank, engines[world.role_rank], weights)
    else:
        update(engines)


@pytest.mark.multihost(roles=ROLES, timeout=60)
def test_one_after_the_other(world):
    run(world, loop.update_each)


@pytest.mark.multihost(roles=ROLES, timeout=60)
def test_all_at_once(world):
    run(world, loop.update_all)
