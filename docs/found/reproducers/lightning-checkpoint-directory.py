"""Lightning: rank 0 cannot make the folder of a checkpoint, and rank 1 waits.

Fault: real. The folder is to lie below a file, so that `mkdir` fails.
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
    faulthandler.dump_traceback_later(16 - 8 * rank, exit=True, file=open(f"{FOLDER}/{rank}", "w"))
    try:
        trainer.save_checkpoint(f"{FOLDER}/0/checkpoints/last.ckpt")
    except OSError as error:
        print(f"process {rank}: {error!r}")
        time.sleep(60)  # the program handles the error


both = torch.multiprocessing.start_processes(run, (), 2, join=False, start_method="fork").processes
codes = [process.join() or process.exitcode for process in both]
stack = open(f"{FOLDER}/1").read().split("\n\n")[-1]
print("lightning", lightning.__version__, "torch", torch.__version__, "process 1 waits:", stack)
raise SystemExit("in barrier" not in stack)
