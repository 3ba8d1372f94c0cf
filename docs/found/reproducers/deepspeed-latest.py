"""DeepSpeed: with `use_node_local_storage` every node but the first trains on without a checkpoint.

No fault: two nodes with disks of their own. Global rank 0 alone writes the file `latest`.
"""

import multiprocessing
import os
import tempfile

import torch

os.environ.update(DS_ACCELERATOR="cpu", DS_BUILD_OPS="0")
import deepspeed

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT=PORT)
found = multiprocessing.Manager().dict()
config = {"train_micro_batch_size_per_gpu": 1, "checkpoint": {"use_node_local_storage": True}}
deepspeed.ops.__compatible_ops__ = {}  # compiles nothing


def run(rank):
    os.environ["RANK"] = str(rank)
    deepspeed.init_distributed("gloo")
    for job in (1, 2):  # the job, and the job again
        torch.manual_seed(0)
        model = torch.nn.Linear(1, 1, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
        loaded = engine.load_checkpoint(f"{FOLDER}/{rank}")[0]
        engine.backward(engine(torch.ones(1, 1)).sum())
        engine.step()
        engine.save_checkpoint(f"{FOLDER}/{rank}")
        found[job, rank] = engine.module.weight.item(), engine.global_steps, loaded


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
print(*sorted(found.items()), f"codes {codes}, deepspeed {deepspeed.__version__}", sep="\n")
raise SystemExit(codes != [0, 0] or found[2, 0][0] == found[2, 1][0])
