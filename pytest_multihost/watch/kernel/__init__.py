"""Read the kernel's view of a world's processes: /proc, netlink, ELF files, futexes."""

from pytest_multihost.watch.kernel.other_processes import HarnessProcesses
from pytest_multihost.watch.kernel.proc import KernelReader, ProcReader

__all__ = ["HarnessProcesses", "KernelReader", "ProcReader"]
