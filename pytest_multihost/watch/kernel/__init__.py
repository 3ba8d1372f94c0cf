"""Read the kernel's view of a world's processes: /proc, netlink, ELF files, futexes.

`proc` takes a snapshot with `proc_files`, `descriptors`, `memory`,
`sockets` and `elf`; `family` says which processes are the world's, `other_processes` reads the
others. `quiescence` says whether a world is still at one moment, `stack_words` which functions are
on the stacks of threads.
"""

from pytest_multihost.watch.kernel.other_processes import HarnessProcesses
from pytest_multihost.watch.kernel.proc import KernelReader, ProcReader
from pytest_multihost.watch.kernel.proc_files import holders_of_lock, read_stat
from pytest_multihost.watch.kernel.quiescence import Motion, Quiescence, Stillness

__all__ = [
    "HarnessProcesses",
    "KernelReader",
    "Motion",
    "ProcReader",
    "Quiescence",
    "Stillness",
    "holders_of_lock",
    "read_stat",
]
