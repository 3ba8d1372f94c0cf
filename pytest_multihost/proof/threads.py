"""What a thread is doing, and whose it is: a runtime's own, or one that runs the test's code.

The threads of torch, XLA and grpc wake up all the time, so they would block every proof; but what
they do, they do for their runtime, and by themselves they call nothing of the test's. Python's
threads, a data loader's, another library's may do anything when they wake up. A thread's name says
nothing, for names are inherited from whoever made the thread. What does is its stack: a thread
is the runtime's own when its stack returns to code of the runtime and of the system alone - no
interpreter, no other library.

No unwinder is at hand that does not stop the thread, so every word of the stack is taken that could
be a return address (`watch/kernel/memory.py` finds them). Some of these are not: a stack
is full of what ended frames have left there. Such a word can make a runtime's thread look like
somebody else's, which costs a proof, but never the other way round, which would make one wrong.

There is one exception, the idle workers of tensorstore's thread pool: they reuse the stacks of
threads that have ended, full of Python's return addresses, and would block a proof for a minute
after each restore of a checkpoint. They are known by the loop that they wait in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pytest_multihost.model.process import NEVER, KernelSnapshot, Thread
from pytest_multihost.model.result import Activity, Label
from pytest_multihost.proof import system_calls as calls

_BUSY = 0.5
"""Share of a processor from which on a thread that waits at this instant counts as running."""

DEAD = frozenset({"", "X", "Z"})
"""States of a thread that is gone, ending or not waited for by its parent (proc(5), stat)."""

_STOPPED = frozenset({"T", "t"})


def label(
    before: Thread | None, now: Thread | None, *, at_s: float, elapsed_s: float = 0.0
) -> tuple[Label, Activity]:
    """Return what a thread does, in one word and in detail.

    Args:
        before: The thread in the snapshot before, if it was there.
        now: The thread; None when it is gone.
        at_s: When `now` was read, on the monotonic clock.
        elapsed_s: How much earlier `before` was.
    """
    if now is None or now.state in DEAD:
        return "EXITED", Activity("has ended")
    if now.state in _STOPPED:
        return "STOPPED", Activity("stopped" if now.state == "T" else "held by a tracer")
    if now.state == "D":
        return "DISK", Activity(now.call or now.wchan)
    used_ns = now.cpu_ns - before.cpu_ns if before and before.tid == now.tid else 0
    is_busy = elapsed_s > 0 and used_ns > _BUSY * elapsed_s * 1e9
    if is_busy or now.state == "R" or now.call == "running":
        return "RUNNING", Activity("runs")
    return _wait_label(now), activity_of(now, at_s)


def is_sleep(thread: Thread) -> bool:
    """Return whether a thread waits for nothing but time."""
    is_empty_poll = thread.call in calls.POLLS and thread.fds == () and thread.ends_s != NEVER
    return thread.call in calls.SLEEPS or is_empty_poll


def is_file_access(thread: Thread) -> bool:
    """Return whether a thread reads or writes a file, pipe or terminal; sockets do not count."""
    if thread.call in calls.STREAMS:
        return not thread.target.startswith(("socket:", "anon_inode:"))
    return thread.call in calls.FILES


def _wait_label(thread: Thread) -> Label:
    if is_sleep(thread):
        return "SLEEPING"
    if thread.call in calls.CHILDREN:
        return "CHILD"
    return "IO" if is_file_access(thread) else "BLOCKED"


def activity_of(thread: Thread, at_s: float) -> Activity:
    """Return what a thread waits in, and until when, as seen from `at_s`."""
    return Activity(
        name="sleep" if is_sleep(thread) else thread.call or thread.wchan or "waits",
        target=thread.target,
        ends_in_s=None if thread.ends_s in {None, NEVER} else max(thread.ends_s - at_s, 0.0),
        has_unknown_timeout=thread.ends_s is None,
    )


def main_labels(
    before: KernelSnapshot | None, now: KernelSnapshot
) -> dict[int, tuple[Label, Activity]]:
    """Return what the main thread of each rank does."""
    earlier = before.ranks if before is not None else {}
    elapsed_s = now.at_s - before.at_s if before is not None else 0.0
    found = {}
    for rank, process in now.ranks.items():
        last = earlier[rank].main if rank in earlier else None
        found[rank] = label(last, process.main, at_s=now.at_s, elapsed_s=elapsed_s)
    return found


def lock_holders(now: KernelSnapshot) -> dict[int, tuple[int, ...]]:
    """Return, for each rank, which ranks hold a file lock that one of its threads waits for."""
    owners = {process.pid: process.rank for process in now.processes}
    found: dict[int, set[int]] = {rank: set() for rank in now.ranks}
    for process in now.processes:
        held = {owners.get(pid) for each in process.threads for pid in each.holders or ()}
        if process.rank is not None:
            found[process.rank] |= {rank for rank in held if rank is not None}
    return {rank: tuple(sorted(ranks)) for rank, ranks in found.items()}


# Whose a thread is

_INTERPRETER = re.compile(r"(lib)?python3?(\.\d+)?[a-z]*(\.so[\d.]*)?")
_SYSTEM = re.compile(
    r"\[vdso\]|(ld-linux-[-\w]+|"
    r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libgomp|libiomp5|libomp)(-[-.\w]+)?|"
    r"(libopenblas|libscipy_openblas)[-.\w]*)\.so[.\d]*"
)
"""The C library, the loader, and what only computes for whoever calls it: OpenMP and BLAS."""
_POOLS = re.compile(r"/tensorstore/_tensorstore[^/]*\.so")
"""Libraries whose thread pools reuse the stacks of ended threads."""
_LOCKS = re.compile(
    r"_ZNK?4absl(5Mutex|7CondVar|9Condition|24synchronization_internal)|AbslInternalPerThreadSem"
)
"""Mangled names of functions that wait for a lock: whose lock it is, is further out."""
_IDLE = re.compile(r"16SharedThreadPool(6Worker10WorkerBody|8Overseer)|17BackgroundCleaner")
"""The loops in which idle threads of these pools wait for work."""
_RUNTIME = re.compile(r"/(torch/lib|jaxlib|jax_plugins|grpc)/")


def read_stack(
    returns: Sequence[tuple[str, int]], symbol: Callable[[str, int], str], *, is_leaf: bool
) -> tuple[tuple[str, ...], str]:
    """Return whose code is on a stack, by file, and the innermost function of a known pool.

    What lies further out than the loop of an idle worker is what ended threads have left there, and
    does not count. But the loop may be just that: it is taken for the thread's own where the wait
    returns to the pool's lock, with nothing between.

    Args:
        returns: Where the stack returns to, innermost first.
        symbol: Returns the name of a function by file and offset.
        is_leaf: Whether the first of these is where the wait itself returns to.
    """
    depth, function = _innermost_function(returns, symbol)
    is_certain = is_leaf and bool(_IDLE.search(function)) and bool(_POOLS.search(returns[0][0]))
    counted = returns[: depth + 1] if is_certain else returns
    return tuple(sorted({path for path, _ in counted})), function


def _innermost_function(
    returns: Sequence[tuple[str, int]], symbol: Callable[[str, int], str]
) -> tuple[int, str]:
    """Return the innermost function of a known pool that is more than taking a lock, and its depth.

    Empty where the stack is none of such a pool, or has something else further in, or the pool's
    library has no table of its functions. A word that points to no function is no return address.
    """
    for depth, (path, offset) in enumerate(returns):
        if _SYSTEM.fullmatch(_base(path)):
            continue
        if not _POOLS.search(path):
            break
        name = symbol(path, offset)
        if name and not _LOCKS.match(name):
            return depth, name
    return 0, ""


def is_idle(thread: Thread) -> bool:
    """Return whether a thread of a pool waits for work; it ends itself when it gets none for long.

    What a worker does for a task lies further in on its stack than the loop that waits for one.
    """
    return bool(_IDLE.search(thread.function)) and thread.call == "futex"


def is_runtime_thread(thread: Thread) -> bool:
    """Return whether a thread is the runtime's own: nothing but its code is on the stack."""
    if not thread.code:
        return False
    rest = [each for each in thread.code if not _SYSTEM.fullmatch(_base(each))]
    if is_idle(thread):  # a runtime's code is what an earlier task has left on the stack
        return all(_POOLS.search(each) or _RUNTIME.search(each) for each in rest)
    return bool(rest) and all(_RUNTIME.search(each) for each in rest) and not is_python(thread)


def has_gloo_timeout(thread: Thread) -> bool:
    """Return whether a timeout of a thread's wait is gloo's for a collective.

    In torch an idle thread waits without one; elsewhere timeouts are for looking again.
    """
    is_of_torch = any("/torch/lib/" in each for each in thread.code or ())
    return is_of_torch and thread.call in calls.FUTEXES


def is_interpreter(path: str) -> bool:
    """Return whether a file is the interpreter."""
    return bool(_INTERPRETER.fullmatch(_base(path)))


def is_python(thread: Thread) -> bool:
    """Return whether a thread may be inside the interpreter; it may where its stack is unknown."""
    return thread.code is None or any(map(is_interpreter, thread.code))


def _base(path: str) -> str:
    return path.rpartition("/")[2]
