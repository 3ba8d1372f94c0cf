"""The object store's process: moto's S3 behind a proxy that delays, throttles and fails."""

from __future__ import annotations

import ctypes
import fnmatch
import hmac
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from wsgiref.types import InputStream, StartResponse, WSGIApplication, WSGIEnvironment

from moto.moto_server.werkzeug_app import (
    DomainDispatcherApplication,
    MotoRequestHandler,
    create_backend_app,
)
from werkzeug import Request, Response
from werkzeug.serving import make_server

from pytest_multihost.extensions.object_store.store import (
    CONTROL,
    KEY_VARIABLE,
    StoreCount,
    StoreRule,
)

_SIGNED = "AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/s3/aws4_request, Signature=0"
"""A signature for requests, because moto requires one but does not check it."""

_OF_BROWSERS = frozenset({"HTTP_ORIGIN", "HTTP_SEC_FETCH_SITE"})
"""Headers that a browser adds to the request of a page."""

_RULES_HEADER = "HTTP_X_MULTIHOST_RULES"
"""The header that a request for the rules has, and no request for an object."""

_WHOLE_PATHS = frozenset({"RAW_URI", "REQUEST_URI"})
"""Where werkzeug keeps the path as it was sent."""

_CHUNK = 1 << 16
_CREDIT_S = 0.002  # sleeps end late; without this credit the rate would be too low
_POLL_S = 0.5
_CODES = {403: "AccessDenied", 404: "NoSuchKey", 500: "InternalError", 503: "SlowDown"}
"""Amazon's error code for a status; clients use it to decide whether to retry."""


@dataclass(slots=True)
class ActiveRule:
    """An active rule with its counters. Many threads may call its methods."""

    rule: StoreRule
    healed: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    count: StoreCount = field(default_factory=StoreCount)
    _busy_until: float = 0.0

    def applies(self, method: str, path: str) -> bool:
        """Count the request if it matches; return whether the rule applies to it."""
        rule = self.rule
        if not fnmatch.fnmatchcase(path, rule.key) or method not in (rule.methods or (method,)):
            return False
        with self._lock:
            number = self.count.matched + 1
            self.count = replace(self.count, matched=number)
            if number < rule.nth or (rule.count and number >= rule.nth + rule.count):
                return False
            first_ns = self.count.first_ns or time.monotonic_ns()
            self.count = replace(self.count, struck=self.count.struck + 1, first_ns=first_ns)
        return True

    def throttle(self, size: int) -> None:
        """Wait until the data rate allows for `size` more bytes of a body."""
        with self._lock:
            self.count = replace(self.count, bytes=self.count.bytes + size)
            if not self.rule.bytes_per_s:
                return
            start = max(self._busy_until, time.monotonic() - _CREDIT_S)
            due = self._busy_until = start + size / self.rule.bytes_per_s
        self.healed.wait(max(0.0, due - time.monotonic()))


@dataclass(slots=True)
class Body:
    """A request's body, read at the rate that the rules allow."""

    _stream: InputStream
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
    """A WSGI application that applies the rules and forwards to the store's application."""

    store: WSGIApplication
    key: str
    rules: list[ActiveRule] = field(default_factory=list)

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        """Answer a request to the store, or a request that reads or changes the rules.

        Requests without the key of the run are refused: every user of the machine reaches the port.
        So are those of a browser's page, which any page on the web may make it send.
        """
        method = environ["REQUEST_METHOD"]
        first, _, rest = environ["PATH_INFO"].removeprefix("/").partition("/")
        is_known = hmac.compare_digest(first.encode(), self.key.encode())
        if not is_known or _OF_BROWSERS & environ.keys():
            refusal: WSGIApplication = Response("It lacks the key of the run.", 403)
            return refusal(environ, start)
        path = environ["PATH_INFO"] = f"/{rest}"
        for name in _WHOLE_PATHS & environ.keys():
            environ[name] = environ[name].replace(f"/{self.key}", "", 1) or "/"
        if path == CONTROL and _RULES_HEADER in environ:  # a name with `..` may lead to the path
            return self._control(method, environ)(environ, start)
        applied = [active for active in self.rules if active.applies(method, path)]
        for active in applied:
            active.healed.wait(active.rule.seconds)
        for active in applied:
            if active.rule.status is not None and not active.healed.is_set():
                return _failure(active.rule.status, environ)(environ, start)
        environ["HTTP_AUTHORIZATION"] = _SIGNED  # of S3: moto finds the service by it
        if applied:
            environ["wsgi.input"] = Body(environ["wsgi.input"], applied)
        return _paced(self.store(environ, start), applied)

    def _control(self, method: str, environ: WSGIEnvironment) -> WSGIApplication:
        answer: object = [asdict(rule.count) for rule in self.rules]
        if method == "POST":
            rule = ActiveRule(StoreRule(**Request(environ).get_json(force=True)))
            answer, self.rules = len(self.rules), [*self.rules, rule]
        elif method == "DELETE":
            healed, self.rules = self.rules, []
            for rule in healed:
                rule.healed.set()
        response: WSGIApplication = Response(json.dumps(answer), content_type="application/json")
        return response


def _failure(status: int | str, environ: WSGIEnvironment) -> WSGIApplication:
    if status == "reset":
        # connect(2) with the address family AF_UNSPEC resets a TCP connection.
        ctypes.CDLL(None).connect(environ["werkzeug.socket"].fileno(), bytes(16), 16)
        raise ConnectionResetError
    # The rest of the request must be read, else it would be parsed as the next request.
    Body(environ["wsgi.input"], []).read(int(environ.get("CONTENT_LENGTH") or 0))
    code = _CODES.get(int(status), "InternalError" if int(status) > 500 else "InvalidRequest")  # noqa: PLR2004 - as in HTTP
    body = f"<Error><Code>{code}</Code><Message>A rule of the test.</Message></Error>"
    response: WSGIApplication = Response(body, f"{status} Failing", content_type="application/xml")
    return response


def _throttle(rules: Iterable[ActiveRule], part: bytes) -> None:
    for rule in rules:
        rule.throttle(len(part))


def _paced(answer: Iterable[bytes], rules: list[ActiveRule]) -> Iterator[bytes]:
    for chunk in answer:
        for at in range(0, len(chunk), _CHUNK):
            part = chunk[at : at + _CHUNK]
            _throttle(rules, part)
            yield part


def _only_s3() -> WSGIApplication:
    """Return moto's application without its other services, some of which start containers."""
    found = DomainDispatcherApplication(create_backend_app)
    found.get_backend_for_host = lambda _host: "s3"  # whatever a request asks for
    application: WSGIApplication = found
    return application


def serve(listening: int, parent: int) -> None:
    """Serve on a listening socket until the process `parent` has ended.

    The parent is polled. The end of a stream would not show its end, because ranks are forked from
    the parent and inherit its descriptors.
    """
    server = make_server(
        "127.0.0.1",
        0,
        FaultProxy(_only_s3(), os.environ.pop(KEY_VARIABLE)),
        threaded=True,
        request_handler=MotoRequestHandler,
        fd=listening,
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while os.getppid() == parent:
        time.sleep(_POLL_S)


if __name__ == "__main__":
    serve(*map(int, sys.argv[1:3]))
