"""The object store's process: moto's S3 behind a proxy that delays, throttles and fails."""

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

from pytest_multihost.nemesis.object_store import CONTROL, StoreCount, StoreRule

Environ = dict[str, Any]
"""WSGI's environment of a request."""

StartResponse = Any
"""WSGI's start_response."""

Stream = Any
"""WSGI's input."""


Application = Callable[[Environ, StartResponse], Iterable[bytes]]

_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, Signature=0"
"""Moto demands a signature of requests, and does not check it."""

_CHUNK = 1 << 16
_CREDIT_S = 0.002  # sleeps end late; so much may be caught up on, or the rate is too low
_POLL_S = 0.5
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}
"""Amazon's error code for a status; clients decide by it whether to try again."""


@dataclass(slots=True)
class ActiveRule:
    """A rule in force, with its counters. Its methods are called from many threads."""

    rule: StoreRule
    healed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    count: StoreCount = field(default_factory=StoreCount)
    _busy_until: float = 0.0

    def applies(self, method: str, path: str) -> bool:
        """Count the request if it matches; return whether the rule is applied to it."""
        rule = self.rule
        if not fnmatch.fnmatchcase(path, rule.key) or method not in (rule.methods or (method,)):
            return False
        with self._lock:
            was = self.count
            number = was.matched + 1
            strikes = number >= rule.nth and (rule.count is None or number < rule.nth + rule.count)
            first_ns = was.first_ns or time.monotonic_ns() if strikes else was.first_ns
            self.count = StoreCount(number, was.struck + strikes, was.bytes, first_ns)
        return strikes

    def delay(self) -> None:
        """Wait for the delay of one request."""
        if self.rule.seconds:
            self.healed.wait(self.rule.seconds)

    def throttle(self, size: int) -> None:
        """Wait until the data rate allows for `size` more bytes of a body."""
        with self._lock:
            was = self.count
            self.count = StoreCount(was.matched, was.struck, was.bytes + size, was.first_ns)
            if not self.rule.bytes_per_s:
                return
            start = max(self._busy_until, time.monotonic() - _CREDIT_S)
            due = self._busy_until = start + size / self.rule.bytes_per_s
        self.healed.wait(max(0.0, due - time.monotonic()))


@dataclass(slots=True)
class Body:
    """A request's body, read at the rate that the rules allow."""

    _stream: Stream
    _rules: list[ActiveRule]

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, chunk by chunk."""
        parts = []
        while size:
            part = self._stream.read(_CHUNK if size < 0 else min(size, _CHUNK))
            if not part:
                break
            _throttle(self._rules, part)
            parts.append(part)
            size -= len(part) if size > 0 else 0
        return b"".join(parts)

    def readline(self, size: int = -1) -> bytes:
        """Return the next line."""
        line: bytes = self._stream.readline(size)
        _throttle(self._rules, line)
        return line

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")


@dataclass(slots=True)
class FaultProxy:
    """A WSGI application around the store's that applies the rules."""

    store: Application
    rules: list[ActiveRule] = field(default_factory=list)

    def __call__(self, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        """Answer a request to the store, or one that changes the rules."""
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if path == CONTROL:
            return self._control(method, environ, start)
        applied = [active for active in self.rules if active.applies(method, path)]
        for active in applied:
            active.delay()
        for active in applied:
            if active.rule.status is not None and not active.healed.is_set():
                return _fail(active.rule.status, environ, start)
        environ.setdefault("HTTP_AUTHORIZATION", _SIGNED)
        if applied:
            environ["wsgi.input"] = Body(environ["wsgi.input"], applied)
        return _paced(self.store(environ, start), applied)

    def _control(self, method: str, environ: Environ, start: StartResponse) -> Iterable[bytes]:
        answer: object = [asdict(rule.count) for rule in self.rules]
        if method == "POST":
            size = int(environ["CONTENT_LENGTH"])
            rule = ActiveRule(StoreRule(**json.loads(environ["wsgi.input"].read(size))))
            answer, self.rules = len(self.rules), [*self.rules, rule]
        elif method == "DELETE":
            healed, self.rules = self.rules, []
            for rule in healed:
                rule.healed.set()
        return _answer("200 OK", "application/json", json.dumps(answer).encode(), start)


def _answer(status: str, kind: str, body: bytes, start: StartResponse) -> Iterable[bytes]:
    start(status, [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [body]


def _fail(status: int | str, environ: Environ, start: StartResponse) -> Iterable[bytes]:
    if status == "reset":
        # connect(2) with the address family AF_UNSPEC resets a TCP connection.
        ctypes.CDLL(None).connect(environ["werkzeug.socket"].fileno(), bytes(16), 16)
        raise ConnectionResetError
    # The rest of the request must be read, or it would be parsed as the connection's next one.
    Body(environ["wsgi.input"], []).read(int(environ.get("CONTENT_LENGTH") or 0))
    code = _CODES.get(int(status), "InternalError" if int(status) > 500 else "InvalidRequest")  # noqa: PLR2004 - as in HTTP
    body = f"<Error><Code>{code}</Code><Message>A rule of the test.</Message></Error>"
    return _answer(f"{status} Failing", "application/xml", body.encode(), start)


def _throttle(rules: Iterable[ActiveRule], part: bytes) -> None:
    for rule in rules:
        rule.throttle(len(part))


def _paced(answer: Iterable[bytes], rules: list[ActiveRule]) -> Iterator[bytes]:
    for chunk in answer:
        for at in range(0, len(chunk), _CHUNK) if rules else ():
            part = chunk[at : at + _CHUNK]
            _throttle(rules, part)
            yield part
        if not rules:
            yield chunk


def serve(listening: int, parent: int) -> None:
    """Serve on a listening socket until the process `parent` has ended.

    Its end is polled for. The end of a stream would not show it: ranks are forked from the parent
    and inherit its descriptors.
    """
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    store = DomainDispatcherApplication(create_backend_app)
    server = make_server(
        "127.0.0.1",
        0,
        FaultProxy(store),
        threaded=True,
        request_handler=MotoRequestHandler,
        fd=listening,
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for _ in itertools.takewhile(lambda _: os.getppid() == parent, itertools.count()):
        time.sleep(_POLL_S)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:3]))
