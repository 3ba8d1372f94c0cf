"""The interface of a test to its world, in one of the ranks."""

from __future__ import annotations

import contextlib
import os
import pickle
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TypeVar

from pytest_multihost.core.backends import Backend
from pytest_multihost.core.cpython_private import get_frame
from pytest_multihost.core.launch.wire import Channel
from pytest_multihost.core.model.errors import (
    NoWorldError,
    SettingError,
    WorldBrokenError,
    known_names,
    shown,
)
from pytest_multihost.core.model.event import (
    ExchangeEntered,
    SyncPointPassed,
    ValueStated,
    event_header,
    now,
)
from pytest_multihost.core.model.messages import CollectiveBroken, CollectiveComplete
from pytest_multihost.core.model.operation import HARNESS_SCOPE
from pytest_multihost.core.model.role import RoleSpec
from pytest_multihost.core.model.spec import RankSpec
from pytest_multihost.core.rank.digest import digest, short_text
from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.rank.services import (
    NoTerminalError,
    WorldClock,
    current_clock,
    pass_sync_point,
)

T = TypeVar("T")


@dataclass(frozen=True, eq=False, repr=False)
class World:
    """The ranks of this test, seen from one of them.

    `barrier`, `gather`, `broadcast`, `inherit` and `part` use the harness's own channel, never the
    runtime under test. They work before the process group is up and while it hangs, and they raise
    `WorldBrokenError` as soon as a rank can no longer take part. Every rank must call the same
    operations in the same order, except ranks that run a program in place of the test's function.
    """

    _spec: RankSpec
    _backend: Backend
    _channel: Channel
    _recorder: Recorder
    _stop_at: Callable[[FrameType], None] | None = None
    _clock: WorldClock = field(default_factory=current_clock)
    _entered: Counter[tuple[str, str]] = field(default_factory=Counter)
    _stated: Counter[str] = field(default_factory=Counter)
    _variables: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def __repr__(self) -> str:
        """Name the rank, as in "<World: rank 0 of 4, gloo>"."""
        role = f", {self.role} {self.role_rank}" if self.role else ""
        return f"<World: rank {self.rank} of {self.size}{role}, {self.backend}>"

    @property
    def rank(self) -> int:
        """This rank's index, 0..size-1."""
        return self._spec.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._spec.world.size

    @property
    def is_primary(self) -> bool:
        """Whether this is rank 0."""
        return self._spec.is_primary

    @property
    def backend(self) -> str:
        """Name of the backend that formed the process group, of this rank's role if it has one."""
        return self._spec.backend

    @property
    def role(self) -> str:
        """Name of this rank's role; empty if the test has no roles."""
        role = self._spec.role
        return "" if role is None else role.name

    @property
    def role_rank(self) -> int:
        """This rank's index in its role, 0..role_size-1; `rank` if the test has no roles."""
        role = self._spec.role
        return self.rank if role is None else self.rank - role.ranks.start

    @property
    def role_size(self) -> int:
        """Number of ranks of this rank's role; `size` if the test has no roles."""
        role = self._spec.role
        return self.size if role is None else len(role.ranks)

    def ranks_of(self, role: str) -> Sequence[int]:
        """Return the ranks of a role, as `rank` counts them.

        Raises:
            SettingError: The test has no such role.
        """
        return self._role(role).ranks

    def port(self, role: str, n: int = 0) -> int:
        """Return a port at which a program of a role may listen; the same on every rank.

        The two ports of the role's own rendezvous, such as its MASTER_PORT, are others.

        Args:
            n: Which of its ports. Each role has one for each of its ranks, and seven more.

        Raises:
            SettingError: The test has no such role, or the role no such port.
        """
        found = self._role(role)
        if not 0 <= n < found.own_ports:
            raise SettingError(
                f"role {role} has the ports 0 to {found.own_ports - 1}, not {shown(n)}"
            )
        return self._spec.ports_of(found)[2 + n]

    def _role(self, name: str) -> RoleSpec:
        named = {each.name: each for each in self._spec.world.roles}
        if name not in named:
            known = known_names(named, str(name)) if named else "the test has no roles."
            raise SettingError(f"there is no role {shown(name)}", seen=f"There are: {known}")
        return named[name]

    @property
    def host(self) -> str:
        """Name of the host this rank is on."""
        return self._spec.host.name

    @property
    def devices(self) -> Sequence[object]:
        """This rank's own devices as objects of the backend's runtime; empty if it has none."""
        return self._backend.devices()

    @property
    def clock(self) -> WorldClock:
        """The clock that this world's processes share, which may jump."""
        return self._clock

    @property
    def shared_directory(self) -> Path:
        """The directory behind the `shared_tmp_path` fixture."""
        return Path(self._spec.scratch, "shared")

    def barrier(self, name: str = "") -> None:
        """Wait until every rank has entered the barrier `name`.

        Raises:
            WorldBrokenError: A rank failed, died or left its test and will never enter it.
        """
        self._exchange("barrier", name, b"")

    def gather(self, obj: T, name: str = "") -> list[T]:
        """Return every rank's `obj`, in order of rank, on every rank.

        Args:
            obj: Anything that can be pickled; the controller does not unpickle it.
            name: Distinguishes this gather from others in messages.

        Raises:
            WorldBrokenError: A rank failed, died or left its test and will never enter it.
        """
        parts = self._exchange("gather", name, pickle.dumps(obj))
        return [pickle.loads(part) for part in parts]  # noqa: S301 - from ranks of this world

    def broadcast(self, obj: T, name: str = "") -> T:
        """Return the `obj` of the first rank, the primary, on every rank; others are ignored.

        Raises:
            WorldBrokenError: A rank failed, died or left its test and will never enter it.
        """
        is_first = self.rank == self._spec.world.testing_ranks[0]
        payload = pickle.dumps(obj) if is_first else b""
        [part] = self._exchange("broadcast", name, payload)
        return pickle.loads(part)  # type: ignore[no-any-return]  # noqa: S301

    def inherit(self, obj: T, name: str = "inherit") -> T:
        """Return the primary's `obj` on every rank, and take over its changes of `os.environ`.

        Call it where a test harness starts its processes: they would all inherit from one parent.

            self.file_name = world.inherit(self.file_name)

        Args:
            obj: Anything that can be pickled, such as the name of a temporary file.
            name: Distinguishes this exchange from others in messages.

        Raises:
            WorldBrokenError: A rank failed, died or left its test and will never enter it.
        """
        before, here = self._variables, dict(os.environ)
        changes = {each: here.get(each) for each in {*before, *here}}
        changes = {each: text for each, text in changes.items() if text != before.get(each)}
        value, changed = self.broadcast((obj, changes), name)
        for variable, text in changed.items():
            if text is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = text
        return value

    def part(self, name: str = "part") -> None:
        """Wait until every rank has come to its end, so that later code may remove shared files.

        It is a barrier that a failed rank does not break: the failure is reported anyway, and the
        other ranks go on with their own tear-down.
        """
        with contextlib.suppress(WorldBrokenError):
            self.barrier(name)

    def sync_point(self, name: str) -> None:
        """Pass a named point of the test, recorded in its history; does not wait."""
        self._channel.send(event_header(SyncPointPassed(str(name)), now()))
        pass_sync_point(name)

    def same(self, name: str, value: object) -> None:
        """State a value that all ranks are to have; does not wait, and sends only its digest.

        At the end the controller compares the values of the ranks: the first value of a name
        with the other ranks' first, and so on. If ranks differ, or one has stated less than the
        others, a test that passed otherwise fails, and the report shows each side. A sweep reports
        a disturbance that makes ranks differ.

            world.same("step", step)
            world.same("weights", model)

        Args:
            name: The name of the value in the report.
            value: A number, text, array, tensor or module of torch, or a container of these;
                anything else is pickled.

        Raises:
            TypeError: The value cannot be compared.
        """
        name = str(name)
        nth = self._stated[name]
        self._stated[name] += 1
        frame = self._recorder.frame_of(self._recorder.user_source(2))
        stated = ValueStated(name, nth, digest(value), short_text(value), frame)
        self._channel.send(event_header(stated, now()))

    def breakpoint(self, rank: int | None = None) -> None:
        """Stop in the debugger, as `breakpoint()` does in this line.

        The ranks stop one after another, because they share one terminal.

        Args:
            rank: The only rank that stops; None: every rank.

        Raises:
            ValueError: The world has no such rank.
            NoTerminalError: pytest has no terminal, or runs under pytest-xdist; or this is a rank
                of a script.
        """
        if rank is not None and rank not in range(self.size):
            raise ValueError(f"world.breakpoint(rank={rank!r}): the ranks are 0 to {self.size - 1}")
        if rank not in (None, self.rank):
            return
        if self._stop_at is None:
            raise NoTerminalError("world.breakpoint() works only in a rank of a test")
        self._stop_at(get_frame(1))

    def _exchange(self, operation: str, name: str, payload: bytes) -> list[bytes]:
        name = str(name)  # a test may pass any object
        nth = self._entered[operation, name]
        self._entered[operation, name] += 1
        key = operation, name, nth
        entered = ExchangeEntered(operation, name, nth, alone=threading.active_count() == 1)
        all_ranks = self._spec.world.testing_ranks
        record = self._recorder.begin(
            f"world.{operation}", "collective", all_ranks, scope=HARNESS_SCOPE, detail=name
        )
        with self._recorder.during(record):
            self._channel.send(event_header(entered, now()), payload)
            answer = self._channel.receive(lambda message: getattr(message, "key", None) == key)
            match answer.message:
                case CollectiveComplete() as complete:
                    return complete.contributions(answer.payload)
                case CollectiveBroken(_, error):  # a rank will never enter; recorded as a failure
                    raise WorldBrokenError(error)
        return []


_current: list[World] = []


def set_world(world: World) -> None:
    """Set this process's world; a process has one for its whole life."""
    _current[:] = [world]


def current_world() -> World:
    """Return the world of this rank, for code that cannot take the `world` fixture.

    Raises:
        NoWorldError: This process is not a rank.
    """
    if not _current:
        raise NoWorldError(
            "there is no world here: this process is not a rank",
            remedy="Mark the test with @pytest.mark.multihost(ranks=N).",
        )
    return _current[0]
