"""orbax: each process has a best step of its own, and one array is restored from two steps.

No fault: the metric that each process gives to `save` is the loss of its own data.
"""

import multiprocessing
import os
import tempfile

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import process_allgather

RUN, PORT = tempfile.mkdtemp() + "/run", 20000 + os.getpid() % 10000
LOSSES = [{1: 0.5, 2: 0.4}, {1: 0.4, 2: 0.5}]


def train(rank):
    jax.distributed.initialize(f"localhost:{PORT}", 2, rank)
    sharding = jax.NamedSharding(jax.make_mesh((2,), ("data",)), jax.P("data"))
    states = [{"w": jax.device_put(np.full(4, step), sharding)} for step in range(3)]
    options = ocp.CheckpointManagerOptions(best_fn=lambda it: it["loss"], best_mode="min")
    manager = ocp.CheckpointManager(RUN, options=options)
    for step in (1, 2):
        save = ocp.args.StandardSave(states[step])
        manager.save(step, args=save, metrics={"loss": LOSSES[rank][step]})
    manager.wait_until_finished()
    restored = manager.restore(manager.best_step(), args=ocp.args.StandardRestore(states[0]))
    return manager.best_step(), process_allgather(restored["w"], tiled=True).tolist()


with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map(train, (0, 1), 1)
print("orbax-checkpoint", ocp.__version__, "jax", jax.__version__, "best_step(), array:", *found)
raise SystemExit(found != [(2, [2, 2, 1, 1]), (1, [2, 2, 1, 1])])
