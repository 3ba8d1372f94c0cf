"""What of containers needs no engine: a world of several servers, what they see, who owns them."""

from __future__ import annotations

import os
import resource
import select
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pytest_multihost.core.launch import Ending
from pytest_multihost.core.launch.docker import (
    ContainerLauncher,
    ContainerSpec,
    is_orphaned,
    outermost,
)
from pytest_multihost.core.launch.interface import CompositeWorld
from pytest_multihost.core.launch.wire import Frame
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.event import Event
from pytest_multihost.core.model.messages import Release
from pytest_multihost.core.model.spec import Hosts
from pytest_multihost.core.pytest_plugin.launchers import _CARRIED
from pytest_multihost.testing import make_event, make_spec

BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass
class Share:
    """Two ranks on a host whose server says what it is told to say."""

    ranks: tuple[int, ...]
    told: list[Event] = field(default_factory=list)
    is_gone: bool = False
    asked: list[Any] = field(default_factory=list)

    has_events = False
    moved_bytes = 0
    poll_events = select.POLLIN

    def __post_init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def fileno(self) -> int:
        return self.ours.fileno()

    def says(self, *events: Event, gone: bool = False) -> None:
        self.told, self.is_gone = list(events), gone
        self.theirs.send(b".")

    def wait(self, timeout_s: float) -> list[Event]:
        if self.is_gone:
            raise LaunchError("the server is gone")
        told, self.told = self.told, []
        return told

    def send(self, rank: int, frame: Frame[Any]) -> None:
        self.asked.append(("send", rank))

    def request_dumps(self, ranks: list[int], kind: str) -> None:
        self._ask("dumps", ranks)

    def begin_end(self, *, grace_s: float) -> None:
        self._ask("end", grace_s)

    def finish_end(self) -> Ending:
        return Ending((exited(self.ranks[0]),), (f"left by {[*self.ranks]}",))

    def collect_dumps(self) -> None:
        pass

    def close(self) -> None:
        self.asked.append("closed")

    def _ask(self, *what: object) -> None:
        if self.is_gone:
            raise LaunchError("the server is gone")
        self.asked.append(what)


def exited(rank: int, at_s: float = 1.0) -> Event:
    """Return the end of a rank."""
    return make_event(at_s, rank, "exited", {"code": 0, "signal": None})


@pytest.fixture
def shares() -> Iterator[list[Share]]:
    """Two hosts with two ranks each."""
    found = [Share((0, 1)), Share((2, 3))]
    yield found
    for each in found:
        each.ours.close()
        each.theirs.close()


def joined(shares: list[Share]) -> CompositeWorld:
    """Return the world of these parts."""
    return CompositeWorld(shares, survives_loss=True)


def test_events_of_all_hosts_come_in_order(shares) -> None:
    """By their times, which are of one machine."""
    world = joined(shares)
    shares[0].says(exited(0, 2.0))
    shares[1].says(exited(3, 1.0))
    assert [event.rank for event in world.wait(1.0)] == [3, 0]


def test_a_lost_host_has_killed_those_that_lived(shares) -> None:
    """Once, and not the rank that had ended before; the other host is still heard."""
    world = joined(shares)
    shares[1].says(exited(2))
    assert [event.rank for event in world.wait(1.0)] == [2]
    shares[1].says(gone=True)
    (death,) = world.wait(1.0)
    assert (death.rank, death.body.signal) == (3, 9)
    shares[0].says(exited(0))
    assert [event.rank for event in world.wait(1.0)] == [0]


def test_a_host_that_cannot_be_asked_is_lost(shares) -> None:
    """That a request fails may be the first sign; its deaths are told with the next events."""
    world = joined(shares)
    shares[1].is_gone = True
    world.request_dumps([0, 2], "main")
    assert shares[0].asked == [("dumps", [0])]
    assert [event.rank for event in world.wait(1.0)] == [2, 3]
    world.send(3, Frame(Release("go")))
    assert shares[1].asked == ["closed"]


def test_the_end_is_begun_everywhere_before_it_is_awaited(shares) -> None:
    """One grace for all, and what each has found."""
    ending = joined(shares).end(grace_s=2.0)
    assert [share.asked for share in shares] == [[("end", 2.0), "closed"]] * 2
    assert [event.rank for event in ending.events] == [0, 2]
    assert ending.leftovers == ("left by [0, 1]", "left by [2, 3]")


def test_the_end_survives_a_lost_host(shares) -> None:
    """Its ranks count as killed."""
    shares[0].is_gone = True
    ending = CompositeWorld(shares, survives_loss=True).end(grace_s=0.0)
    killed = {event.rank for event in ending.events if event.body.signal}
    assert (killed, ending.leftovers) == ({0, 1}, ("left by [2, 3]",))


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        (["/a", "/a/b", "/a"], ["/a"]),
        (["/a/b", "/a"], ["/a"]),
        (["/a", "/ab"], ["/a", "/ab"]),
        ([], []),
    ],
)
def test_what_lies_in_another_is_mounted_with_it(paths: list[str], left: list[str]) -> None:
    """Beneath it, not merely beginning with its name."""
    assert [str(path) for path in outermost([*map(Path, paths)])] == left


def test_only_what_a_dead_process_of_this_machine_has_left_is_removed() -> None:
    """Neither what lives, nor what another machine or another boot has made."""
    started_s = psutil.Process().create_time()
    pid = os.getpid()
    assert not is_orphaned(f"{BOOT}/{pid}/{started_s:.2f}")
    assert is_orphaned(f"{BOOT}/{pid}/{started_s - 5:.2f}"), "the number was given away again"
    assert is_orphaned(f"{BOOT}/99999999/{started_s:.2f}")
    assert not is_orphaned(f"another-boot/99999999/{started_s:.2f}")
    assert not is_orphaned("something else")


@pytest.mark.parametrize(
    ("name", "is_carried"),
    [
        ("PYTEST_ADDOPTS", True),
        ("PYTHONHASHSEED", True),
        ("NCCL_DEBUG", True),
        ("XLA_FLAGS", True),
        ("PATH", False),
        ("PYTHONPATH", False),
        ("PYTHONHOME", False),
        ("LD_LIBRARY_PATH", False),
        ("HOME", False),
        ("AWS_SECRET_ACCESS_KEY", False),
    ],
)
def test_a_container_gets_what_means_the_same_there(name: str, is_carried: bool) -> None:
    """No path of this machine's, and no secret that nobody has named."""
    assert bool(_CARRIED.fullmatch(name)) == is_carried


def test_a_container_for_which_there_is_no_descriptor_is_an_error_that_says_what_to_do() -> None:
    """The controller listens for it, which takes a socket."""
    spec = ContainerSpec(image="any", python="python3", shared=(), cwd=Path("/"))
    launcher = ContainerLauncher(spec, {"server": lambda _: None}, _engine=object())  # type: ignore[arg-type, dict-item]
    world = replace(make_spec(2), hosts=Hosts("docker"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(LaunchError, match="container for host-0 could not be started") as error:
            launcher.start(world, directory=Path("/"), scratch=Path("/"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "ulimit -n" in error.value.remedy
