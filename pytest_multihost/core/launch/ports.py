"""Reserve ports for the ranks of a world."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 10_240, 32_000
"""Below Linux's ephemeral range, so that no connection of another job gets one of these ports."""


def reserve_port(address: str) -> socket.socket:
    """Return a bound, unconnected socket that reserves a port at `address`.

    Finding a free port and closing it again is a race. This socket stays open for the world's
    lifetime, so the kernel assigns its port to no other process that asks for any port. A rank can
    still bind the port with SO_REUSEADDR, as libuv (torch) and gRPC (jax) do, because this socket
    never listens. So can any other user; so ranks call `core.trust.require_own_listener`.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return holder


def free_ports(count: int) -> tuple[int, ...]:
    """Return consecutive ports of this machine at which a program may listen.

    They are not held: a server that listens without SO_REUSEADDR could not bind a held port.

    Raises:
        OSError: There are none.
    """
    if not count:
        return ()
    drawn = random.SystemRandom()
    for _ in range(_LAST - _FIRST):
        first = drawn.randrange(_FIRST, _LAST - count)
        if all(map(_is_free, range(first, first + count))):
            return tuple(range(first, first + count))
    raise OSError(0, f"no {count} consecutive ports are free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
