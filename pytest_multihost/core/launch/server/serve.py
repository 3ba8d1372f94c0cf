"""The loop of a server: the process that holds the collected tests and forks ranks.

Forking the server is sound. fork(2) copies one thread, and every lock in its current state. The
server has one thread, takes part in no collective and initialises no runtime, so no other thread
can hold a lock; see `fork_safety`.

The server manages processes at the controller's request. When the controller ends, the server ends
every rank and itself.
"""

from __future__ import annotations

import contextlib
import gc
import os
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# By name: a test may replace it in its module, and the rank must still end.
from os import _exit as leave
from pathlib import Path
from typing import NoReturn

from pytest_multihost.core.cpython_private import clear_exit_handlers
from pytest_multihost.core.import_path import import_path
from pytest_multihost.core.launch.descriptor_limit import (
    raise_descriptor_limit,
    restore_descriptor_limit,
)
from pytest_multihost.core.launch.interface import RunRank
from pytest_multihost.core.launch.libc import adopt_orphans, die_with_parent, outlive_parent
from pytest_multihost.core.launch.memory_guard import MemoryGuard
from pytest_multihost.core.launch.own_descriptors import close_in_children
from pytest_multihost.core.launch.packets import Packet, receive_packet, send_packet
from pytest_multihost.core.launch.ports import free_ports, reserve_port
from pytest_multihost.core.launch.reaper import kill_strays, mark_descendants, wait_until_dead
from pytest_multihost.core.launch.refusals import refused, remedy_against
from pytest_multihost.core.launch.server.heap_gaps import fill_gaps
from pytest_multihost.core.launch.server.huge_pages import use_huge_pages
from pytest_multihost.core.launch.server.parts import ServerPart, StartPart
from pytest_multihost.core.launch.server.rank_processes import RankProcesses
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import BROKEN, Event, FaultAnswered, RankEventBody
from pytest_multihost.core.model.json_values import build_converters
from pytest_multihost.core.model.messages import (
    CloneServer,
    EndWorld,
    Failed,
    Fork,
    FromServer,
    HostsProbed,
    PauseRank,
    PerformFault,
    ProbeHosts,
    Quit,
    RankEvent,
    RequestDumps,
    ServerCloned,
    Serving,
    ToRank,
    ToServer,
    UndoFaults,
    WorldEnded,
    WorldForked,
)
from pytest_multihost.core.model.rank_names import spans
from pytest_multihost.core.model.spec import RankSpec, WorldSpec, port_count
from pytest_multihost.core.procfs import descendants_of
from pytest_multihost.core.slots.rank_log import RankLogs

_MAX_LEFTOVERS = 20
_FEW_FORKS = 32
"""Up to this many forks, preparing the heap costs more time than it saves."""

_GONE_S = 5.0
"""How long a killed controller may take to end after its connections have been closed."""


