"""Read the kernel's view of a world's processes: /proc, netlink, ELF files, futexes.

* `proc`: takes a snapshot of a world's processes. `process_reader` reads one of them, with
  `proc_files`, `memory`, `return_addresses`, `descriptors`, `sockets`, `futexes` and `elf`.
* `membership`: finds the processes of the world. `foreign_processes`: reads all others.
* `quiescence`: decides whether a world is quiescent.
* `shared_objects`: which processes share pipes, memory, semaphores and locks.
* `time_source`: the source of a world's time.
* `merged_snapshot`, `remote_reader`: one snapshot of several machines.
"""

from pytest_multihost.core.netlink import LISTEN
from pytest_multihost.core.watch.kernel.membership import HarnessProcesses
from pytest_multihost.core.watch.kernel.merged_snapshot import RemoteSnapshot, merge_snapshots
from pytest_multihost.core.watch.kernel.proc import KernelReader, ProcReader
from pytest_multihost.core.watch.kernel.proc_files import (
    holders_of_lock,
    link,
    path_below,
    read_stat,
    root_of,
)
from pytest_multihost.core.watch.kernel.quiescence import Quiescence, Stillness
from pytest_multihost.core.watch.kernel.shared_objects import SharedObjects, with_holders
from pytest_multihost.core.watch.kernel.sockets import (
    inet_sockets,
    inet_sockets_from,
    unix_sockets,
)
from pytest_multihost.core.watch.kernel.time_source import MACHINE_TIME, TimeSource

__all__ = [
    "LISTEN",
    "MACHINE_TIME",
    "HarnessProcesses",
    "KernelReader",
    "ProcReader",
    "Quiescence",
    "RemoteSnapshot",
    "SharedObjects",
    "Stillness",
    "TimeSource",
    "holders_of_lock",
    "inet_sockets",
    "inet_sockets_from",
    "link",
    "merge_snapshots",
    "path_below",
    "read_stat",
    "root_of",
    "unix_sockets",
    "with_holders",
]
