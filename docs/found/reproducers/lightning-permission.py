"""Lightning: a checkpoint that rank 0 may not write raises no error and leaves no checkpoint.

Fault: real. After the first checkpoint the folder belongs to another user, or is not writable.
"""

import os
import tempfile
from pathlib import Path

import lightning
import torch
from lightning.pytorch.demos.boring_classes import BoringModel

folder, model = Path(tempfile.mkdtemp()), BoringModel()
options = {"limit_val_batches": 0, "logger": False, "enable_checkpointing": False}
trainer = lightning.Trainer(max_steps=1, accelerator="cpu", devices=1, **options)
trainer.fit(model)
trainer.save_checkpoint(folder / "last.ckpt")
folder.chmod(0o555)
if os.geteuid() == 0:
    os.seteuid(65534)  # root may write everywhere
trainer.fit_loop.epoch_loop.max_steps = 2
trainer.fit(model)
trainer.save_checkpoint(folder / "last.ckpt")
trainer.save_checkpoint(folder / "new.ckpt")
saved = torch.load(folder / "last.ckpt", weights_only=False)["global_step"]
files = sorted(os.listdir(folder))
print("lightning", lightning.__version__, "torch", torch.__version__)
print(f"step {trainer.global_step} was saved without an error; {files}; last.ckpt is step {saved}")
raise SystemExit((trainer.global_step, saved, files) != (2, 1, ["last.ckpt"]))
