"""Reserve ports for the ranks of a world."""

from __future__ import annotations

import socket


def reserve_port(address: str) -> socket.socket:
    """Return a bound, unconnected socket that reserves a port at `address`.

    Finding a free port and closing it again is a race. This socket stays open for the world's
    lifetime, so the kernel assigns its port to no other process. A rank can still bind the port
    with SO_REUSEADDR, as libuv (torch) and gRPC (jax) do, because this socket never listens.
    """
    holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind((address, 0))
    return holder
