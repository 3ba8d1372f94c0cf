"""Who can wake a thread that waits for a word in memory, and whether it waits to run Python."""

from __future__ import annotations

from pytest_multihost.analysis import calls
from pytest_multihost.analysis.owners import is_interpreter
from pytest_multihost.model.process import NEVER, Where
from pytest_multihost.watch import tasks
from pytest_multihost.watch.descriptors import Tables
from pytest_multihost.watch.memory import Mapping, Memory


def who_wakes(call: str, args: tuple[int, ...], memory: Memory, tables: Tables | None) -> Where:
    """Tell who can wake a thread that waits for a futex, by the page in which that lies.

    Args:
        call: What the thread waits in; what is no futex, only its own process can wake.
        args: The arguments.
        memory: Of its process.
        tables: All processes; None if they are not looked at.
    """
    if call not in calls.FUTEXES or calls.is_private_futex(call, args):
        return "inside"
    mapping = None if call == "futex_waitv" else memory.mapping(args[0])
    if mapping is None or tables is None:
        return "unknown"
    return _sharers(mapping, tables) if mapping.is_shared else "inside"


def _sharers(mapping: Mapping, tables: Tables) -> Where:
    """Tell who maps the file in whose pages a futex lies.

    A process that cannot be read is another user's, or guarded. It may have opened any file, but
    not one that has no name any more: as with pipes, it would need it from a common ancestor.
    """
    for pid in tables.names.keys() - tables.links.keys() - tables.ours.idle:
        is_mapped = tasks.maps(mapping.file, pid)
        if is_mapped is None and mapping.is_nameless:
            continue
        if is_mapped or is_mapped is None:
            return "outside" if is_mapped else "unknown"
    return "inside"


def is_for_interpreter(
    call: str, args: tuple[int, ...], memory: Memory, ends_s: float | None
) -> bool:
    """Tell whether a thread waits for its turn to run Python.

    It asks for it every five milliseconds
    (https://docs.python.org/3/library/sys.html#sys.setswitchinterval), and the word that it waits
    for lies in the interpreter; those of locks and queues lie on the heap.
    """
    is_timed = call == "futex" and ends_s != NEVER
    return is_timed and is_interpreter(memory.file_of_data(args[0]))
