"""Records the waits of message sockets and of servers in the ranks of a world.

`zmq`: waits for messages of pyzmq. `socket_servers`: those of Python's `socketserver`, which only
look for requests. `ticks`: those of uvicorn's event loop, which only look whether it is to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.hookspecs import RecorderPart

_FUNCTIONS = {
    "zmq": "zmq:record_zmq",
    "socketserver": "socket_servers:mark_servers",
    "uvicorn": "ticks:mark_ticks",
}
"""The functions that wrap the libraries, by the libraries' modules."""


@hookimpl
def pytest_multihost_recorders() -> Sequence[RecorderPart]:
    """Record the requests between ranks of roles over these libraries."""
    from pytest_multihost.hookspecs import RecorderPart

    return [
        RecorderPart(module=module, wrap=f"{__name__}.{function}")
        for module, function in _FUNCTIONS.items()
    ]
