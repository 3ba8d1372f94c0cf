"""Whose a thread is, by the code on its stack; its name says nothing, for names are inherited.

A thread counts as the runtime's own when its stack returns to code of the runtime and of the system
alone: no interpreter, no other library. A word that only looks like a return address can make a
runtime's thread look like somebody else's, never the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pytest_multihost.model.process import Thread
from pytest_multihost.proof import system_calls as calls

_INTERPRETER = re.compile(r"(lib)?python3?(\.\d+)?[a-z]*(\.so[\d.]*)?")
_SYSTEM = re.compile(
    r"\[vdso\]|(ld-linux-[-\w]+|"
    r"(libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libgomp|libiomp5|libomp)(-[-.\w]+)?|"
    r"(libopenblas|libscipy_openblas)[-.\w]*)\.so[.\d]*"
)
_POOLS = re.compile(r"/tensorstore/_tensorstore[^/]*\.so")
_LOCKS = re.compile(
    r"_ZNK?4absl(5Mutex|7CondVar|9Condition|24synchronization_internal)|AbslInternalPerThreadSem"
)
_IDLE = re.compile(r"16SharedThreadPool(6Worker10WorkerBody|8Overseer)|17BackgroundCleaner")
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
        symbol: Tells the name of a function by file and offset.
        is_leaf: Whether the first of these is where the wait itself returns to.
    """
    depth, function = _innermost(returns, symbol)
    is_certain = is_leaf and bool(_IDLE.search(function)) and bool(_POOLS.search(returns[0][0]))
    counted = returns[: depth + 1] if is_certain else returns
    return tuple(sorted({path for path, _ in counted})), function


def _innermost(
    returns: Sequence[tuple[str, int]], symbol: Callable[[str, int], str]
) -> tuple[int, str]:
    """Return the innermost function of a known pool that is more than taking a lock, and its place.

    Empty where the stack is none of such a pool, or has something else further in, or the pool's
    library has no table of its functions. A word that is no function's is no return address.
    """
    for place, (path, offset) in enumerate(returns):
        if _SYSTEM.fullmatch(_base(path)):
            continue
        if not _POOLS.search(path):
            break
        name = symbol(path, offset)
        if name and not _LOCKS.match(name):
            return place, name
    return 0, ""


def is_idle(thread: Thread) -> bool:
    """Tell whether a thread of a pool waits for work; it ends itself when it gets none for long.

    What a worker does for a task lies further in on its stack than the loop that waits for one.
    """
    return bool(_IDLE.search(thread.function)) and thread.call == "futex"


def is_own(thread: Thread) -> bool:
    """Tell whether a thread is the runtime's own: nothing but its code is on the stack."""
    if not thread.code:
        return False
    rest = [each for each in thread.code if not _SYSTEM.fullmatch(_base(each))]
    if is_idle(thread):  # a runtime's code is what an earlier task has left on the stack
        return all(_POOLS.search(each) or _RUNTIME.search(each) for each in rest)
    return bool(rest) and all(_RUNTIME.search(each) for each in rest) and not is_python(thread)


def has_gloo_timeout(thread: Thread) -> bool:
    """Tell whether a limit of a thread's wait is gloo's for a collective.

    In torch an idle thread waits without one; elsewhere limits are for looking again.
    """
    is_of_torch = any("/torch/lib/" in each for each in thread.code or ())
    return is_of_torch and thread.call in calls.FUTEXES


def is_interpreter(path: str) -> bool:
    """Tell whether a file is the interpreter."""
    return bool(_INTERPRETER.fullmatch(_base(path)))


def is_python(thread: Thread) -> bool:
    """Tell whether a thread may be inside the interpreter; it may where its stack is unknown."""
    return thread.code is None or any(map(is_interpreter, thread.code))


def _base(path: str) -> str:
    return path.rpartition("/")[2]
