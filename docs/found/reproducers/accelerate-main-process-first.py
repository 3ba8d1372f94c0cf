"""accelerate: the main process fails in `main_process_first`, and rank 1 waits.

Fault: real. The block of the main process makes a directory below a file.
"""

import faulthandler
import os
import tempfile
import time

import accelerate
import torch

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=PORT)


def run(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    state = accelerate.PartialState(cpu=True)
    faulthandler.dump_traceback_later(16 - 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    try:
        with state.main_process_first():
            os.makedirs(f"{FOLDER}/0/cache", exist_ok=True)
    except OSError as error:
        print(f"process {rank}: {error!r}")
        time.sleep(60)  # the program handles the error


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
stack = open(f"{FOLDER}/1").read().split("\n\n")[-1]
print("accelerate", accelerate.__version__, "torch", torch.__version__, "process 1 waits:", stack)
raise SystemExit("wait_for_everyone" not in stack)
