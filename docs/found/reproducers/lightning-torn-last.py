"""Lightning: a save that fails leaves a torn file in place of the last good checkpoint.

Fault: $TMPDIR is on another file system than the checkpoints, and theirs is full when the new file
is moved to it. In place of a full disk: a limit on the size of files, set by a shim at the move.
"""

import resource
import sys
import tempfile
from pathlib import Path

import lightning
import torch
from fsspec.implementations import local

commit = local.LocalFileOpener.commit


def full(file):
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
    commit(file)


path = Path(tempfile.mkdtemp(), "last.ckpt")
fabric = lightning.Fabric(accelerator="cpu", devices=1)
fabric.save(path, {"weights": torch.ones(30000)})
good = path.stat().st_size
with tempfile.TemporaryDirectory(dir="/dev/shm") as tempfile.tempdir:
    local.LocalFileOpener.commit = full
    try:
        fabric.save(path, {"weights": torch.ones(30000)})
    except OSError as error:
        print("save:", error)
print("lightning", lightning.__version__, "bytes before:", good, "after:", path.stat().st_size)
try:
    torch.load(path)
except (OSError, RuntimeError) as error:
    print("load:", error)
    sys.exit(path.stat().st_size == good)
sys.exit("the checkpoint was loaded")
