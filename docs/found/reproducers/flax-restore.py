"""flax: process 1 does not see the checkpoint, and trains on without it; process 0 waits.

Fault: a shim. In process 1 `os.listdir` shows nothing, as a client that remembers names can.
"""

import faulthandler
import os
import tempfile
import time
from unittest.mock import Mock

import flax
import jax
import numpy as np
from flax.training import checkpoints

FOLDER, PORT = tempfile.mkdtemp(), 20000 + os.getpid() % 10000


def run(rank):
    jax.distributed.initialize(f"localhost:{PORT}", 2, rank)
    state = {"w": np.ones(4)}
    checkpoints.save_checkpoint_multiprocess(FOLDER, state, step=1)
    state = {"w": np.zeros(4)}
    faulthandler.dump_traceback_later(8 + 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    if rank == 1:
        os.listdir = Mock(return_value=[])
    state = checkpoints.restore_checkpoint(FOLDER, state)
    print(f"process {rank} trains on with {state['w']}")
    time.sleep(60)  # the next step would be a collective


for rank in (0, 1):
    if os.fork() == 0:
        run(rank)
        os._exit(0)
os.wait(), os.wait()
stack = open(f"{FOLDER}/0").read().split("\n\n")[-1]
print("flax", flax.__version__, "jax", jax.__version__, "process 0 waits:", stack)
raise SystemExit("sync_global_devices" not in stack)
