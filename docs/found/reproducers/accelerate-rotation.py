"""accelerate: rank 1 cannot list the checkpoints in `save_state`, and rank 0 waits.

Fault: a shim. In rank 1 `os.listdir` raises ESTALE, as NFS can.
"""

import faulthandler
import os
import tempfile
import time
from unittest.mock import Mock

import accelerate
import torch

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=PORT)


def run(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    config = accelerate.utils.ProjectConfiguration(FOLDER, automatic_checkpoint_naming=True)
    accelerator = accelerate.Accelerator(cpu=True, project_config=config)
    if rank == 1:
        os.listdir = Mock(side_effect=OSError(116, "Stale file handle"))
    faulthandler.dump_traceback_later(8 + 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    try:
        accelerator.save_state()
    except OSError as error:
        print(f"process {rank}: {error!r}")
        time.sleep(60)  # the program handles the error


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
stack = open(f"{FOLDER}/0").read().split("\n\n")[-1]
print("accelerate", accelerate.__version__, "torch", torch.__version__, "process 0 waits:", stack)
raise SystemExit("wait_for_everyone" not in stack)
