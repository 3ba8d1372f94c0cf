import pytest
import training


def step(stages, reduce_embedding):
    mesh = training.make_mesh(stages)
    stage = training.make_stage(mesh)
    training.train_step(mesh, stage, reduce_embedding=reduce_embedding)


@pytest.mark.multihost(ranks=8, backend="simulated")
def test_two_stages_pass(world):
    step(2, training.reduce_embedding)


@pytest.mark.multihost(ranks=16, backend="simulated")
@pytest.mark.multihost_expect("deadlock", match="all_reduce.*barrier|barrier.*all_reduce")
def test_four_stages_hang(world):
    step(4, training.reduce_embedding)


@pytest.mark.multihost(ranks=16, backend="simulated")
def test_four_stages_pass_once_mended(world):
    step(4, training.reduce_embedding_everywhere)
