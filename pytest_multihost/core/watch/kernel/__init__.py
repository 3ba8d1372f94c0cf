"""Read the kernel's view of a world's processes: /proc, netlink, ELF files, futexes.

`proc` takes a snapshot with `proc_files` (the memory of processes included), `descriptors`,
`sockets` and `elf`; `membership` says which processes are the world's, and reads the others.
`quiescence` says whether a world is still at one moment, `stack_words` which functions are on the
stacks of threads.
"""

from pytest_multihost.core.watch.kernel.membership import HarnessProcesses
from pytest_multihost.core.watch.kernel.proc import KernelReader, ProcReader
from pytest_multihost.core.watch.kernel.proc_files import holders_of_lock, read_stat
from pytest_multihost.core.watch.kernel.quiescence import Quiescence, Stillness
from pytest_multihost.core.watch.kernel.time_source import MACHINE_TIME, TimeSource

__all__ = [
    "MACHINE_TIME",
    "HarnessProcesses",
    "KernelReader",
    "ProcReader",
    "Quiescence",
    "Stillness",
    "TimeSource",
    "holders_of_lock",
    "read_stat",
]
