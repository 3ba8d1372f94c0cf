"""accelerate: rank 1 cannot save its random states, and rank 0 waits in the next step.

Fault: real. A limit on the size of files (RLIMIT_FSIZE) in rank 1.
"""

import faulthandler
import os
import resource
import tempfile
import time

import accelerate
import torch

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=PORT)


def run(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(1, 1))
    faulthandler.dump_traceback_later(8 + 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        accelerator.save_state(f"{FOLDER}/state")
        accelerator.backward(model(torch.ones(1, 1)).sum())
    except Exception as error:
        print(f"process {rank}: {error!r}")
        time.sleep(60)  # the program handles the error


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
stack = open(f"{FOLDER}/0").read().split("\n\n")[-1]
print("accelerate", accelerate.__version__, "torch", torch.__version__, "process 0 waits:", stack)
raise SystemExit("backward" not in stack)
