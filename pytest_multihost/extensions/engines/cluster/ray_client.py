"""The process of Ray's client: it asks for nodes, and carries bytes between pytest and the peers.

For each node one thread sends and one receives. Ray may perform two calls of an actor's method in
any order, so each thread waits for the answer to a call before the next one.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pytest_multihost.core.launch.libc import die_with_parent
from pytest_multihost.extensions.engines.cluster.ray_peer import PeerActor

_CHUNK = 1 << 18
_WAIT_S = 1.0
_ADDRESS = re.compile(r"([^:/]+):(\d+)")
_KNOCK_S = 10.0

_LINES, _CHARS = 8, 1200
"""How much of one of Ray's errors is shown."""

_START_S = 120.0
"""How long an actor may take to start: its environment may have to be installed."""


@dataclass(slots=True)
class _Client:
    """A connection to a cluster, and to pytest.

    Attributes:
        job: The order to start, see `ray_engine.begin_ray`.
    """

    job: Mapping[str, Any]
    control: socket.socket
    _sending: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message to pytest; it may be gone."""
        with self._sending, contextlib.suppress(OSError):
            socket.send_fds(self.control, [json.dumps(message).encode()], descriptors)

    def run(self, ray: Any) -> None:  # noqa: ANN401 - the module
        """Provide the nodes until pytest ends."""
        group = self._group(ray)
        if group is None:
            return
        strategies = ray.util.scheduling_strategies
        resources = dict(self.job["resources"])
        actors = []
        for index in range(group.bundle_count):
            where = strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
            remote = ray.remote(PeerActor).options(
                num_cpus=resources.get("CPU", 0),
                num_gpus=resources.get("GPU", 0),
                resources={k: v for k, v in resources.items() if k not in ("CPU", "GPU", "memory")},
                scheduling_strategy=where,
                max_concurrency=4,
            )
            actors.append(remote.remote())
        in_copy = "working_dir" in self.job["runtime_env"]
        starts = [
            each.start.remote(self.job["python"], self.job["code"], in_copy) for each in actors
        ]
        for index, name in enumerate(ray.get(starts, timeout=_START_S)):
            ours, theirs = socket.socketpair()
            with theirs:
                self.tell({"node": name}, [theirs.fileno()])
            _carry(ray, actors[index], ours, self._ended_of(index))
        self.tell({"complete": True})
        while self.control.recv(1):
            pass
        for each in actors:
            ray.kill(each)
        ray.util.remove_placement_group(group)

    def _ended_of(self, index: int) -> Callable[[str, str], None]:
        def ended(how: str, words: str) -> None:
            self.tell({"ended": index, "how": how, "words": words})

        return ended

    def _group(self, ray: Any) -> Any:  # noqa: ANN401 - a placement group
        """Return the placement group once it has its nodes; None if pytest ends before."""
        bundle = dict(self.job["resources"])
        alive = [each for each in ray.nodes() if each["Alive"]]
        count = self.job["count"] or len(alive)
        group = ray.util.placement_group([bundle] * count, strategy="STRICT_SPREAD")
        while not group.wait(_WAIT_S):
            free = {
                name: value
                for name, value in ray.available_resources().items()
                if name in bundle or name == "CPU"
            }
            why = (
                f"{count} nodes with {bundle} each are wanted; {len(alive)} are alive; free: {free}"
            )
            self.tell({"waiting": why})
            if _has_ended(self.control):
                ray.util.remove_placement_group(group)
                return None
        return group


def _has_ended(control: socket.socket) -> bool:
    """Return whether pytest has closed its end."""
    try:
        return not control.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return False


def _carry(
    ray: Any,  # noqa: ANN401 - the module
    actor: Any,  # noqa: ANN401 - a handle
    connection: socket.socket,
    ended: Callable[[str, str], None],
) -> None:
    """Start two threads that carry a peer's bytes.

    Args:
        ended: Called when the peer has ended, with how, and with its last lines.
    """

    def to_peer() -> None:
        with contextlib.suppress(Exception):  # the actor is gone, which the other thread tells
            while data := connection.recv(_CHUNK):
                ray.get(actor.write.remote(data))
            ray.get(actor.write.remote(b""))

    def from_peer() -> None:
        how, words = "", ""
        try:
            while data := ray.get(actor.read.remote()):
                connection.sendall(data)
            how, words = ray.get(actor.ended.remote())
        except OSError:
            return  # pytest has ended
        except Exception as error:  # noqa: BLE001 - any of Ray's errors
            how = f"its actor is lost: {brief(error)}"
        ended(how, words)
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    for each in (to_peer, from_peer):
        threading.Thread(target=each, daemon=True).start()


def brief(error: Exception) -> str:
    """Return the class of one of Ray's errors and its first lines: whole logs may follow."""
    lines = [each for each in str(error).splitlines() if each.strip()]
    return "\n".join([f"{type(error).__name__}: {''.join(lines[:1])}", *lines[1:_LINES]])[:_CHARS]


def _connect(job: Mapping[str, Any]) -> Any:  # noqa: ANN401 - the module
    """Connect to the cluster.

    Ray itself would try for minutes to reach an address where nothing listens.
    """
    if (found := _ADDRESS.fullmatch(job["address"])) is not None:
        socket.create_connection((found[1], int(found[2])), timeout=_KNOCK_S).close()
    import ray
    import ray.util.scheduling_strategies

    about = {"address": job["address"], "log_to_driver": False}
    ray.init(runtime_env=job["runtime_env"] or None, **about)
    return ray


def main() -> NoReturn:
    """Run the job in the memory file that the command line names; never returns."""
    with open(int(sys.argv[1]), encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        job = json.load(file)
    die_with_parent(job["parent"])  # Ray then ends the actors, and gives the nodes back
    client = _Client(job, socket.socket(fileno=job["control"]))
    try:
        ray = _connect(job)
    except ImportError as error:
        client.tell({"failed": f"{error}: pip install 'pytest-multihost-hangs[ray]'"})
        os._exit(1)
    except Exception as error:  # noqa: BLE001 - any of Ray's errors
        client.tell({"failed": f"{job['address']}: {brief(error)}"})
        os._exit(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray has set a handler
    try:
        client.run(ray)
    except Exception as error:  # noqa: BLE001 - any of Ray's errors
        client.tell({"failed": brief(error)})
    with contextlib.suppress(Exception):
        ray.shutdown()
    os._exit(0)
