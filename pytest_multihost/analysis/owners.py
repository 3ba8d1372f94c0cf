"""Whose a thread is, by the code on its stack; its name says nothing, for names are inherited.

A thread counts as the runtime's own when its stack returns to code of the runtime and of the system
alone: no interpreter, no other library. A word that only looks like a return address can make a
runtime's thread look like somebody else's, never the other way round.
"""

from __future__ import annotations

import re

from pytest_multihost.model.process import Thread

_INTERPRETER = re.compile(r"(lib)?python3?(\.\d+)?[a-z]*(\.so[\d.]*)?")
_SYSTEM = re.compile(
    r"\[vdso\]|(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libgomp|libiomp5|"
    r"libomp|libopenblas|libscipy_openblas)[-._\w]*\.so[-.\w]*"
)
_RUNTIME = re.compile(r"/(torch/lib|jaxlib|jax_plugins|grpc)/")


def is_own(thread: Thread) -> bool:
    """Tell whether a thread is the runtime's own: nothing but its code is on the stack."""
    if not thread.code:
        return False
    rest = [each for each in thread.code if not _SYSTEM.fullmatch(_base(each))]
    return bool(rest) and all(_RUNTIME.search(each) for each in rest) and not is_python(thread)


def is_python(thread: Thread) -> bool:
    """Tell whether a thread may be inside the interpreter; it may where its stack is unknown."""
    return thread.code is None or any(_INTERPRETER.fullmatch(_base(each)) for each in thread.code)


def _base(path: str) -> str:
    return path.rpartition("/")[2]
