"""accelerate: after one failed save the main process can never save again, and nobody ends.

Fault: real. A limit on the size of files (RLIMIT_FSIZE) in rank 0, for its first save.
"""

import faulthandler
import os
import resource
import tempfile

import accelerate
import torch

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=PORT)


def run(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    config = accelerate.utils.ProjectConfiguration(FOLDER, automatic_checkpoint_naming=True)
    accelerator = accelerate.Accelerator(cpu=True, project_config=config)
    model = accelerator.prepare(torch.nn.Linear(64, 64))
    faulthandler.dump_traceback_later(16 - 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    for step in range(3):
        accelerator.backward(model(torch.ones(1, 64)).sum())
        limit = 1000 if (rank, step) == (0, 0) else -1
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, -1))
        try:
            accelerator.save_state()
        except Exception as error:  # and trains on
            print(f"rank {rank}, step {step}: {error}")


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
stack = open(f"{FOLDER}/1").read().split("\n\n")[-1]
print("accelerate", accelerate.__version__, "torch", torch.__version__, "process 1 waits:", stack)
raise SystemExit("wait_for_everyone" not in stack)
