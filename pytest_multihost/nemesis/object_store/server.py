"""The object store's process: moto's S3 behind a front that delays, throttles and fails."""

from __future__ import annotations

import ctypes
import fnmatch
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_multihost.nemesis.object_store.store import CONTROL, StoreCount, StoreRule

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, Signature=0"
"""What stands for a signature, which moto wants to see and does not check."""

_PIECE = 1 << 16
_CREDIT_S = 0.002  # sleeps end late; as much may be made up for, or the rate comes out low
_LOOK_S = 0.5
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}
"""Amazon's words for a status; clients decide by them whether to try again."""


@dataclass(slots=True)
class Force:
    """A rule in force, with what it has done. Its methods are called from many threads."""

    rule: StoreRule
    healed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _count: StoreCount = field(default_factory=StoreCount)
    _busy_until: float = 0.0

    def count(self) -> StoreCount:
        """Return what it has done so far."""
        return self._count

    def concerns(self, method: str, path: str) -> bool:
        """Count the request if it matches; return whether the rule strikes it."""
        rule = self.rule
        if not fnmatch.fnmatchcase(path, rule.key) or method not in (rule.methods or (method,)):
            return False
        with self._lock:
            was = self._count
            number = was.matched + 1
            strikes = number >= rule.nth and (rule.count is None or number < rule.nth + rule.count)
            first_ns = was.first_ns or time.monotonic_ns() if strikes else was.first_ns
            self._count = StoreCount(number, was.struck + strikes, was.bytes, first_ns)
        return strikes

    def delay(self) -> None:
        """Wait as long as a request takes in addition."""
        if self.rule.seconds:
            self.healed.wait(self.rule.seconds)

    def passes(self, size: int) -> None:
        """Wait until `size` bytes of a body have had their time."""
        with self._lock:
            was = self._count
            self._count = StoreCount(was.matched, was.struck, was.bytes + size, was.first_ns)
            if not self.rule.bytes_per_s:
                return
            start = max(self._busy_until, time.monotonic() - _CREDIT_S)
            due = self._busy_until = start + size / self.rule.bytes_per_s
        self.healed.wait(max(0.0, due - time.monotonic()))


@dataclass(slots=True)
class Body:
    """A request's body, read at the pace that the rules allow."""

    _stream: Any
    _forces: list[Force]

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, piece by piece."""
        parts = []
        while size:
            part = self._stream.read(_PIECE if size < 0 else min(size, _PIECE))
            if not part:
                break
            _pass(self._forces, part)
            parts.append(part)
            size -= len(part) if size > 0 else 0
        return b"".join(parts)

    def readline(self, size: int = -1) -> bytes:
        """Return the next line."""
        line: bytes = self._stream.readline(size)
        _pass(self._forces, line)
        return line

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")


@dataclass(slots=True)
class Front:
    """What stands before the store: a WSGI application around one."""

    behind: Application
    forces: list[Force] = field(default_factory=list)

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:  # noqa: ANN401 - as WSGI has it
        """Answer a request, or an order."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == CONTROL:
            return self._obey(method, environ, start)
        striking = [force for force in self.forces if force.concerns(method, path)]
        for force in striking:
            force.delay()
        for force in striking:
            if force.rule.status is not None and not force.healed.is_set():
                return _fail(force.rule.status, environ, start)
        environ.setdefault("HTTP_AUTHORIZATION", _SIGNED)
        if striking:
            environ["wsgi.input"] = Body(environ["wsgi.input"], striking)
        return _paced(self.behind(environ, start), striking)

    def _obey(self, method: str, environ: dict[str, Any], start: Any) -> Iterable[bytes]:  # noqa: ANN401 - as above
        answer: object = [asdict(force.count()) for force in self.forces]
        if method == "POST":
            size = int(environ["CONTENT_LENGTH"])
            force = Force(StoreRule(**json.loads(environ["wsgi.input"].read(size))))
            answer, self.forces = len(self.forces), [*self.forces, force]
        elif method == "DELETE":
            healed, self.forces = self.forces, []
            for force in healed:
                force.healed.set()
        return _answer("200 OK", "application/json", json.dumps(answer).encode(), start)


def _answer(status: str, kind: str, body: bytes, start: Any) -> Iterable[bytes]:  # noqa: ANN401 - as above
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _fail(status: int | str, environ: dict[str, Any], start: Any) -> Iterable[bytes]:  # noqa: ANN401 - as above
    if status == "reset":
        _reset(environ["werkzeug.socket"].fileno())
        raise ConnectionResetError
    # What was sent must be read, or it would be taken for the next request of the connection.
    Body(environ["wsgi.input"], []).read(int(environ.get("CONTENT_LENGTH") or 0))
    code = _CODES.get(int(status), "InternalError" if int(status) > 500 else "InvalidRequest")  # noqa: PLR2004 - as in HTTP
    body = f"<Error><Code>{code}</Code><Message>As it was told to.</Message></Error>"
    return _answer(f"{status} Failing", "application/xml", body.encode(), start)


def _reset(connection: int) -> None:
    """Break a TCP connection off: connect(2) to no address family (AF_UNSPEC) sends a reset."""
    ctypes.CDLL(None).connect(connection, bytes(16), 16)


def _pass(forces: Iterable[Force], part: bytes) -> None:
    for force in forces:
        force.passes(len(part))


def _paced(answer: Iterable[bytes], forces: list[Force]) -> Iterator[bytes]:
    for chunk in answer:
        for at in range(0, len(chunk), _PIECE) if forces else ():
            part = chunk[at : at + _PIECE]
            _pass(forces, part)
            yield part
        if not forces:
            yield chunk


def serve(listening: int, parent: int) -> None:
    """Serve on a socket that listens, until `parent` is gone.

    Streams and signals would not tell: ranks are forked from the parent, and inherit its ends.
    """
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    behind = DomainDispatcherApplication(create_backend_app)
    server = make_server(
        "127.0.0.1",
        0,
        Front(behind),
        threaded=True,
        request_handler=MotoRequestHandler,
        fd=listening,
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in itertools.takewhile(lambda _: os.getppid() == parent, itertools.count()):
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:3]))
