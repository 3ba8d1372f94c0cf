"""orbax: an evaluation restores one array from two steps of a training, and no process says so.

No fault: the training commits step 2, by a rename, after process 0 has looked and before process 1.
"""

import multiprocessing
import os
import tempfile

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental.multihost_utils import process_allgather, sync_global_devices

RUN, PORT = tempfile.mkdtemp() + "/run", 20000 + os.getpid() % 10000


def evaluate(rank):
    jax.distributed.initialize(f"localhost:{PORT}", 2, rank)
    sharding = jax.NamedSharding(jax.make_mesh((2,), ("data",)), jax.P("data"))
    states = [{"w": jax.device_put(np.full(4, step), sharding)} for step in range(3)]
    with ocp.CheckpointManager(RUN) as training:
        for step in (1, 2):
            training.save(step, args=ocp.args.StandardSave(states[step]))
    if rank == 0:
        os.rename(f"{RUN}/2", f"{RUN}-2")  # not committed yet
    sync_global_devices("trained")
    manager = ocp.CheckpointManager(RUN, options=ocp.CheckpointManagerOptions(read_only=True))
    if rank == 1:
        os.rename(f"{RUN}-2", f"{RUN}/2")  # the commit
        manager.reload()
    restored = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(states[0]))
    return manager.latest_step(), process_allgather(restored["w"], tiled=True).tolist()


with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map(evaluate, (0, 1), 1)
print("orbax-checkpoint", ocp.__version__, "jax", jax.__version__, "latest_step(), array:", *found)
raise SystemExit(found != [(1, [1, 1, 2, 2]), (2, [1, 1, 2, 2])])