@dataclass(slots=True)
class _Server:
    """State of the server: the running world's processes, its ports and its services.

    Attributes:
        selector: Holds all descriptors that the loop waits for.
        ports: Sockets that hold the world's ports.
        parts: The parts of the world's services in this process, by the services' names.
        clones: Servers that were forked from this one, by pidfd.
        forks: How many ranks it has forked; a clone counts as enough of them to prepare for many.
        has_quit: Whether the controller has asked the server to end.
    """

    control: socket.socket
    run_rank: RunRank
    controller: int
    selector: selectors.EpollSelector
    ranks: RankProcesses
    logs: RankLogs = field(default_factory=RankLogs)
    ports: tuple[socket.socket, ...] = ()
    parts: dict[str, ServerPart] = field(default_factory=dict)
    clones: dict[int, int] = field(default_factory=dict)
    forks: int = 0
    has_quit: bool = False

    def send(self, message: FromServer, descriptors: Sequence[int] = ()) -> None:
        """Send a message to the controller; if it is gone, the loop is about to see that."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            send_packet(self.control, message, descriptors)


def serve(
    control: socket.socket,
    run_rank: RunRank,
    *,
    controller: int,
    scratch: str = "",
    finish: Callable[[], None] | None = None,
) -> NoReturn:
    """Serve requests until the controller ends, then end every rank and exit.

    Args:
        control: The server's end of the control connection.
        controller: Process id of the controller, the parent.
        scratch: A directory of the controller, removed if the controller is killed; empty: none.
        finish: Is called when all ranks have ended.
    """
    try:
        server = _prepare(control, run_rank, controller)
        server.send(Serving())
        while _serve_once(server):
            pass
        parts = tuple(server.parts.values())
        _end(server, grace_s=0.0)
        if finish is not None:
            finish()
        if not server.has_quit and wait_until_dead([server.controller], _GONE_S):
            for part in parts:
                part.abandon()
            if scratch:
                shutil.rmtree(scratch, ignore_errors=True)
    except BaseException as error:  # noqa: BLE001 - a forked server must never return into pytest
        remedy = remedy_against(error)
        why = str(error) if remedy else traceback.format_exc()[-8000:]
        with contextlib.suppress(OSError):
            send_packet(control, Failed(why, remedy))
    finally:
        leave(0)


def _prepare(control: socket.socket, run_rank: RunRank, controller: int) -> _Server:
    """Clear up after dead servers, leave the terminal's session, and watch the controller."""
    kill_strays()
    raise_descriptor_limit()
    os.setsid()
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        # The controller reacts to these signals, and its ranks need the server until it does. They
        # get a handler because programs started from here would inherit SIG_IGN.
        signal.signal(number, lambda *_: None)
    build_converters(RankEventBody, ToRank)
    clear_exit_handlers()  # this process never runs them, and each rank would clear its copy
    # A collection in a rank would touch, and so copy, every page shared with the server.
    gc.collect()
    gc.freeze()
    children = frozenset(descendants_of(os.getpid()))
    selector, pidfd = close_in_children(selectors.EpollSelector()), os.pidfd_open(controller)
    close_in_children(control)
    outlive_parent()  # when the controller ends, the server must still end its ranks
    selector.register(control, selectors.EVENT_READ)
    selector.register(pidfd, selectors.EVENT_READ)
    ranks = RankProcesses(selector, children)
    return _Server(control, run_rank, pidfd, selector, ranks)


def _serve_once(server: _Server) -> bool:
    """Wait for events and handle them; return whether to continue."""
    server.ranks.act(time.monotonic())
    server.logs.act(time.monotonic())
    for part in server.parts.values():
        part.act(time.monotonic())
    now_s = time.monotonic()
    waits = [server.ranks.wait_s(now_s), server.logs.wait_s(now_s)]
    waits += [each.wait_s(now_s) for each in server.parts.values()]
    due_s = min((wait_s for wait_s in waits if wait_s is not None), default=None)
    for key, _ in server.selector.select(due_s):
        if key.fd == server.controller:
            return False
        if key.fd in server.clones:
            _reap_clone(server, key.fd)
        elif key.fd in server.ranks.pidfds:
            server.send(RankEvent(server.ranks.reap(key.fd)))
        elif key.fd == server.control.fileno():
            packet: Packet[ToServer] | None = receive_packet(server.control, ToServer)
            if packet is None or isinstance(packet.message, Quit):
                server.has_quit = packet is not None
                return False
            _answer(server, packet)
    return True


def _answer(server: _Server, packet: Packet[ToServer]) -> None:
    match packet.message:
        case Fork() as request:
            _fork(server, request, packet.descriptors)
        case CloneServer(controller):
            _clone(server, packet.descriptors[0], controller)
        case RequestDumps() as request:
            server.ranks.request_dumps(request)
        case PauseRank(rank, pause):
            server.ranks.pause(rank, pause)
        case PerformFault() | UndoFaults() as request:
            server.send(RankEvent(_answer_fault(server, request)))
        case ProbeHosts() as request:
            server.send(_probe_hosts(request))
        case EndWorld(grace_s):
            exits, leftovers = _end(server, grace_s=grace_s)
            for each in exits:
                server.send(RankEvent(each))
            server.send(WorldEnded(tuple(leftovers[:_MAX_LEFTOVERS])))


