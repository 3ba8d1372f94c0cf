"""torch.distributed.checkpoint: an interrupted save leaves a checkpoint of two steps, which loads.

Fault: process 1 is killed as it begins to write its part of the second save to the same folder.
"""

import os
import signal
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor

FOLDER = tempfile.mkdtemp()


def run(rank):
    dist.init_process_group("gloo", f"file://{FOLDER}/store", rank=rank, world_size=2)
    mesh = dist.init_device_mesh("cpu", (2,))
    for step in (1.0, 2.0):
        if (rank, step) == (1, 2.0):
            dcp.FileSystemWriter.write_data = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        state = {"w": distribute_tensor(torch.full((4,), step), mesh, [Shard(0)])}
        dcp.save(state, checkpoint_id=f"{FOLDER}/last")


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
state = {"w": torch.zeros(4)}
dcp.load(state, checkpoint_id=f"{FOLDER}/last", no_dist=True)  # the job again
print("torch", torch.__version__, "exit codes", codes, "loaded:", state)
raise SystemExit(state["w"].tolist() != [2, 2, 1, 1])
