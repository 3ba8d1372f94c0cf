"""Find the names of functions on the stacks of threads, without stopping the threads.

Every word that may be a return address counts as one (see `return_addresses`), so a name may belong
to a call that is over. But the innermost name outside of the system's libraries is reliable,
because hardly any stack lies above it: it shows which library waits.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass

from pytest_multihost.core.model.process import Thread
from pytest_multihost.core.watch.kernel.elf import demangled, symbol_table
from pytest_multihost.core.watch.kernel.memory import Memory
from pytest_multihost.core.watch.kernel.return_addresses import ReturnAddresses

_SYSTEM = re.compile(
    r"\[vdso\]|.*/(ld-linux[-\w]*|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s)(-[.\d]+)?)\.so[.\d]*"
)
"""System libraries, in which other libraries wait."""

_RUNTIMES = re.compile(r".*/(torch|jaxlib)/.*\.so[.\d]*")


@dataclass(frozen=True, slots=True)
class StackWords:
    """The functions that the words of a thread's stack name.

    Attributes:
        is_in_runtime: Whether it waits in code of torch or jax.
        symbols: Functions of torch or jax on its stack, innermost first.
    """

    thread: int
    is_in_runtime: bool
    symbols: tuple[str, ...]


def read_stack_words(pid: int, threads: Iterable[Thread]) -> tuple[StackWords, ...]:
    """Return the functions on the stacks of a process's waiting threads; skip unreadable stacks.

    Args:
        threads: Its threads, as a snapshot shows them.
    """
    found = []
    with closing(Memory(pid)) as memory:
        returns = ReturnAddresses(memory)
        for each in threads:
            places = returns.of_stack(each.pointer) if each.pointer else None
            outside = [at for at in places or () if not _SYSTEM.fullmatch(at[0])]
            if outside:
                inside = [at for at in outside if _RUNTIMES.fullmatch(at[0])]
                symbols = tuple(filter(None, (_name(*at) for at in inside)))
                found.append(StackWords(each.tid, outside[0] in inside, symbols))
    return tuple(found)


@functools.cache
def _name(path: str, offset: int) -> str:
    """Return the readable name of the function at a place of a file; empty if unknown."""
    mangled = symbol_table(path).name_at_offset(offset)
    return demangled(mangled.encode()) if mangled else ""
