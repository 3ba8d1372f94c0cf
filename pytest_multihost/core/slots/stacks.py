"""How the stacks of a rank are taken: by a signal that it handles itself, else by py-spy.

Code in a rank can take its handlers away: Lightning's `fit()` ends with `signal.signal(number,
signal.getsignal(number))` for all signals, and `getsignal` does not see faulthandler's. So a
signal is sent only where /proc shows a handler for it and a thread that does not block it.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

from pytest_multihost.core.model.messages import DumpKind
from pytest_multihost.core.slots.flight_mailbox import FlightMailbox

_OTHERS = ("main", "tasks", "locks", "files")


def dump_signal(kind: DumpKind) -> int:
    """Return the signal on which a rank writes this kind of dump.

    SIGURG for stacks, which every rank is asked for: no process sends it unasked, and should a rank
    lose its handler at this moment, the signal is ignored. SIGUSR1 and SIGUSR2 announce
    termination in torchelastic and Slurm; real-time signals end a process that does not handle
    them.
    """
    kind = "tasks" if kind == "child tasks" else kind
    return signal.SIGRTMIN + 9 + _OTHERS.index(kind) if kind in _OTHERS else signal.SIGURG


def can_handle(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal, and a thread that does not block it."""
    bit = 1 << number - 1
    for path in Path(f"/proc/{pid}/task").glob("*/status"):
        with suppress(OSError):  # the thread has ended
            lines = path.read_text(errors="replace").splitlines()
            masks = {name: value for name, _, value in (line.partition(":") for line in lines)}
            if int(masks["SigCgt"], 16) & bit and not int(masks["SigBlk"], 16) & bit:
                return True
    return False


def harness_thread(pid: int, rank: int) -> int:
    """Return the thread of a rank that waits for questions to torch's flight recorder; 0: none.

    It belongs to the harness, and reads again after a signal.
    """
    for path in Path(f"/proc/{pid}/task").glob("*/syscall"):
        with suppress(OSError, ValueError, IndexError):  # the thread has ended, or runs
            descriptor = int(path.read_text().split()[1], 16)
            target = (Path(f"/proc/{pid}/fd") / str(descriptor)).readlink()
            if target.name == FlightMailbox(target.parent, rank).fifo.name:
                return int(path.parent.name)
    return 0


def signal_thread(pid: int, thread: int, number: int) -> None:
    """Send a signal to one thread of a process, which is to handle it: tgkill(2).

    Raises:
        OSError: It cannot be sent.
    """
    if ctypes.CDLL(None, use_errno=True).tgkill(pid, thread, number):
        raise OSError(ctypes.get_errno(), "cannot signal a thread")


def py_spy_command() -> tuple[str, ...]:
    """Return the command line with which py-spy prints stacks as JSON without stopping the process.

    The caller appends the process's id. Empty if py-spy is neither beside this Python nor on the
    PATH.
    """
    beside = shutil.which("py-spy", path=str(Path(sys.executable).parent))
    program = beside or shutil.which("py-spy")
    return (program, "dump", "--nonblocking", "--json", "--pid") if program else ()
