"""accelerate: each node loads the newest checkpoint that it has, and trains another model.

No fault: two nodes with disks of their own (`save_on_each_node`), and node 1 has lost the newest.
"""

import multiprocessing
import os
import shutil
import tempfile

import accelerate
import torch

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT=PORT)


def train(rank):
    os.environ["RANK"] = str(rank)
    options = {"automatic_checkpoint_naming": True, "save_on_each_node": True}
    project = accelerate.utils.ProjectConfiguration(f"{FOLDER}/node{rank}", **options)
    accelerator = accelerate.Accelerator(cpu=True, project_config=project)
    layer = torch.nn.Linear(1, 1, bias=False)
    model, optimizer = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), 0.1))
    for step in range(3):
        if (rank, step) == (1, 2):
            shutil.rmtree(f"{FOLDER}/node1/checkpoints/checkpoint_1")
        if step == 2:
            accelerator.load_state()  # the job is started again
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state()
    return layer.weight.item()


with multiprocessing.get_context("fork").Pool(2) as pool:
    found = pool.map(train, (0, 1), 1)
print("accelerate", accelerate.__version__, "torch", torch.__version__, "weights:", *found)
raise SystemExit(found[0] == found[1])
