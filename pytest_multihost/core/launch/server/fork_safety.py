"""Decide whether the controller may be forked.

A fork copies one thread and all locks. If another thread holds a lock (an OpenMP pool after its
first parallel loop, an XLA client, an importing plugin), the child waits for it forever: the
harness itself would cause a hang. Measured: after a torch matmul on two threads, or one `jnp.ones`,
before the fork, every rank hangs. So the controller is forked only if it has a single thread and no
runtime is up.

The ranks of a call use nothing of pytest. For them, threads of pytest's plugins that only wait are
permitted: they hold locks of their own plugin at most.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from pytest_multihost.core.cpython_private import current_frames
from pytest_multihost.core.jax_private import may_have_backend
from pytest_multihost.core.launch.libc import forget_memory
from pytest_multihost.core.native_threads import native_thread_problems

_DESCRIPTORS = Path("/proc/self/fd")
_STACK_SIZE = 8 << 20
"""That of a thread, as glibc has it by default; of a smaller stack all is emptied, of a larger one
the part that is in use first."""
_DATA_SIZE = 64 << 10
"""At most so far from the end of its stack are the C library's data about a thread."""


def fork_problems() -> list[str]:
    """Return why this process must not be forked; empty if it may be."""
    problems = _runtime_problems()
    if threading.active_count() > 1:
        main = threading.main_thread()
        others = ", ".join(each.name for each in threading.enumerate() if each is not main)
        problems.append(f"there are other Python threads: {others}")
    return problems or native_thread_problems()


_NEIGHBOURS = frozenset({"execnet", "pytest_rerunfailures", "pytest_timeout", "xdist"})
"""Packages of pytest's plugins that start threads in its process."""

_WAITS = frozenset(
    {
        ("execnet.gateway_base", "read"),
        ("selectors", "select"),
        ("socket", "accept"),
        ("threading", "wait"),
    }
)
"""Modules and functions in which such a thread waits, and holds no lock of other code."""


def call_fork_problems() -> list[str]:
    """Return why this process must not be forked for a call; empty if it may be.

    A thread is harmless if it waits, and only a plugin of pytest and the standard library are on
    its stack.
    """
    problems = _runtime_problems()
    names = {each.ident: each for each in threading.enumerate()}
    own = threading.get_ident()
    others = {ident: frame for ident, frame in current_frames().items() if ident != own}
    foreign = [
        _described(names.get(ident), frame)
        for ident, frame in others.items()
        if not is_idle_neighbour(names.get(ident), list(_frames(frame)))
    ]
    if foreign:
        problems.append(f"another thread runs in pytest's process: {', '.join(foreign)}")
    return problems or native_thread_problems(permitted=len(others))


def other_threads() -> list[int]:
    """Return the identifiers of the other threads of Python's, before a fork."""
    own = threading.get_ident()
    return [each for each in current_frames() if each != own]


def clear_stacks(threads: Sequence[int]) -> None:
    """In a forked child, empty the stacks of threads that only the parent has, or has had.

    The C library gives them to the next threads of the child, and would give return addresses of
    Python's with them: a runtime's thread would look as if it might run the test's code, and
    nothing could be proven.

    Args:
        threads: The identifiers of living threads: the addresses of the C library's own data, which
            lie at the end of their stacks.
    """
    page, size = os.sysconf("SC_PAGE_SIZE"), threading.stack_size() or _STACK_SIZE
    found = _writable_memory()
    ended = [
        _thread_of(first, last) for first, last in found if size - 2 * page <= last - first <= size
    ]
    for ident in {*threads, *filter(None, ended)}:
        end = ident // page * page
        start = end - size + 4 * page
        for first, last in found:
            if first <= end < last:
                forget_memory(max(first, start), end)


def _writable_memory() -> list[tuple[int, int]]:
    """Return the addresses of this process's private writable mappings."""
    lines = (line.split() for line in Path("/proc/self/maps").read_text().splitlines())
    spans = (words[0].split("-") for words in lines if words[1] == "rw-p")
    return [(int(first, 16), int(last, 16)) for first, last in spans]


def _thread_of(first: int, last: int) -> int:
    """Return the identifier of the thread whose stack a mapping is, or was; 0: of none.

    On x86-64 the data of the C library about a thread have their own address twice.
    """
    size = min(_DATA_SIZE, last - first)
    words = memoryview(ctypes.string_at(last - size, size)).cast("Q")
    for number in range(0, len(words) - 2, 8):
        address = last - size + 8 * number
        if words[number] == words[number + 2] == address:
            return address
    return 0


def is_idle_neighbour(thread: threading.Thread | None, frames: Sequence[FrameType]) -> bool:
    """Return whether a thread of a known plugin of pytest waits.

    Args:
        thread: None: `threading` does not know it.
        frames: Innermost first.
    """
    modules = [str(each.f_globals.get("__name__", "")) for each in frames]
    packages = {each.partition(".")[0] for each in modules}
    if isinstance(thread, threading.Timer):  # its function is not on the stack yet
        packages.add(thread.function.__module__.partition(".")[0])
    is_waiting = bool(frames) and (modules[0], frames[0].f_code.co_name) in _WAITS
    is_neighbours = bool(packages & _NEIGHBOURS)
    return is_waiting and is_neighbours and packages <= _NEIGHBOURS | sys.stdlib_module_names


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _described(thread: threading.Thread | None, innermost: FrameType) -> str:
    """Return a thread's name, and the innermost function of it that is not the standard library."""
    frames = list(_frames(innermost))
    own = (
        each
        for each in frames
        if str(each.f_globals.get("__name__", "")).partition(".")[0]
        not in sys.stdlib_module_names - {"__main__"}
    )
    at = next(own, innermost)
    name = "one without a name" if thread is None else thread.name
    place = f"{Path(at.f_code.co_filename).name}:{at.f_lineno}"
    return f"{name}, in {at.f_code.co_qualname} ({place})"


def _runtime_problems() -> list[str]:
    """Report initialised runtimes; import none: a runtime that is not imported is not up."""
    problems = []
    if may_have_backend():
        problems.append(
            "jax has initialised its backend (a module-level jnp array or jax.devices()?)"
        )
    cuda = sys.modules.get("torch.cuda")
    if cuda is not None and cuda.is_initialized():
        problems.append("torch has initialised CUDA")
    if not problems and any(path.startswith("/dev/nvidia") for path in _open_paths()):
        problems.append("the CUDA driver is open")
    return problems


def _open_paths() -> Sequence[str]:
    paths = []
    for descriptor in os.listdir(_DESCRIPTORS):
        try:
            paths.append(os.readlink(_DESCRIPTORS / descriptor))
        except OSError:  # closed meanwhile: the listing's own descriptor
            continue
    return paths
