"""torchmetrics: a rank whose data are used up computes another metric than the others.

No fault: rank 1 has no batch, and labels are int32. With int64 gloo aborts a process instead.
"""

import multiprocessing
import os
import tempfile

import torch
import torchmetrics
from torchmetrics.classification import BinaryAUROC

FILE = f"{tempfile.mkdtemp()}/store"
found = multiprocessing.Manager().dict()
LABELS = getattr(torch, os.environ.get("LABELS", "int32"))


def run(rank):
    store = f"file://{FILE}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    metric = BinaryAUROC()
    if rank == 0:
        metric.update(torch.tensor([0.1, 0.9, 0.8, 0.2]), torch.tensor([0, 1, 1, 0]).to(LABELS))
    found[rank] = metric.compute().item()
    torch.distributed.barrier()


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
print(f"metrics {dict(found)}, exit codes {codes}, torchmetrics {torchmetrics.__version__}")
raise SystemExit(codes != [0, 0] or found[0] == found[1])
