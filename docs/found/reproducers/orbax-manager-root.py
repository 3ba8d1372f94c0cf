"""orbax: process 0 cannot make the directory of a CheckpointManager, and process 1 waits.

Fault: real. The directory is to lie below a file, so that `mkdir` fails.
"""

import faulthandler
import os
import tempfile
import time

import jax
import orbax.checkpoint as ocp

FOLDER, PORT = tempfile.mkdtemp(), 20000 + os.getpid() % 10000


def run(rank):
    jax.distributed.initialize(f"localhost:{PORT}", 2, rank)
    faulthandler.dump_traceback_later(16 - 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    try:
        ocp.CheckpointManager(f"{FOLDER}/0/run")
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
