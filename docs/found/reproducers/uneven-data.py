"""DistributedDataParallel: rank 1 has a batch less, and rank 0 waits in `backward`.

Fault: none. Rank 0 has three batches and rank 1 has two.
"""

import faulthandler
import os
import tempfile
import time

import torch

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=PORT)


def run(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1, 1))
    faulthandler.dump_traceback_later(8 + 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    for _ in range(3 - rank):
        model(torch.ones(1, 1)).sum().backward()
    print(f"rank {rank} has no more batches")
    time.sleep(60)  # an evaluation, or the end


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
stack = open(f"{FOLDER}/0").read().split("\n\n")[-1]
print("DDP", "torch", torch.__version__, "process 0 waits:", stack)
raise SystemExit("backward" not in stack)