def _answer_fault(server: _Server, request: PerformFault | UndoFaults) -> Event:
    """Have a service perform a fault or undo all faults; return the event that reports it."""
    part = server.parts.get(request.service)
    rank, index, error = 0, None, ""
    if isinstance(request, PerformFault):
        rank, index = request.rank, request.index
        error = f"the world has no service {request.service!r}"
        error = part.perform(rank, index) if part is not None else error
    elif part is not None:
        error = part.undo()
    return Event(time.monotonic(), rank, FaultAnswered(request.service, index, error))


def _fork(server: _Server, request: Fork, descriptors: Sequence[int]) -> None:
    """Fork the ranks of a world; if that fails, end the forked ranks."""
    streams = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    try:
        _start_parts(server, request.spec, Path(str(request.scratch)))
        ports = request.ports or _hold_ports(server, request.spec)
        pids = _fork_ranks(server, request, streams, ports)
    except (LaunchError, OSError, ImportError) as error:
        _end(server, grace_s=0.0)
        why = _as_launch_error(error)
        server.send(Failed("\n".join(filter(None, (why.happened, why.seen))), why.remedy))
    else:
        _send_forked(server, pids, ports)
    finally:
        for stream in streams:
            stream.close()


def _as_launch_error(error: Exception) -> LaunchError:
    if isinstance(error, LaunchError):
        return error
    return refused("", error) if isinstance(error, OSError) else LaunchError(str(error))


def _clone(server: _Server, control: int, controller: int) -> None:
    """Fork this server into a new server, with a controller of its own.

    This is as sound as forking a rank: one thread, no lock held, no runtime. The new server need
    not load and prepare anything again.
    """
    connection, parent = socket.socket(fileno=control), os.getpid()
    _prepare_forks(server, _FEW_FORKS + 1)  # a clone is made for many worlds
    if (pid := os.fork()) == 0:
        try:
            die_with_parent(parent)  # until it serves
            for descriptor in _descriptors(server):
                os.close(descriptor)
            serve(connection, server.run_rank, controller=controller)
        finally:
            leave(BROKEN)
    connection.close()
    pidfd = os.pidfd_open(pid)
    server.clones[pidfd] = pid
    server.ranks.spared |= {pid}
    server.selector.register(pidfd, selectors.EVENT_READ)
    server.send(ServerCloned(pid))


def _reap_clone(server: _Server, pidfd: int) -> None:
    pid = server.clones.pop(pidfd)
    server.ranks.spared -= {pid}
    server.selector.unregister(pidfd)
    os.close(pidfd)
    os.waitpid(pid, 0)


def _start_parts(server: _Server, spec: WorldSpec, scratch: Path) -> None:
    """Start the services' parts in this process; import their code for ranks once for all ranks.

    Raises:
        LaunchError: A part cannot be started.
        OSError: Likewise.
        ImportError: The code of a service does not exist here.
    """
    for name, each in spec.services.items():
        if each.server:
            start: StartPart = import_path(each.server)
            server.parts[name] = start(spec, scratch)
        if each.rank:
            import_path(each.rank)


def _hold_ports(server: _Server, spec: WorldSpec) -> tuple[int, ...]:
    """Return the ports that are reserved for the world; see `RankSpec.ports`."""
    held = next((each.ports for each in server.parts.values() if each.ports), ())
    if not held:
        address = spec.host_of(0).address
        first, second = reserve_port(address), reserve_port(address)
        held = server.ports = (close_in_children(first), close_in_children(second))
    numbers = (int(port.getsockname()[1]) for port in held)
    return (*numbers, *free_ports(port_count(spec)))


