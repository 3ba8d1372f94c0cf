"""An object store that tests can make slow, narrow or failing: S3 as moto's server emulates it.

The store runs in its own process, a child of pytest's process and never of a rank, because a real
store does not die with a rank. Any process that knows the endpoint can use the store, and change
how it answers::

    with serving() as endpoint:
        store = ObjectStore(endpoint, bucket="ckpt")
        store.create_bucket()
        store.slow(seconds=0.5, methods=("GET",))
        store.throttle(bytes_per_s=1e6)
        store.fail(503, nth=3, count=2)
        store.heal()
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

CONTROL = "/_multihost"
"""The path of requests that change the rules; no bucket can have this name."""

KEY_VARIABLE = "PYTEST_MULTIHOST_OBJECT_STORE_KEY"
"""Environment variable of the store's process with the key that requests must have."""

_ANSWER_S = 60.0
_SERVER = "pytest_multihost.extensions.object_store.server"
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRule:
    """The effect on matching requests. Rules add up; the first failure wins.

    Attributes:
        key: A glob for the path, which is ``/bucket/key``; ``*`` also matches slashes.
        methods: HTTP methods to match, such as ``("GET",)``; empty for all.
        bytes_per_s: Data rate of bodies, in and out, that all clients share; None for no limit.
        status: An HTTP status of 400 to 599 instead of the answer, or "reset", which resets the
            connection. None for the answer itself.
        nth: The first matching request to which the rule applies; 1 is the first.
        count: The number of requests from there on; None for all.
    """

    key: str = "*"
    methods: Sequence[str] = ()
    seconds: float = 0.0
    bytes_per_s: float | None = None
    status: int | Literal["reset"] | None = None
    nth: int = 1
    count: int | None = None

    def problems(self) -> list[str]:
        """Return the problems of the rule; empty if it is valid."""
        is_error = self.status in {None, "reset"} or self.status in range(400, 600)
        bounds = (
            (self.seconds >= 0, "seconds must be 0 or more"),
            (self.bytes_per_s is None or self.bytes_per_s >= 1, "bytes_per_s must be 1 or more"),
            (is_error, "status must be 400 to 599, or 'reset'"),
            (self.nth >= 1, "nth must be 1 or more"),
            (self.count is None or self.count >= 1, "count must be 1 or more"),
            (not isinstance(self.methods, str), "methods must be a list"),
        )
        return [problem for is_fine, problem in bounds if not is_fine]


@dataclass(frozen=True, slots=True)
class StoreCount:
    """The counters of a rule.

    Attributes:
        struck: Number of requests to which the rule was applied.
        bytes: Number of bytes in the bodies of these.
        first_ns: When the rule was first applied, on CLOCK_MONOTONIC; 0 if it was not yet.
    """

    matched: int = 0
    struck: int = 0
    bytes: int = 0
    first_ns: int = 0


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A client of the store. Any process can call its methods.

    Attributes:
        endpoint: The URL for S3 clients, such as ``http://127.0.0.1:1234/KEY``. Its path is the key
            of the run: a holder of the key can read and write all objects.
    """

    endpoint: str
    bucket: str = "test"

    @property
    def url(self) -> str:
        """The bucket's URL for fsspec and others: ``s3://bucket``."""
        return f"s3://{self.bucket}"

    @property
    def s3fs_options(self) -> dict[str, Any]:
        """The arguments of `fsspec.filesystem("s3", ...)` for this store."""
        return {
            "anon": True,
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def tensorstore_kvstore(self, path: str) -> dict[str, Any]:
        """Return the specification of a `tensorstore` key-value store at `path` of the bucket."""
        return {
            "driver": "s3",
            "bucket": self.bucket,
            "path": path,
            "endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "aws_credentials": {"type": "anonymous"},
        }

    def create_bucket(self) -> None:
        """Create the bucket unless it exists."""
        self._ask("PUT", f"/{self.bucket}")

    def slow(self, *, seconds: float, **where: Any) -> int:  # noqa: ANN401 - as of StoreRule
        """Delay each request; see `StoreRule` for `where`. Returns the rule's number."""
        return self.add(StoreRule(seconds=seconds, **where))

    def throttle(self, *, bytes_per_s: float, **where: Any) -> int:  # noqa: ANN401 - as above
        """Limit the data rate of all bodies together. Returns the rule's number."""
        return self.add(StoreRule(bytes_per_s=bytes_per_s, **where))

    def fail(self, status: int | Literal["reset"], **where: Any) -> int:  # noqa: ANN401 - as above
        """Answer with an error, or reset the connection. Returns the rule's number."""
        return self.add(StoreRule(status=status, **where))

    def add(self, rule: StoreRule) -> int:
        """Add a rule to the others, and return its number, from 0.

        Raises:
            ValueError: The rule is invalid.
        """
        if problems := rule.problems():
            raise ValueError(f"{rule!r}: {'; '.join(problems)}")
        return int(self._ask("POST", CONTROL, asdict(rule)))

    def heal(self) -> None:
        """Remove all rules; requests that they delay continue at once."""
        self._ask("DELETE", CONTROL)

    def fired(self) -> tuple[StoreCount, ...]:
        """Return the counters of each rule, by number."""
        return tuple(StoreCount(**each) for each in self._ask("GET", CONTROL))

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        request = urllib.request.Request(  # noqa: S310 - our own endpoint
            f"{self.endpoint}{path}",
            method=method,
            headers={"X-Multihost-Rules": "1"},
            data=None if body is None else json.dumps(body).encode(),
        )
        with _OPENER.open(request, timeout=_ANSWER_S) as answer:
            found = answer.read()
        return json.loads(found) if path == CONTROL else None


def why_no_store() -> str:
    """Return why no store can be started here; empty if one can be."""
    if importlib.util.find_spec("moto") and importlib.util.find_spec("flask"):
        return ""
    return "an object store needs moto's server: pip install 'pytest-multihost-hangs[s3]'"


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Run a store, and yield its endpoint at once; connections wait until it is up (about 1 s).

    The store ends with the block, or with the process that has started it, however that ends.

    Raises:
        RuntimeError: moto's server is not installed.
    """
    if problem := why_no_store():
        raise RuntimeError(problem)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        port, key = listening.getsockname()[1], secrets.token_urlsafe(16)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", _SERVER, str(listening.fileno()), str(os.getpid())],
            pass_fds=[listening.fileno()],
            # The store is not part of the test, so it gets no I/O shim and no coverage.
            env={
                KEY_VARIABLE: key,  # not an argument, which every user sees
                **{
                    name: value
                    for name, value in os.environ.items()
                    if name != "LD_PRELOAD" and not name.startswith("COV_")
                },
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C ends the run, which then ends the store
        )
    try:
        yield f"http://127.0.0.1:{port}/{key}"
    finally:
        process.kill()  # its objects are only in its memory, so there is nothing to save
        process.wait()
