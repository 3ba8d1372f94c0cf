"""Whether a thread is a runtime's own, or may run the test's code.

The threads of torch, XLA and grpc wake up all the time, so they would block every proof. But they
work only for their runtime, and never call the test's code by themselves. Threads of Python, of a
data loader or of another library may do anything when they wake up. A thread's name is not a
criterion, because threads inherit it from their creator. Its stack is: a thread is the runtime's
own if its stack returns only to code of the runtime and of the system - no interpreter, no other
library.

Every unwinder would stop the thread, so each word of the stack that could be a return address is
taken for one (`core/watch/kernel/return_addresses.py` finds them). Some of these words are remains
of ended frames. Such a word can make a runtime's thread look like another thread, which only
prevents a proof. The opposite error, which would make a proof wrong, cannot happen.

There are two exceptions. The idle workers of tensorstore's thread pool reuse the stacks of threads
that have ended, full of Python's return addresses, and would block a proof for a minute after each
restore of a checkpoint. They are recognized by the loop that they wait in. So is the thread of
torch's profiler, which waits for five seconds at a time until the process ends: one remain of
Python's in its frame would block all proofs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pytest_multihost.core.model.process import Thread
from pytest_multihost.core.proof.system_calls import (
    ENDED_BY_SIGNALS,
    ENDED_BY_STOPS,
    FUTEXES,
)
from pytest_multihost.core.torch_private import PROFILERS

_INTERPRETER = re.compile(r"(lib)?python3?(\.\d+)?[a-z]*(\.so[\d.]*)?")
_SYSTEM = re.compile(
    r"\[vdso\]|(ld-linux-[-\w]+|"
    r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libgomp|libiomp5|libomp)(-[-.\w]+)?|"
    r"(libopenblas|libscipy_openblas|libevent(_core|_pthreads)?)[-.\w]*|_[a-z]+-[0-9a-f]{16})"
    r"\.so[.\d]*"
)
"""The C library, the loader, libraries that only work for their caller (OpenMP, BLAS, the event
loop of MPI's threads), and the libraries that the harness preloads (`PreloadedLibrary.file_name`),
which stand between all others and the C library."""
_POOLS = re.compile(r"/tensorstore/_tensorstore[^/]*\.so")
"""Libraries whose thread pools reuse the stacks of ended threads."""
_LOCKS = re.compile(
    r"_ZNK?4absl(5Mutex|7CondVar|9Condition|24synchronization_internal)|AbslInternalPerThreadSem"
)
"""Mangled names of functions that wait for a lock; the lock's user is further out."""
_IDLE = re.compile(r"16SharedThreadPool(6Worker10WorkerBody|8Overseer)|17BackgroundCleaner")
"""The loops in which idle threads of these pools wait for work."""
_REMAINS = re.compile(r"/pyarrow/libarrow\.so[.\d]*")
"""Code of jemalloc's thread, which a fork ends: the first thread of the rank gets its stack."""
_CUDA = re.compile(r"/nvidia/\w+/lib/|/lib(cuda|cudart|nccl|nvidia-[-\w]+)(-\w+)?\.so[.\d]*$")
"""The libraries of CUDA and NCCL. A program's callbacks run in their threads only by way of code
of others, which the stack shows."""
_TORCH = "/torch/lib/"
_MPI = re.compile(r"/lib(mpi|pmix|open-pal|open-rte|uc[mpst]|fabric|psm2)[-\w]*\.so[.\d]*$")
"""The libraries of MPI, and the carriers of its messages: a thread of theirs waits for peers."""
_RUNTIME = re.compile(rf"/(torch/lib|jaxlib|jax_plugins|grpc)/|{_CUDA.pattern}|{_MPI.pattern}")
_MOVES_DATA = "NCCL Progress"
"""The name of the thread that moves NCCL's data to and from the network; NCCL sets it if
NCCL_SET_THREAD_NAME is 1. It runs all the time while an operation is open, so its stack cannot be
read. It starts no thread, which would inherit the name."""


def read_stack(
    returns: Sequence[tuple[str, int]], symbol: Callable[[str, int], str], *, is_leaf: bool
) -> tuple[tuple[str, ...], str]:
    """Return the files whose code is on a stack, and the innermost function of a known pool.

    Words further out than the loop of an idle worker are remains of ended threads and are ignored.
    The loop may also be such a remain: it counts as the thread's own if the wait returns to the
    pool's lock, with nothing between.

    Args:
        returns: The stack's return addresses, innermost first.
        symbol: Returns the name of a function by file and offset.
        is_leaf: Whether the wait itself returns to the first of these.
    """
    depth, function = _innermost_function(returns, symbol)
    is_certain = is_leaf and bool(_IDLE.search(function)) and bool(_POOLS.search(returns[0][0]))
    counted = returns[: depth + 1] if is_certain else returns
    return tuple(sorted({path for path, _ in counted})), function


def _innermost_function(
    returns: Sequence[tuple[str, int]], symbol: Callable[[str, int], str]
) -> tuple[int, str]:
    """Return the innermost function of a known pool, other than taking a lock, and its depth.

    Empty if the stack is not of such a pool, or has other code further in, or the pool's library
    has no symbol table. A word that points to no function is not a return address.
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


_WAITS_AGAIN = re.compile(
    r"/lib-dynload/|/(libuv|libzmq|uvloop|_zmq)[-.\w]*\.so[.\d]*$|/uvloop/|/zmq/|/pyzmq\.libs/"
)
"""Python's own extensions and libraries of event loops."""


def caller_of(returns: Sequence[tuple[str, int]]) -> str:
    """Return the file whose code has made a thread's call, past the C library; empty if unknown.

    Args:
        returns: The stack's return addresses, innermost first.
    """
    return next((path for path, _ in returns if not _SYSTEM.fullmatch(_base(path))), "")


def is_ended_by_stop(thread: Thread) -> bool:
    """Return whether a thread's wait ends for good if the thread is stopped for a moment."""
    return thread.call in ENDED_BY_STOPS and not _waits_again(thread)


def is_ended_by_signal(thread: Thread) -> bool:
    """Return whether a thread's wait ends for good if it handles a signal."""
    return thread.call in ENDED_BY_SIGNALS and not _waits_again(thread)


def _waits_again(thread: Thread) -> bool:
    """Return whether the code that waits is known to wait again after an interruption.

    Python's does (PEP 475), and so do the runtimes, which are stopped and signalled all the time.
    """
    if is_interpreter(thread.caller) or _WAITS_AGAIN.search(thread.caller):
        return True
    return bool(_RUNTIME.search(thread.caller)) or is_runtime_thread(thread)


def is_idle(thread: Thread) -> bool:
    """Return whether a thread of a pool waits for work; without work it ends by itself later.

    A task's frames lie further in on a worker's stack than the loop that waits for tasks.
    """
    return bool(_IDLE.search(thread.function)) and thread.call == "futex"


def is_runtime_thread(thread: Thread) -> bool:
    """Return whether a thread is the runtime's own: its stack has no other code."""
    if moves_data_of_nccl(thread) or thread.function in PROFILERS:
        return True
    if not thread.code:
        return False
    rest = [
        each
        for each in thread.code
        if not _SYSTEM.fullmatch(_base(each)) and not _REMAINS.search(each)
    ]
    if is_idle(thread):  # the runtime's code is left from an earlier task
        return all(_POOLS.search(each) or _RUNTIME.search(each) for each in rest)
    return bool(rest) and all(_RUNTIME.search(each) for each in rest) and not is_python(thread)


def moves_data_of_nccl(thread: Thread) -> bool:
    """Return whether a thread only moves the data of NCCL's operations, and may run all the time.

    Its work ends no operation that a member has not entered.
    """
    return thread.name.startswith(_MOVES_DATA)


def may_wait_for_gpu(thread: Thread, code: Sequence[str] | None) -> bool:
    """Return whether a thread may wait for work of a GPU: for a lock, in code of CUDA.

    cudaStreamSynchronize and its like spin, or wait for a lock that a thread of CUDA releases.

    Args:
        code: As in `Thread`, now or when the wait began. Never known for main threads.
    """
    is_in_cuda = code is None or any(map(_CUDA.search, code))
    return thread.call in FUTEXES and is_in_cuda


def has_gloo_timeout(thread: Thread) -> bool:
    """Return whether a timeout of a thread's wait is gloo's timeout for a collective.

    In torch an idle thread waits without a timeout. Threads that watch NCCL, that of the profiler,
    and those of other runtimes, time out only to poll.
    """
    code = thread.code or ()
    is_of_torch = any(_TORCH in each for each in code)
    watches = any(each.endswith("/libtorch_cuda.so") for each in code)
    watches = watches or thread.function in PROFILERS
    return is_of_torch and not watches and thread.call in FUTEXES


def profiler_of(returns: Sequence[tuple[str, int]], exported: Callable[[str, str], range]) -> str:
    """Return the function in which a thread of torch's profiler waits; empty for another thread.

    It is the first of torch on the stack: only libraries of the system are further in.

    Args:
        returns: The stack's return addresses, innermost first.
        exported: Returns where a function is, by file and name.
    """
    for path, offset in returns:
        if not _SYSTEM.fullmatch(_base(path)):
            names = PROFILERS if _TORCH in path else ()
            return next((each for each in names if offset in exported(path, each)), "")
    return ""


def is_python(thread: Thread) -> bool:
    """Return whether a thread may be inside the interpreter; true if its stack is unknown."""
    return thread.code is None or any(map(is_interpreter, thread.code))


def is_interpreter(path: str) -> bool:
    """Return whether a file is the interpreter."""
    return bool(_INTERPRETER.fullmatch(_base(path)))


def _base(path: str) -> str:
    return path.rpartition("/")[2]
