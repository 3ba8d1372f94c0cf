"""The readers, one file for each kind of text. To add one is to write a file and a line here.

`reader` is their interface. `nccl_watchdog`: torch's watchdog of NCCL. `mismatches`: torch's
messages with TORCH_DISTRIBUTED_DEBUG=DETAIL. `barriers`: gloo's monitored barrier and the barriers
of jax's coordination service. `nccl_ras`: reports of NCCL RAS. `tracebacks`: Python's. `endings`:
how processes have ended, by torchrun, Slurm and the kernel. `stacks`: py-spy, faulthandler, gdb and
pystack. `short_paths`: files whose folder py-spy leaves out.
"""

from __future__ import annotations

from pytest_multihost.extensions.logs.readers.barriers import BARRIERS
from pytest_multihost.extensions.logs.readers.endings import ENDINGS
from pytest_multihost.extensions.logs.readers.mismatches import MISMATCHES
from pytest_multihost.extensions.logs.readers.nccl_ras import NCCL_RAS
from pytest_multihost.extensions.logs.readers.nccl_watchdog import NCCL_WATCHDOG
from pytest_multihost.extensions.logs.readers.stacks import STACKS
from pytest_multihost.extensions.logs.readers.tracebacks import TRACEBACKS

READERS = (NCCL_WATCHDOG, MISMATCHES, BARRIERS, NCCL_RAS, TRACEBACKS, ENDINGS, STACKS)
