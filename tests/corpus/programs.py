"""What the programs of several roles have in common: requests over HTTP and sockets."""

from __future__ import annotations

import http.client
import multiprocessing.connection
import socket
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

HOST = "127.0.0.1"
_RETRY_S = 0.02


class _Handler(BaseHTTPRequestHandler):
    answer: Callable[[str], str]

    def do_POST(self) -> None:
        """Answer a request with what the server's function returns."""
        body = type(self).answer(self.path).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def http_server(port: int, answer: Callable[[str], str], *, threads: bool = False) -> HTTPServer:
    """Return a server that answers POST requests.

    Args:
        answer: Returns the answer to a path.
        threads: Whether each request has a thread of its own.
    """
    handler = type("Handler", (_Handler,), {"answer": staticmethod(answer)})
    return (ThreadingHTTPServer if threads else HTTPServer)((HOST, port), handler)


def post(port: int, path: str = "/") -> str:
    """Send a request, without a timeout, once the server listens; return the answer."""
    while True:
        connection = http.client.HTTPConnection(HOST, port)
        try:
            connection.connect()
        except ConnectionRefusedError:
            time.sleep(_RETRY_S)
            continue
        connection.request("POST", path)
        found = connection.getresponse().read().decode()
        connection.close()
        return found


def connected(port: int) -> socket.socket:
    """Return a connection to a server, as soon as it listens."""
    while True:
        try:
            return socket.create_connection((HOST, port))
        except ConnectionRefusedError:
            time.sleep(_RETRY_S)


def client(port: int) -> multiprocessing.connection.Connection:
    """Return a connection to a listener of multiprocessing, as soon as it listens."""
    while True:
        try:
            return multiprocessing.connection.Client((HOST, port))
        except ConnectionRefusedError:
            time.sleep(_RETRY_S)
