"""Decide whether the controller may be forked.

A fork copies one thread and all locks. If another thread holds a lock (an OpenMP pool after its
first parallel loop, an XLA client, an importing plugin), the child waits for it forever: the
harness itself would cause a hang. Measured: after a torch matmul on two threads, or one `jnp.ones`,
before the fork, every rank hangs. So the controller is forked only if it has a single thread and no
runtime is up.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from pytest_multihost.core.jax_private import may_have_backend

_TASKS = Path("/proc/self/task")
_DESCRIPTORS = Path("/proc/self/fd")
_SETTLE_S = 0.2
_FORK_SAFE = frozenset({"jemalloc_bg_thd"})
"""Names of threads whose own fork handlers leave nothing locked in the child.

pyarrow contains jemalloc, and datasets imports pyarrow. If such a thread forbade the fork, each
rank would be a fresh interpreter that imports everything again.
"""


def fork_problems() -> list[str]:
    """Return why this process must not be forked; empty if it may be."""
    problems = _runtime_problems()
    if threading.active_count() > 1:
        main = threading.main_thread()
        others = ", ".join(each.name for each in threading.enumerate() if each is not main)
        problems.append(f"there are other Python threads: {others}")
    return problems or _native_thread_problems()


def _runtime_problems() -> list[str]:
    """Report initialised runtimes; import none, because one that is not imported is not up."""
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


def _native_thread_problems() -> list[str]:
    """Report native threads, after a trial fork whose handlers may have stopped them.

    OpenBLAS, which numpy starts on import, ends its pool in its own fork handler. jemalloc's
    handlers do not end its thread, but hold its locks during the fork.
    """
    if len(_thread_names()) > 1:
        with warnings.catch_warnings():
            # Python 3.12+ warns of forks with threads, which is what this tests.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    deadline = time.monotonic() + _SETTLE_S
    while len(names := _thread_names()) > 1 and time.monotonic() < deadline:
        time.sleep(0.002)
    if len(names) == 1:
        return []
    return [f"native code in it runs {len(names) - 1} threads: {', '.join(sorted(set(names)))}"]


def _thread_names() -> list[str]:
    names = []
    for task in os.listdir(_TASKS):
        try:
            names.append((_TASKS / task / "comm").read_text().strip())
        except OSError:  # the thread has just ended
            continue
    return [name for name in names if name not in _FORK_SAFE]
