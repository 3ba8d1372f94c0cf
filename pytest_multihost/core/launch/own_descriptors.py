"""The connections of the harness in this process, which no forked child may inherit.

A server is often a fork of the controller, and ranks are forks of the server. A rank that inherits
a connection of the harness looks as if it talked to a process outside of the test, so nothing is
proven about it; and the other end gets no EOF while the rank lives. So whatever the harness opens
for longer than a call is named here, and each forked child first closes its copy. A child
that becomes another program inherits nothing in any case (PEP 446).

The lock of a run's folder is inherited on purpose: see `files.hold`.
"""

from __future__ import annotations

import os
import selectors
import socket
import weakref
from typing import TypeVar

Kept = TypeVar("Kept", bound=socket.socket | selectors.BaseSelector)

_OPEN: weakref.WeakSet[socket.socket | selectors.BaseSelector] = weakref.WeakSet()
_KEPT: list[int] = []


def close_in_children(opened: Kept) -> Kept:
    """Make forked children close their copy of a socket or selector; return it."""
    _OPEN.add(opened)
    return opened


def keep_until_exit(descriptor: int) -> None:
    """Keep a descriptor open until this process has ended, except in forked children.

    Peers take the connection's end for this process's end. The interpreter closes sockets well
    before that: exit handlers and the destructors of torch's libraries come later.
    """
    _KEPT.append(descriptor)


def _close_all() -> None:
    for opened in list(_OPEN):
        opened.close()
    while _KEPT:
        os.close(_KEPT.pop())


os.register_at_fork(after_in_child=_close_all)  # only once, because it cannot be unregistered