def _fork_ranks(
    server: _Server, request: Fork, streams: Sequence[socket.socket], ports: tuple[int, ...]
) -> list[int]:
    """Fork the ranks, one right after the other.

    After a fork the server copies each page that it writes to, as a rank does. So as much work as
    possible is done before the first fork or after the last, not between them.
    """
    directories = {"directory": str(request.directory), "scratch": str(request.scratch)}
    specs = [
        RankSpec(
            world=request.spec,
            rank=rank,
            ports=(ports[0], ports[1]),
            role_ports=tuple(ports[2:]),
            **directories,
        )
        for rank in request.ranks
    ]
    _prepare_forks(server, len(specs))
    parent = os.getpid()
    numbers = spans(sorted(each.fileno() for each in streams))
    pids: list[int] = []
    server.ranks.begin()
    guard = MemoryGuard()
    try:
        for spec, stream in zip(specs, streams, strict=True):
            guard.check()
            if (pid := os.fork()) == 0:
                _become_rank(server, spec, stream, parent=parent, streams=numbers)
            pids.append(pid)
    finally:
        for rank, pid in zip(request.ranks, pids, strict=False):
            server.ranks.add(rank, pid, Path(directories["directory"]))
        server.logs.watch(Path(each.directory, f"rank-{each.rank}.log") for each in specs)
    return pids


def _prepare_forks(server: _Server, count: int) -> None:
    """Make forks cheap, before the first of so many that it is worth it."""
    before, server.forks = server.forks, server.forks + count
    if before <= _FEW_FORKS < server.forks:
        fill_gaps()
        use_huge_pages()


def _become_rank(
    server: _Server,
    spec: RankSpec,
    stream: socket.socket,
    *,
    parent: int,
    streams: Sequence[Sequence[int]],
) -> NoReturn:
    """Become a rank: move onto its host, close all foreign descriptors, and run.

    Args:
        streams: The descriptors of all ranks' streams, as spans of first and last number.
    """
    try:
        os.setsid()  # so that one signal to its process group reaches its children
        for part in server.parts.values():
            part.enter(spec.rank)
        die_with_parent(parent)  # after changes of credentials, which would undo it
        mark_descendants(parent)
        for descriptor in _descriptors(server):
            os.close(descriptor)
        own = stream.fileno()
        for first, last in streams:  # a thousand calls of close(2) would take 1 ms in each rank
            os.closerange(first, min(last + 1, own))
            os.closerange(max(first, own + 1), last + 1)
        restore_descriptor_limit()  # now that it has none of those of the other ranks
        server.run_rank(spec, Channel(stream))
    except BaseException:  # noqa: BLE001 - nothing may propagate into the server's stack
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # sys.exit would unwind into the server's loop, and run exit handlers and flush buffers
        # inherited from the server a second time.
        leave(BROKEN)


def _descriptors(server: _Server) -> list[int]:
    """Return the server's descriptors that a rank must not keep, and that have no object.

    Descriptors with an object are closed already: see `own_descriptors`.
    """
    of_parts = [each for part in server.parts.values() for each in part.descriptors()]
    return [server.controller, *of_parts, *server.clones, *server.ranks.pidfds]


def _send_forked(server: _Server, pids: Sequence[int], ports: tuple[int, ...]) -> None:
    """Report the ranks to the controller, with the sockets that read their hosts' socket tables."""
    parts = server.parts.values()
    tables = {name: table for each in parts for name, table in each.take_tables().items()}
    forked = WorldForked(
        pids=tuple(pids),
        ports=ports,
        at_s=time.monotonic(),
        companions=tuple(pid for each in parts for pid in each.companions()),
        exchanges=tuple(pid for each in parts for pid in each.exchanges()),
        namespaces=tuple(tables),
    )
    server.send(forked, list(tables.values()))
    for descriptor in tables.values():
        os.close(descriptor)


def _probe_hosts(request: ProbeHosts) -> HostsProbed:
    """Check whether hosts of a kind can be made here."""
    probe: Callable[[Path], None] = import_path(request.probe)
    try:
        probe(Path(request.scratch))
    except (LaunchError, OSError) as error:
        why = refused("hosts cannot be made", error) if isinstance(error, OSError) else error
        return HostsProbed(why.happened, why.seen, why.remedy)
    return HostsProbed()


def _end(server: _Server, *, grace_s: float) -> tuple[list[Event], list[str]]:
    """End the world's processes and release its ports."""
    for part in server.parts.values():
        part.begin_end()
    server.logs.begin_end()
    found = server.ranks.end(grace_s=grace_s)
    server.logs.close()
    for port in server.ports:
        port.close()
    server.ports = ()
    for part in server.parts.values():
        part.close()
    server.parts = {}
    return found
