"""The loop of a server: the process that holds the collected tests and forks ranks.

Why a fork of it is sound: fork(2) copies one thread and every lock in the state it is in. This
process has one thread, takes part in no collective and initialises no runtime, so there is no lock
that a thread which is not copied could hold; see `fork_soundness`.

The server manages processes on the controller's request. When the controller ends, the server
ends every rank and itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import signal
import socket
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

import psutil

from pytest_multihost.launch.interface import RunRank
from pytest_multihost.launch.libc import adopt_orphans
from pytest_multihost.launch.netns import (
    HOSTS_FOLDER,
    HostNetwork,
    NetworkFaults,
    make_network,
    open_sock_diag,
    start_network_faults,
)
from pytest_multihost.launch.server.rank_processes import RankProcesses, fork_rank, reserve_port
from pytest_multihost.launch.wire import MAX_DESCRIPTORS, Packet, receive_packet, send_packet
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.event import Event, NetworkChanged
from pytest_multihost.model.messages import (
    Calm,
    Disturb,
    EndWorld,
    Failed,
    Fork,
    FromServer,
    HostsProbed,
    MoreDescriptors,
    PauseRank,
    ProbeHosts,
    Quit,
    RankEvent,
    RequestDumps,
    Serving,
    ToServer,
    WorldEnded,
    WorldForked,
)
from pytest_multihost.model.spec import DOCKER, NETNS, RankSpec, WorldSpec, all_hosts, kind_of

_MAX_LEFTOVERS = 20
_NO_NETWORK = "the world has no network of its own: its hosts are one"


@dataclass(slots=True)
class _Server:
    """State of the server: the running world's processes, its ports and its hosts.

    Attributes:
        control: The connection to the controller.
        run_rank: A rank's main function.
        controller: The controller's pidfd.
        selector: Holds all descriptors that the loop waits for.
        ranks: The running world's ranks.
        ports: Sockets that hold the world's ports.
        network: The world's hosts, where they are namespaces.
        network_faults: The faults of the network between them, if there are any.
    """

    control: socket.socket
    run_rank: RunRank
    controller: int
    selector: selectors.BaseSelector
    ranks: RankProcesses
    ports: list[socket.socket] = field(default_factory=list)
    network: HostNetwork | None = None
    network_faults: NetworkFaults | None = None

    def send(self, message: FromServer, descriptors: Sequence[int] = ()) -> None:
        """Send a message to the controller."""
        send_packet(self.control, message, descriptors)


def serve(control: socket.socket, run_rank: RunRank, *, controller: int) -> NoReturn:
    """Serve requests until the controller goes, then end every rank and exit.

    Args:
        control: The server's end of the control connection.
        run_rank: A forked rank's main function.
        controller: Process id of the controller, the parent.
    """
    try:
        server = _prepare(control, run_rank, controller)
        server.send(Serving())
        while _serve_once(server):
            pass
        _end(server, grace_s=0.0)
    except BaseException:  # noqa: BLE001 - a forked server must never return into pytest
        with contextlib.suppress(OSError):
            send_packet(control, Failed(traceback.format_exc()[-8000:]))
    finally:
        os._exit(0)


def _prepare(control: socket.socket, run_rank: RunRank, controller: int) -> _Server:
    """Leave the terminal's session, adopt orphans, and watch the controller."""
    if os.getsid(0) != os.getpid():  # the first process of a container leads its session
        os.setsid()
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A collection in a rank would touch, and so copy, every page shared with the server.
    gc.collect()
    gc.freeze()
    children = frozenset(child.pid for child in psutil.Process().children(recursive=True))
    selector, pidfd = selectors.DefaultSelector(), os.pidfd_open(controller)
    selector.register(control, selectors.EVENT_READ)
    selector.register(pidfd, selectors.EVENT_READ)
    return _Server(control, run_rank, pidfd, selector, RankProcesses(selector, children))


