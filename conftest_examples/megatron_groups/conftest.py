import pytest
from megatron.core import parallel_state


@pytest.fixture
def groups(world):
    """Megatron's groups: tensor-parallel pairs of neighbours, data-parallel pairs across."""
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2)
    yield parallel_state
    parallel_state.destroy_model_parallel()
