"""orbax: the disk is full as process 0 writes the metadata of a step, and process 1 waits.

Fault: real. A limit on the size of files (RLIMIT_FSIZE) in process 0.
"""

import faulthandler
import os
import resource
import tempfile
import time

import jax
import numpy as np
import orbax.checkpoint as ocp

FOLDER, PORT = tempfile.mkdtemp(), 20000 + os.getpid() % 10000


def run(rank):
    jax.distributed.initialize(f"localhost:{PORT}", 2, rank)
    state = {"w": np.ones(4)}
    faulthandler.dump_traceback_later(16 - 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    if rank == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        ocp.PyTreeCheckpointer().save(f"{FOLDER}/run", state)
    except OSError as error:
        print(f"process {rank}: {error!r}")
        time.sleep(60)  # the program handles the error


for rank in (0, 1):
    if os.fork() == 0:
        run(rank)
        os._exit(0)
os.wait(), os.wait()
stack = open(f"{FOLDER}/1").read().split("\n\n")[-1]
print("orbax-checkpoint", ocp.__version__, "jax", jax.__version__, "process 1 waits:", stack)
raise SystemExit("sync_global_devices" not in stack)
