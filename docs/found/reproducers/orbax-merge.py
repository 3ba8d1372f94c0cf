"""orbax: a checkpoint is committed without what process 1 has written, and does not load.

Fault: a shim. Process 0 does not see `ocdbt.process_1` yet when it lists the checkpoint.
"""

import os
import tempfile

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils.epath import Path

FOLDER, PORT = Path(tempfile.mkdtemp()), 20000 + os.getpid() % 10000
glob = type(FOLDER).glob


def late(path, pattern):
    return [each for each in glob(path, pattern) if each.name != "ocdbt.process_1"]


def save(rank):
    jax.distributed.initialize(f"localhost:{PORT}", 2, rank)
    sharding = jax.NamedSharding(jax.make_mesh((2,), ("data",)), jax.P("data"))
    state = {"w": jax.jit(lambda: jax.numpy.ones(4), out_shardings=sharding)()}
    type(FOLDER).glob = late if rank == 0 else glob
    ocp.PyTreeCheckpointer().save(FOLDER / "run", state)  # raises nothing


for rank in (0, 1):
    if os.fork() == 0:
        save(rank)
        os._exit(0)
print("orbax-checkpoint", ocp.__version__, "exit codes of the save:", os.wait()[1], os.wait()[1])
array = {"w": ocp.RestoreArgs(restore_type=np.ndarray)}
try:
    print(ocp.PyTreeCheckpointer().restore(FOLDER / "run", restore_args=array))
except Exception as error:
    print(str(error)[:300])
    raise SystemExit("is missing" not in str(error)) from error
