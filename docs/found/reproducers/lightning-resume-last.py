"""Lightning: with `ckpt_path="last"` a node without a checkpoint starts anew, the other goes on.

No fault: two nodes with disks of their own. Rank 0 alone writes checkpoints, so node 1 has none.
"""

import multiprocessing
import os
import tempfile

import lightning
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(LOCAL_RANK="0", MASTER_ADDR="localhost", MASTER_PORT=PORT)
weights = multiprocessing.Manager().dict()


class Model(BoringModel):
    def on_train_batch_end(self, *_):
        key = self.trainer.max_epochs, self.global_rank, self.global_step
        weights[key] = self.layer.weight.sum().item()


def run(rank):
    os.environ["NODE_RANK"] = str(rank)
    options = {"accelerator": "cpu", "devices": 1, "num_nodes": 2, "limit_train_batches": 1}
    for epochs in (2, 3):  # the job, and the job again
        saver = lightning.pytorch.callbacks.ModelCheckpoint(f"{FOLDER}/{rank}", save_last=True)
        trainer = lightning.Trainer(max_epochs=epochs, callbacks=[saver], logger=False, **options)
        trainer.fit(Model(), ckpt_path="last")


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
print(*weights.items(), f"exit codes {codes}, lightning {lightning.__version__}", sep="\n")
raise SystemExit(codes[0] != 0 or weights[3, 0, 3] == weights[3, 1, 1])
