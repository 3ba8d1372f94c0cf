"""accelerate: with `total_limit=1` the only checkpoint is removed before the next one is written.

Fault: real. The disk is full for the second save: a limit on the size of files (RLIMIT_FSIZE).
"""

import resource
import sys
import tempfile
from pathlib import Path

import accelerate
import torch

folder = Path(tempfile.mkdtemp(), "checkpoints")
project = accelerate.utils.ProjectConfiguration(
    str(folder.parent), automatic_checkpoint_naming=True, total_limit=1
)
accelerator = accelerate.Accelerator(cpu=True, project_config=project)
accelerator.prepare(torch.nn.Linear(64, 64))
accelerator.save_state()
before = [path.name for path in sorted(folder.rglob("*"))]
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    accelerator.save_state()
except Exception as error:
    print("save_state:", error)
after = {path.name: path.stat().st_size for path in sorted(folder.rglob("*"))}
print("accelerate", accelerate.__version__, "torch", torch.__version__)
print("before:", before, "\nafter:", after)
try:
    accelerator.load_state()
except Exception as error:
    print("load_state:", error)
    sys.exit("checkpoint_0" in after)
sys.exit("the checkpoint was loaded")
