"""flax: process 0 cannot list the checkpoints before a save, and process 1 waits.

Fault: a shim. In process 0 `os.listdir` raises ESTALE, as NFS can.
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
    faulthandler.dump_traceback_later(16 - 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    if rank == 0:
        os.listdir = Mock(side_effect=OSError(116, "Stale file handle"))
    try:
        checkpoints.save_checkpoint_multiprocess(FOLDER, state, step=1)
    except OSError as error:
        print(f"process {rank}: {error!r}")
        time.sleep(60)  # the program handles the error


for rank in (0, 1):
    if os.fork() == 0:
        run(rank)
        os._exit(0)
os.wait(), os.wait()
stack = open(f"{FOLDER}/1").read().split("\n\n")[-1]
print("flax", flax.__version__, "jax", jax.__version__, "process 1 waits:", stack)
raise SystemExit("sync_global_devices" not in stack)
