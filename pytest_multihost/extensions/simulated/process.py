"""The process of the exchange: it reads the ranks' messages, and answers the ranks that may go on.

It is forked from the server before the ranks, and ends with it. A process of its own keeps the
work of the exchange out of pytest's process and out of the server, which must stay idle enough to
fork ranks and to notice deaths.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import os
import selectors
import socket
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import _exit as leave
from pathlib import Path
from typing import Any, NoReturn

from pytest_multihost.extensions.simulated.exchange import Exchange, lost_by_timeout
from pytest_multihost.extensions.simulated.key_values import KeyValues
from pytest_multihost.extensions.simulated.launches import (
    SimulatedLaunch,
    Travelling,
    completion_to_tuple,
    launch_from_tuple,
)
from pytest_multihost.extensions.simulated.link import ASK, AWAY, EXPIRED, Threads, Unpacker, pack
from pytest_multihost.extensions.simulated.semantics import Semantics
from pytest_multihost.extensions.simulated.standing import Standing, write_standing
from pytest_multihost.extensions.simulated.waits import Hang, ThreadWait, Waits

_BLOCKED_S = 0.002
"""How long no rank may send anything until it is checked whether the running ones are blocked."""

_CROWD_S = 0.02
"""How long ready ranks wait for a place before one more rank runs."""

_LATE_S = 1800.0
"""A timeout that no world reaches: torch's own of gloo, and every test's deadline is earlier."""

_CHUNK = 1 << 20


@dataclass(slots=True, eq=False)
class _Peer:
    """The connection of one thread of a rank.

    Attributes:
        thread: Identifies the thread; the kernel gives descriptors anew.
        unsent: Bytes that the socket has not taken yet.
    """

    connection: socket.socket
    thread: int
    rank: int = -1
    is_main: bool = False
    unpacker: Unpacker = field(default_factory=Unpacker)
    unsent: bytearray = field(default_factory=bytearray)


@dataclass(slots=True)
class _Process:
    listener: socket.socket
    folder: Path
    waits: Waits
    semantics: Semantics
    exchange: Exchange = field(default_factory=Exchange)
    store: KeyValues = field(default_factory=KeyValues)
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    peers: dict[int, _Peer] = field(default_factory=dict)
    by_thread: dict[int, _Peer] = field(default_factory=dict)
    threads: itertools.count[int] = field(default_factory=itertools.count)
    pids: dict[int, int] = field(default_factory=dict)
    leaving: dict[int, int] = field(default_factory=dict)
    asking: list[_Peer] = field(default_factory=list)
    last_s: float = field(default_factory=time.monotonic)
    crowded_since_s: float = math.inf
    told: Standing = field(default_factory=Standing)

    def serve(self, parent: int) -> None:
        """Serve until the server, whose pidfd is given, ends."""
        self.listener.settimeout(0.0)
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(parent, selectors.EVENT_READ)
        while True:
            events = self.selector.select(self._timeout_s())
            for key, mask in events:
                if key.fd == parent:
                    return
                if key.fd == self.listener.fileno():
                    self._accept()
                elif key.fd in self.leaving:
                    self._end(key.fd)
                elif (peer := self.peers.get(key.fd)) is not None:
                    if mask & selectors.EVENT_WRITE:
                        self._flush(peer)
                    if mask & selectors.EVENT_READ:
                        self._read(peer)
            self._turn(is_idle=not events)
            if self.asking and not self.selector.select(0.0):
                self._answer_controller()

    def _answer_controller(self) -> None:
        """Say how the world stands, now that all that ranks have sent is read."""
        is_idle = not self.waits.ready and not self.waits.yielding() and self._is_certain()
        for each in self.asking:
            self._send(each, (is_idle, self.last_s, self.waits.next_expiry_s))
        self.asking.clear()

    def _timeout_s(self) -> float | None:
        if self.waits.ready:
            return _BLOCKED_S
        due_s = self.waits.next_expiry_s - time.monotonic()
        return None if due_s == math.inf else max(0.0, due_s)

    def _turn(self, *, is_idle: bool) -> None:
        """Let ranks go on, and say how the world stands."""
        now_s = time.monotonic()
        for each in self.waits.expired(now_s):
            self.waits.expire(each)
        for struck in self.waits.struck(now_s):
            why = lost_by_timeout(struck)
            self.waits.end(self.exchange.lose(struck.group, struck.member, why))
        if is_idle and self.waits.ready:
            self._lend_places()
        if not self.waits.ready and not self.waits.running:
            for each in self.waits.yielding():
                self.waits.wake(each)
        beyond = 0
        if self.waits.ready and now_s > self.crowded_since_s + _CROWD_S:
            beyond, self.crowded_since_s = len(self.waits.running) - self.waits.places + 1, now_s
        while (wait := self.waits.next_ready(beyond=max(0, beyond))) is not None:
            self._resume(wait)
            beyond = 0
        if not self.waits.ready:
            self.crowded_since_s = math.inf
        elif self.crowded_since_s == math.inf:
            self.crowded_since_s = now_s
        self._tell()

    def _lend_places(self) -> None:
        for rank in list(self.waits.running):
            if is_blocked(self.pids.get(rank, 0)):
                self.waits.lend(rank)

    def _tell(self) -> None:
        """Write how the world stands, if that has changed.

        A thread that has ended may have left a message that is not read yet.
        """
        standing, until_s = Standing(), self.waits.next_expiry_s
        hang = self.waits.hang()
        is_proof = hang is not None and self._has_only(hang) and self._is_certain()
        if is_proof and not self.selector.select(0.0):
            standing = Standing(is_still=True, until_s=until_s)
        if standing != self.told:
            self.told = standing
            write_standing(self.folder, standing)

    def _is_certain(self) -> bool:
        """Return whether the ranks would wait as they do with the real backend, too."""
        return self.semantics.is_certain(self.exchange, self.waits.parked(), self.waits.size)

    def _has_only(self, hang: Hang) -> bool:
        """Return whether no process has a thread besides waiting ones and the harness's."""
        for rank, pid in self.pids.items():
            known = hang.waiting.get(rank, 0) + hang.own_threads[rank] + (rank in hang.finished)
            if thread_count(pid) != known:
                return False
        return True

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                connection, _ = self.listener.accept()
                connection.settimeout(0.0)
                peer = _Peer(connection, next(self.threads))
                self.peers[connection.fileno()] = self.by_thread[peer.thread] = peer
                self.selector.register(connection, selectors.EVENT_READ)

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        for message in peer.unpacker.feed(data):
            if message == ASK:
                self.asking.append(peer)
                continue
            self.last_s = time.monotonic()
            if message == EXPIRED:
                self._expire(peer.thread)
            elif message == AWAY:
                self.waits.lend(peer.rank)
            else:
                self._take(peer, message)

    def _drop(self, peer: _Peer) -> None:
        self.selector.unregister(peer.connection)
        del self.peers[peer.connection.fileno()], self.by_thread[peer.thread]
        peer.connection.close()
        if peer in self.asking:
            self.asking.remove(peer)
        self.waits.lose(peer.rank, peer.thread)
        if peer.is_main:
            self.waits.lose_rank(peer.rank)
            self._watch_end(peer.rank)

    def _watch_end(self, rank: int) -> None:
        """Watch for the end of a rank's process: its main thread has closed its connection.

        It may live on: a signal's handler may have cut the connection short.
        """
        if rank in self.leaving.values():
            return
        try:
            end = os.pidfd_open(self.pids[rank])
        except OSError:  # it is gone already
            self.waits.end(self.exchange.lose_rank(rank))
            return
        self.leaving[end] = rank
        self.selector.register(end, selectors.EVENT_READ)

    def _end(self, descriptor: int) -> None:
        """Record that the process of a rank has ended."""
        self.selector.unregister(descriptor)
        os.close(descriptor)
        self.waits.end(self.exchange.lose_rank(self.leaving.pop(descriptor)))

    def _take(self, peer: _Peer, message: tuple[Any, ...]) -> None:
        thread = peer.thread
        match message:
            case ("launch", launches, timeout_s):
                self._launch(*map(launch_from_tuple, launches), timeout_s=timeout_s)
            case ("lose", group, member, why):
                self.waits.end(self.exchange.lose(group, member, why))
            case ("wait", launch, numbers, timeout_s, may_return, threads):
                self.waits.moves(peer.rank, Threads(*threads))
                if launch is not None:
                    self._launch(launch_from_tuple(launch))
                wait = ThreadWait(peer.rank, thread, set(numbers), may_return=may_return)
                self._park(wait, timeout_s)
            case ("store", method, args, timeout_s, threads):
                self.waits.moves(peer.rank, Threads(*threads))
                if self.store.lacks(method, args):
                    self._park(ThreadWait(peer.rank, thread, request=(method, args)), timeout_s)
                else:
                    self._answer(peer, method, args)
                    self._look_into_store()
            case ("rest", threads):
                self.waits.moves(peer.rank, Threads(*threads))
                self._park(ThreadWait(peer.rank, thread), math.inf)
            case ("finished", threads):
                self.waits.finish(peer.rank, Threads(*threads))
            case ("hello", rank, pid, tid, threads):
                self._greet(peer, rank, pid, tid)
                self.waits.moves(rank, Threads(*threads))
                self._park(ThreadWait(rank, thread), math.inf)

    def _greet(self, peer: _Peer, rank: int, pid: int, tid: int) -> None:
        """Record which rank has connected, and by which thread."""
        peer.rank, peer.is_main = rank, pid == tid
        if peer.is_main:
            self.pids[rank] = pid
            self.waits.find_rank(rank)

    def _expire(self, thread: int) -> None:
        """End a wait whose timeout has struck in its rank, unless its answer is on the way."""
        if (wait := self.waits.wait_of(thread)) is not None:
            self.waits.expire(wait)

    def _launch(self, *launches: SimulatedLaunch, timeout_s: float = math.inf) -> None:
        self.waits.moves(launches[0].rank)
        if timeout_s < _LATE_S:
            expires_s = time.monotonic() + timeout_s
            for each in launches:
                self.waits.limit(replace(each, blobs=()), expires_s)
        self.waits.end(self.exchange.launch(*launches))

    def _park(self, wait: ThreadWait, timeout_s: float) -> None:
        wait.expires_s = time.monotonic() + timeout_s
        self.waits.park(wait)

    def _look_into_store(self) -> None:
        for each in self.waits.asking():
            if each.request is not None and not self.store.lacks(*each.request):
                self.waits.wake(each)

    def _resume(self, wait: ThreadWait) -> None:
        self.last_s = time.monotonic()
        peer = self.by_thread.get(wait.thread)
        if peer is None:
            return
        if wait.request is None:
            ended = tuple(map(completion_to_tuple, self.waits.take_ended(wait.rank)))
            self._send(peer, (wait.error, not wait.numbers, ended))
        elif wait.error:
            self._send(peer, (wait.error, None))
        elif self.store.lacks(*wait.request):  # another rank was faster
            self.waits.moves(wait.rank)
            wait.is_over = False
            self.waits.park(wait)
        else:
            self._answer(peer, *wait.request)

    def _answer(self, peer: _Peer, method: str, args: Sequence[Any]) -> None:
        """Answer a request to the store; a refused request fails in its rank."""
        try:
            self._send(peer, ("", self.store.answer(method, args)))
        except ValueError as refusal:
            self._send(peer, (str(refusal), None))

    def _send(self, peer: _Peer, answer: Travelling) -> None:
        peer.unsent += pack(answer)
        self._flush(peer)

    def _flush(self, peer: _Peer) -> None:
        try:
            while peer.unsent:
                sent = peer.connection.send(memoryview(peer.unsent)[:_CHUNK])
                del peer.unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:  # the rank has died; its end is read next
            peer.unsent.clear()
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
        if self.selector.get_key(peer.connection).events != events:
            self.selector.modify(peer.connection, events)


def run(
    listener: socket.socket, folder: Path, size: int, semantics: Semantics, *, parent: int
) -> NoReturn:
    """Serve the ranks of a world until the server ends; never returns.

    Args:
        listener: The socket to which the ranks connect.
        folder: Where to write how the world stands.
        semantics: The rules that groups of NCCL follow.
        parent: The process id of the server.
    """
    gc.freeze()
    process = _Process(listener, folder, Waits(size, places=os.cpu_count() or 1), semantics)
    try:
        process.serve(os.pidfd_open(parent))
    except Exception:  # noqa: BLE001 - all ranks are about to lose it: say why
        traceback.print_exc()
    finally:
        leave(0)


def is_blocked(pid: int) -> bool:
    """Return whether no thread of a process runs, or could."""
    try:
        states = [_state(each) for each in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return True
    return "R" not in states


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text().rpartition(") ")[2][:1]
    except OSError:
        return ""


def thread_count(pid: int) -> int:
    """Return how many threads a process has; 0 if it is gone."""
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
