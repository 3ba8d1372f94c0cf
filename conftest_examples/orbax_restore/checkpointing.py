"""Save and restore a training state with orbax."""

import jax
import orbax.checkpoint as ocp


def save(path, state):
    """Write `state` to `path`; every host writes the shards it holds."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)


def restore(path, like):
    """Return the state that was saved to `path`, laid out as `like` is."""
    wanted = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)
    with ocp.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(path, wanted)
