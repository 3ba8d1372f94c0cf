"""orbax: process 1 cannot list the directory of a CheckpointManager, and process 0 waits.

Fault: a shim. In process 1 `os.listdir` raises ESTALE for that directory, as NFS can.
"""

import faulthandler
import os
import tempfile
import time
from unittest.mock import Mock

import jax
import orbax.checkpoint as ocp

FOLDER, PORT = tempfile.mkdtemp(), 20000 + os.getpid() % 10000


def run(rank):
    jax.distributed.initialize(f"localhost:{PORT}", 2, rank)
    faulthandler.dump_traceback_later(8 + 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    if rank == 1:
        os.listdir = Mock(side_effect=OSError(116, "Stale file handle"))
    try:
        ocp.CheckpointManager(f"{FOLDER}/run")
    except OSError as error:
        print(f"process {rank}: {error!r}")
        time.sleep(60)  # the program handles the error


for rank in (0, 1):
    if os.fork() == 0:
        run(rank)
        os._exit(0)
os.wait(), os.wait()
stack = open(f"{FOLDER}/0").read().split("\n\n")[-1]
print("orbax-checkpoint", ocp.__version__, "jax", jax.__version__, "process 0 waits:", stack)
raise SystemExit("sync_global_devices" not in stack)