def _serve_once(server: _Server) -> bool:
    """Wait for events and handle them; return whether to continue."""
    server.ranks.act(time.monotonic())
    if server.network_faults is not None:
        server.network_faults.heal_due(time.monotonic())
    for key, _ in server.selector.select(_wait_s(server)):
        if key.fd == server.controller:
            return False
        if server.ranks.has(key.fd):
            exited = server.ranks.reap(key.fd)
            with contextlib.suppress(OSError):
                server.send(RankEvent(exited))
        elif key.fd == server.control.fileno():
            packet: Packet[ToServer] | None = receive_packet(server.control, ToServer)
            if packet is None or isinstance(packet.message, Quit):
                return False
            _answer(server, packet)
    return True


def _wait_s(server: _Server) -> float | None:
    """Return the seconds until the next timed action, None if there is none."""
    now_s = time.monotonic()
    planned = (server.ranks, server.network_faults)
    waits = [each.wait_s(now_s) for each in planned if each is not None]
    return min((each for each in waits if each is not None), default=None)


def _answer(server: _Server, packet: Packet[ToServer]) -> None:
    match packet.message:
        case Fork() as request:
            _fork(server, request, packet.descriptors)
        case RequestDumps() as request:
            server.ranks.request_dumps(request)
        case PauseRank(rank, pause):
            server.ranks.pause(rank, pause)
        case Disturb(rank, index):
            _disturb(server, index, rank)
        case Calm():
            error = server.network_faults.heal_all() if server.network_faults is not None else ""
            _send_network_event(server, 0, None, error)
        case ProbeHosts(scratch):
            server.send(_probe_hosts(scratch))
        case EndWorld(grace_s):
            exits, leftovers = _end(server, grace_s=grace_s)
            for each in exits:
                server.send(RankEvent(each))
            server.send(WorldEnded(tuple(leftovers[:_MAX_LEFTOVERS])))


def _fork(server: _Server, request: Fork, descriptors: Sequence[int]) -> None:
    """Fork the ranks of a world; on failure leave none of them."""
    streams = _receive_streams(server, descriptors, len(request.ranks))
    try:
        ports = request.ports or _hold_ports(server, request.spec, str(request.scratch))
        pids = _fork_ranks(server, request, streams, ports)
    except (LaunchError, OSError) as error:
        _end(server, grace_s=0.0)
        server.send(Failed(f"fork: {error}"))
    else:
        _send_forked(server, request.spec, pids, ports)
    finally:
        for stream in streams:
            stream.close()


def _receive_streams(
    server: _Server, descriptors: Sequence[int], count: int
) -> list[socket.socket]:
    """Return the ranks' ends of their connections; one message cannot carry all."""
    found = list(descriptors)
    while len(found) < count:
        more: Packet[MoreDescriptors] | None = receive_packet(server.control, MoreDescriptors)
        if more is None:
            break
        found += more.descriptors
    return [socket.socket(fileno=descriptor) for descriptor in found]


def _hold_ports(server: _Server, spec: WorldSpec, scratch: str) -> tuple[int, int]:
    """Make the world's hosts, if it has its own, and return the ports reserved for it there."""
    if kind_of(spec.hosts) != NETNS:
        address = spec.host_of(0).address if spec.sites else "127.0.0.1"
        server.ports = [reserve_port(address), reserve_port(address)]
        return _numbers(server.ports)
    server.network = make_network(spec.all_hosts, Path(scratch, HOSTS_FOLDER))
    server.network_faults = start_network_faults(server.network, spec)
    if server.network_faults is not None:
        server.network_faults.begin_before_rendezvous(time.monotonic())
    return _numbers(server.network.ports)


def _numbers(ports: Sequence[socket.socket]) -> tuple[int, int]:
    first, second = (int(port.getsockname()[1]) for port in ports)
    return first, second


