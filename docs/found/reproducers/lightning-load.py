"""Lightning: rank 1 does not see the checkpoint to resume from, and rank 0 waits in DDP.

Fault: none. Two nodes with disks of their own: rank 0 alone has written the checkpoint.
"""

import faulthandler
import os
import tempfile
import time

import lightning
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

FOLDER, PORT = tempfile.mkdtemp(), str(20000 + os.getpid() % 10000)
os.environ.update(WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=PORT)


def run(rank):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    options = {"accelerator": "cpu", "devices": 2, "logger": False, "limit_train_batches": 1}
    trainer = lightning.Trainer(max_epochs=1, enable_checkpointing=False, **options)
    trainer.fit(BoringModel())
    os.mkdir(f"{FOLDER}/disk{rank}")
    trainer.save_checkpoint(f"{FOLDER}/disk{rank}/last.ckpt")
    trainer = lightning.Trainer(max_epochs=2, enable_checkpointing=False, **options)
    faulthandler.dump_traceback_later(8 + 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    try:
        trainer.fit(BoringModel(), ckpt_path=f"{FOLDER}/disk{rank}/last.ckpt")
    except OSError as error:
        print(f"process {rank}: {error!r}")
        time.sleep(60)  # the program handles the error


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
stack = open(f"{FOLDER}/0").read().split("\n\n")[-1]
print("lightning", lightning.__version__, "torch", torch.__version__, "process 0 waits:", stack)
raise SystemExit("_verify_param_shape_across_processes" not in stack)
