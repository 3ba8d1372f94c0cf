"""The process that holds the collected tests and forks ranks.

It has one thread, takes part in no collective and initialises no runtime, so a fork of it is
sound. Everything about processes is decided here: it is the parent of the ranks, so their process
ids mean them until it has reaped them.
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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import psutil

from pytest_multihost.launch.docker.entry import own_space, own_table
from pytest_multihost.launch.interface import (
    CALM,
    MAX_DESCRIPTORS,
    Packet,
    RunRank,
    fault_token,
    receive_packet,
    send_packet,
)
from pytest_multihost.launch.netns.fault_schedule import Traffic, direct
from pytest_multihost.launch.netns.network import FOLDER, HostNetwork, make_network
from pytest_multihost.launch.server.fork_rank import fork_rank, reserve_port
from pytest_multihost.launch.server.pause_schedule import PauseSchedule
from pytest_multihost.launch.server.reaper import (
    adopt_orphans,
    end_groups,
    kill_orphans,
    signal_group,
    wait_until_dead,
)
from pytest_multihost.model.errors import LaunchError
from pytest_multihost.model.hosts import DOCKER, NETNS, all_hosts, kind_of
from pytest_multihost.model.json_values import from_json
from pytest_multihost.model.spec import RankSpec, WorldSpec

KILL_S = 5.0
"""How long a killed rank may take to die before it is reported as one that cannot be ended."""

_MAX_LEFTOVERS = 20
_NO_NETWORK = "the world has no network of its own: its hosts are one"


@dataclass(slots=True)
class _Server:
    """State of the server: the running world's processes by pidfd, its ports and its hosts."""

    control: socket.socket
    run_rank: RunRank
    controller: int
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    alive: dict[int, tuple[int, int]] = field(default_factory=dict)
    ports: list[socket.socket] = field(default_factory=list)
    network: HostNetwork | None = None
    traffic: Traffic | None = None
    own_children: frozenset[int] = frozenset()
    pauses: PauseSchedule = field(default_factory=PauseSchedule)


def serve(control: socket.socket, run_rank: RunRank, *, controller: int) -> NoReturn:
    """Serve requests until the controller goes, then end every rank and exit.

    Args:
        control: Our end of the control connection.
        run_rank: What a forked rank does.
        controller: Process id of the controller, our parent.
    """
    try:
        server = _prepare(control, run_rank, controller)
        send_packet(control, {"kind": "serving"})
        while _serve_once(server):
            pass
        _end(server, grace_s=0.0)
    except BaseException:  # noqa: BLE001 - a forked server must never return into pytest
        with contextlib.suppress(OSError):
            send_packet(control, {"kind": "failed", "error": traceback.format_exc()[-8000:]})
    finally:
        os._exit(0)


def _prepare(control: socket.socket, run_rank: RunRank, controller: int) -> _Server:
    """Leave the terminal's session, adopt orphans, and watch the controller."""
    if os.getsid(0) != os.getpid():  # the first process of a container leads its session
        os.setsid()
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A collection in a rank would touch, and so copy, every page that it shares with us.
    gc.collect()
    gc.freeze()
    children = frozenset(child.pid for child in psutil.Process().children(recursive=True))
    server = _Server(control, run_rank, os.pidfd_open(controller), own_children=children)
    server.selector.register(control, selectors.EVENT_READ)
    server.selector.register(server.controller, selectors.EVENT_READ)
    return server


def _serve_once(server: _Server) -> bool:
    """Wait for something and handle it; return whether to go on."""
    _send_signals(server, server.pauses.act(time.monotonic()))
    if server.traffic is not None:
        server.traffic.act(time.monotonic())
    for key, _ in server.selector.select(_wait_s(server)):
        if key.fd == server.controller:
            return False
        if key.fd in server.alive:
            _send_exit(server, key.fd)
        elif key.fd == server.control.fileno():
            packet = receive_packet(server.control)
            if packet is None or packet.header["kind"] == "quit":
                return False
            _answer(server, packet)
    return True


def _wait_s(server: _Server) -> float | None:
    """Return in how many seconds there is something to do by the clock, None if never."""
    now_s = time.monotonic()
    planned = (server.pauses, server.traffic)
    waits = [each.wait_s(now_s) for each in planned if each is not None]
    return min((each for each in waits if each is not None), default=None)