def _fork_ranks(
    server: _Server, request: Fork, streams: Sequence[socket.socket], ports: tuple[int, int]
) -> list[int]:
    """Fork the ranks, one right after the other.

    After a fork the server copies each page that it writes to, as a rank does. So all possible work
    is done before the first fork or after the last, not between them.
    """
    forks = [
        partial(
            fork_rank,
            RankSpec(
                world=request.spec,
                rank=rank,
                directory=str(request.directory),
                scratch=str(request.scratch),
                ports=ports,
            ),
            stream,
            close=[each.fileno() for each in streams if each is not stream],
            run_rank=server.run_rank,
            enter=partial(_enter, server, rank),
        )
        for rank, stream in zip(request.ranks, streams, strict=True)
    ]
    pids: list[int] = []
    try:
        for fork in forks:
            pids.append(fork())  # noqa: PERF401 - those before one that fails must be known
    finally:
        for rank, pid in zip(request.ranks, pids, strict=False):
            server.ranks.add(rank, pid)
    return pids


def _enter(server: _Server, rank: int) -> None:
    """Become a rank: move onto its host, if it has one, and close the server's descriptors."""
    if server.network is not None:
        server.network.enter(rank)
    for descriptor in _descriptors(server):
        os.close(descriptor)


def _descriptors(server: _Server) -> list[int]:
    """Return the server's descriptors that a rank must not keep."""
    selector = getattr(server.selector, "fileno", lambda: -1)()
    own = [server.control.fileno(), server.controller, selector]
    own += server.network.descriptors if server.network is not None else []
    own += [server.network_faults.connection.fileno()] if server.network_faults is not None else []
    return [*own, *server.ranks.pidfds, *(port.fileno() for port in server.ports)]


def _send_forked(
    server: _Server, spec: WorldSpec, pids: Sequence[int], ports: tuple[int, int]
) -> None:
    """Report the ranks to the controller, with the sockets that read their hosts' tables."""
    network = server.network
    spaces, tables = (network.names, network.tables) if network is not None else ([], ())
    own = open_sock_diag() if kind_of(spec.hosts) == DOCKER else None
    if own is not None:
        spaces, tables = [os.readlink("/proc/self/ns/net")], (own.fileno(),)
    forked = WorldForked(
        pids=tuple(pids),
        ports=ports,
        at_s=time.monotonic(),
        netfault_daemon=server.network_faults.pid if server.network_faults is not None else None,
        namespaces=tuple(spaces),
    )
    server.send(forked, tables[:MAX_DESCRIPTORS])
    for first in range(MAX_DESCRIPTORS, len(tables), MAX_DESCRIPTORS):
        server.send(MoreDescriptors(), tables[first : first + MAX_DESCRIPTORS])
    if network is not None:
        network.release_tables()
    elif own is not None:
        own.close()


def _probe_hosts(scratch: str) -> HostsProbed:
    """Make a network of one host and close it, to find out whether that is possible."""
    try:
        make_network(all_hosts(NETNS, 1), Path(scratch)).close()
    except LaunchError as error:
        return HostsProbed(error.happened, error.seen, error.remedy)
    except OSError as error:
        return HostsProbed(str(error))
    return HostsProbed()


def _disturb(server: _Server, index: int, rank: int) -> None:
    """Start a fault of the network, and report the outcome."""
    error = _NO_NETWORK
    if server.network_faults is not None:
        error = server.network_faults.begin(index, rank, time.monotonic())
    _send_network_event(server, rank, index, error)


def _send_network_event(server: _Server, rank: int, index: int | None, error: str) -> None:
    """Report that a fault of the network has begun, or that all have ended."""
    server.send(RankEvent(Event(time.monotonic(), rank, NetworkChanged(index, error))))


def _end(server: _Server, *, grace_s: float) -> tuple[list[Event], list[str]]:
    """End the world's processes and release its ports."""
    if server.network_faults is not None:
        server.network_faults.close()
        server.network_faults = None
    found = server.ranks.end(grace_s=grace_s)
    for port in server.ports:
        port.close()
    server.ports = []
    if server.network is not None:
        server.network.close()
        server.network = None
    return found
