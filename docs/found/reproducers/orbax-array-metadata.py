"""orbax: the disk is full for process 1 while all save, and process 0 waits.

Fault: real. A limit on the size of files (RLIMIT_FSIZE) in process 1.
"""

import faulthandler
import os
import resource
import tempfile
import time

import jax
import orbax.checkpoint as ocp

FOLDER, PORT = tempfile.mkdtemp(), 20000 + os.getpid() % 10000


def run(rank):
    jax.distributed.initialize(f"localhost:{PORT}", 2, rank)
    sharding = jax.NamedSharding(jax.make_mesh((2,), ("data",)), jax.P("data"))
    state = {"w": jax.jit(lambda: jax.numpy.ones(4), out_shardings=sharding)()}
    manager = ocp.Checkpointer(ocp.StandardCheckpointHandler())
    faulthandler.dump_traceback_later(8 + 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        manager.save(f"{FOLDER}/run", args=ocp.args.StandardSave(state))
    except Exception as error:
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