def _answer(server: _Server, packet: Packet) -> None:
    kind = packet.header["kind"]
    if kind == "fork":
        _fork(server, packet)
    elif kind == "signal":
        _signal(server, packet.header)
    elif kind == "pause":
        wish, now_s = packet.header["pause"], time.monotonic()
        _send_signals(server, server.pauses.begin(packet.header["rank"], wish, now_s))
    elif kind == "resume":
        _send_signals(server, server.pauses.end(packet.header["rank"]))
    elif kind == "disturb":
        _disturb(server, packet.header["index"], packet.header["rank"])
    elif kind == "calm":
        _calm(server)
    elif kind == "probe":
        _probe_hosts(server, packet.header["scratch"])
    elif kind == "end":
        exits, leftovers = _end(server, grace_s=packet.header["grace_s"])
        leftovers = leftovers[:_MAX_LEFTOVERS]
        send_packet(server.control, {"kind": "ended", "exits": exits, "leftovers": leftovers})


def _fork(server: _Server, packet: Packet) -> None:
    """Fork the ranks of a world; on failure leave none of them."""
    spec = from_json(WorldSpec, packet.header["spec"])
    ranks = packet.header.get("ranks") or range(spec.size)
    streams = _receive_streams(server, packet, len(ranks))
    try:
        ports = packet.header.get("ports") or _hold_ports(server, spec, packet.header["scratch"])
        header = {**packet.header, "ports": ports}
        pids = _fork_ranks(server, spec, dict(zip(ranks, streams, strict=True)), header)
    except (LaunchError, OSError) as error:
        _end(server, grace_s=0.0)
        send_packet(server.control, {"kind": "failed", "error": f"fork: {error}"})
    else:
        forked = {"kind": "forked", "pids": pids, "ports": ports, "at_s": time.monotonic()}
        _send_forked(server, spec, forked)
    finally:
        for stream in streams:
            stream.close()


def _hold_ports(server: _Server, spec: WorldSpec, scratch: str) -> list[int]:
    """Make the world's hosts, if it has its own, and return ports that are held for it there."""
    if kind_of(spec.hosts) != NETNS:
        address = spec.host_of(0).address if spec.sites else "127.0.0.1"
        server.ports = [reserve_port(address), reserve_port(address)]
        return [port.getsockname()[1] for port in server.ports]
    server.network = make_network(spec.all_hosts, Path(scratch, FOLDER))
    server.traffic = direct(server.network, spec)
    if server.traffic is not None:
        server.traffic.begin_rendezvous(time.monotonic())
    return [port.getsockname()[1] for port in server.network.ports]


def _send_forked(server: _Server, spec: WorldSpec, forked: Mapping[str, Any]) -> None:
    """Tell of the ranks, and hand out what the tables of their hosts are read from."""
    network = server.network
    spaces, tables = (network.names, network.tables) if network is not None else ([], ())
    own = own_table() if kind_of(spec.hosts) == DOCKER else None
    if own is not None:
        spaces, tables = [own_space()], (own.fileno(),)
    warden = {"warden": server.traffic.pid} if server.traffic is not None else {}
    header = {**forked, **warden, "spaces": spaces}
    send_packet(server.control, header, tables[:MAX_DESCRIPTORS])
    for first in range(MAX_DESCRIPTORS, len(tables), MAX_DESCRIPTORS):
        more = tables[first : first + MAX_DESCRIPTORS]
        send_packet(server.control, {"kind": "tables"}, more)
    if network is not None:
        network.release_tables()
    elif own is not None:
        own.close()


def _probe_hosts(server: _Server, scratch: str) -> None:
    """Make a network of one host and let it go, to find out whether that can be done."""
    error: dict[str, str] | None = None
    try:
        make_network(all_hosts(NETNS, 1), Path(scratch)).close()
    except (LaunchError, OSError) as found:
        error = {"happened": str(found)}
        if isinstance(found, LaunchError):
            error = {"happened": found.happened, "seen": found.seen, "remedy": found.remedy}
    send_packet(server.control, {"kind": "probed", "error": error})


def _disturb(server: _Server, index: int, rank: int) -> None:
    """Have a fault of the network happen, and tell what came of it."""
    error = _NO_NETWORK
    if server.traffic is not None:
        error = server.traffic.begin(index, rank, time.monotonic())
    told = {"rank": rank, "token": fault_token(index), "error": error}
    send_packet(server.control, {"kind": "changed", "at_s": time.monotonic(), **told})


def _calm(server: _Server) -> None:
    """End all faults of the network, and tell so."""
    error = server.traffic.calm() if server.traffic is not None else ""
    told = {"rank": 0, "token": CALM, "error": error}
    send_packet(server.control, {"kind": "changed", "at_s": time.monotonic(), **told})


def _receive_streams(server: _Server, packet: Packet, size: int) -> list[socket.socket]:
    descriptors = list(packet.descriptors)
    while len(descriptors) < size:
        more = receive_packet(server.control)
        if more is None:
            break
        descriptors += more.descriptors
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def _fork_ranks(
    server: _Server,
    spec: WorldSpec,
    streams: Mapping[int, socket.socket],
    header: Mapping[str, Any],
) -> list[int]:
    """Fork the ranks, one right after the other.

    After a fork the server copies each page that it writes to, as a rank does. So what can be done
    before the first fork or after the last is not done between them.
    """
    forks = [
        partial(
            fork_rank,
            RankSpec(
                world=spec,
                rank=rank,
                directory=header["directory"],
                scratch=header["scratch"],
                ports=tuple(header["ports"]),
            ),
            stream,
            close=[each.fileno() for each in streams.values() if each is not stream],
            run_rank=server.run_rank,
            enter=partial(_enter, server, rank),
        )
        for rank, stream in streams.items()
    ]
    pids: list[int] = []
    try:
        for fork in forks:
            pids.append(fork())  # noqa: PERF401 - those before one that fails must be known
    finally:
        for rank, pid in zip(streams, pids, strict=False):
            descriptor = os.pidfd_open(pid)
            server.alive[descriptor] = (rank, pid)
            server.selector.register(descriptor, selectors.EVENT_READ)
    return pids


def _enter(server: _Server, rank: int) -> None:
    """Become a rank: move onto its host, where that is not the server's, and close what is ours."""
    if server.network is not None:
        server.network.enter(rank)
    for descriptor in _descriptors(server):
        os.close(descriptor)


def _descriptors(server: _Server) -> list[int]:
    """Return what the server holds open and a rank must not keep."""
    selector = getattr(server.selector, "fileno", lambda: -1)()
    own = [server.control.fileno(), server.controller, selector]
    own += server.network.descriptors if server.network is not None else []
    own += [server.traffic.stream.fileno()] if server.traffic is not None else []
    return [*own, *server.alive, *(port.fileno() for port in server.ports)]


def _send_signals(server: _Server, signals: Iterable[tuple[int, int]]) -> None:
    """Stop or continue ranks, and their children with them."""
    pids = dict(server.alive.values())
    for rank, number in signals:
        if rank in pids:
            signal_group(pids[rank], number)


def _signal(server: _Server, header: Mapping[str, Any]) -> None:
    pids = dict(server.alive.values())
    for rank in header["ranks"]:
        _send_signals(server, server.pauses.end(rank))
        if rank in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pids[rank], header["signal"])
                # A stopped rank would keep the signal pending and show no stacks.
                os.kill(pids[rank], signal.SIGCONT)


def _send_exit(server: _Server, descriptor: int) -> None:
    with contextlib.suppress(OSError):
        send_packet(server.control, {"kind": "exited", **_reap(server, descriptor)})


def _reap(server: _Server, descriptor: int) -> dict[str, Any]:
    rank, pid = server.alive.pop(descriptor)
    server.selector.unregister(descriptor)
    os.close(descriptor)
    _, status, usage = os.wait4(pid, 0)
    return {
        "rank": rank,
        "at_s": time.monotonic(),
        "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": usage.ru_maxrss * 1024,
    }


def _end(server: _Server, *, grace_s: float) -> tuple[list[dict[str, Any]], list[str]]:
    """End the world's processes and release its ports."""
    server.pauses.forget()
    if server.traffic is not None:
        server.traffic.close()
        server.traffic = None
    leaders = {descriptor: pid for descriptor, (_, pid) in server.alive.items()}
    end_groups(leaders, grace_s=grace_s)
    exits = [_reap(server, descriptor) for descriptor in wait_until_dead(leaders, KILL_S)]
    leftovers = [_give_up(server, descriptor) for descriptor in list(server.alive)]
    leftovers += kill_orphans(spare=server.own_children)
    for port in server.ports:
        port.close()
    server.ports = []
    if server.network is not None:
        server.network.close()
        server.network = None
    return exits, leftovers


def _give_up(server: _Server, descriptor: int) -> str:
    """Forget a rank that even SIGKILL does not end: it hangs in the kernel."""
    rank, pid = server.alive.pop(descriptor)
    server.selector.unregister(descriptor)
    os.close(descriptor)
    return f"rank {rank}, process {pid}: cannot be killed, it waits inside the kernel"
