"""The world as ranks see it: three of them in three threads, with the controller's own exchange."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import pytest_multihost
from pytest_multihost import NoWorldError, World, WorldBrokenError
from pytest_multihost.core.backends import NONE
from pytest_multihost.core.launch import Answers, Decoder, HarnessCollectives, WireFrame, encode
from pytest_multihost.core.rank.recorder import Recorder
from pytest_multihost.core.slots import SlotPage
from pytest_multihost.testing import ExchangeEntered, RankSpec, ToRank, from_json, make_spec

SIZE = 3


class Controller:
    """Answers exchanges as the engine does, and keeps everything that ranks told."""

    def __init__(self, pages: Path) -> None:
        self.pages = pages
        self._exchange = HarnessCollectives(SIZE)
        self._lock = threading.Lock()
        self.inboxes: list[SimpleQueue[WireFrame[ToRank]]] = [SimpleQueue() for _ in range(SIZE)]
        self.told: list[Mapping[str, Any]] = []

    def hear(self, rank: int, frame: WireFrame[Mapping[str, Any]]) -> None:
        with self._lock:
            self.told.append(frame.message)
            if frame.message["kind"] == "exchange":
                self._answer(
                    self._exchange.enter(
                        rank, from_json(ExchangeEntered, frame.message), frame.payload
                    )
                )

    def lose(self, rank: int, why: str) -> None:
        with self._lock:
            self._answer(self._exchange.mark_lost(rank, why))

    def _answer(self, answers: Answers) -> None:
        for rank, frame in answers.items():
            # Through JSON, as over a socket.
            self.inboxes[rank].put(Decoder[ToRank](ToRank).feed(encode(frame))[0])


@dataclass
class Wire:
    """Stands for a rank's channel."""

    controller: Controller
    rank: int
    kept: list[WireFrame[ToRank]] = field(default_factory=list)

    def send(self, header: Mapping[str, Any], payload: bytes = b"") -> None:
        self.controller.hear(self.rank, Decoder().feed(encode(WireFrame(header, payload)))[0])

    def receive(self, wanted: Callable[[ToRank], bool]) -> WireFrame[ToRank]:
        frame = self.controller.inboxes[self.rank].get(timeout=5)
        assert wanted(frame.message), f"{frame.message} is not what the rank waits for"
        return frame


Everywhere = Callable[[Callable[[World], Any]], list[Any]]


@pytest.fixture
def controller(tmp_path: Path) -> Controller:
    """Return the controller of three ranks."""
    return Controller(tmp_path)


def world_of(controller: Controller, rank: int) -> World:
    """Return the world of one of the ranks."""
    spec = RankSpec(world=make_spec(SIZE), rank=rank, directory="/d", scratch="/s", ports=(1, 2))
    page = SlotPage.create(Path(tempfile.mkdtemp(dir=controller.pages), "slots"))
    recorder = Recorder(page, rank, SIZE)
    return World(spec, NONE, Wire(controller, rank), recorder)  # type: ignore[arg-type]


@pytest.fixture
def everywhere(controller: Controller) -> Iterator[Everywhere]:
    """Run a function on the world of every rank at once, and return what each returned."""
    worlds = [world_of(controller, rank) for rank in range(SIZE)]
    with ThreadPoolExecutor(SIZE) as pool:
        yield lambda body: list(pool.map(body, worlds, timeout=5))


def test_a_real_clock_is_the_machines_and_never_jumps(controller: Controller) -> None:
    """It is there in every world, so that code need not ask which clock it has."""
    clock, before_s = world_of(controller, 0).clock, time.monotonic()
    assert before_s <= clock.now() <= time.monotonic()
    assert (clock.jumps, clock.is_jumping) == (0, False)
    assert repr(clock).endswith(" after 0 jumps>")


def test_a_rank_knows_its_place(controller: Controller) -> None:
    """What a test asks for most, and how the rank is called in a message."""
    first, last = world_of(controller, 0), world_of(controller, 2)
    assert (last.rank, last.size, last.backend, last.host) == (2, 3, "none", "localhost")
    assert (first.is_primary, last.is_primary) == (True, False)
    assert (list(last.devices), last.shared_directory) == ([], Path("/s/shared"))
    assert repr(last) == "<World: rank 2 of 3, none>"


def test_a_barrier_can_be_passed_again_and_again(everywhere: Everywhere) -> None:
    """Without a name, and in a loop: each time all meet anew."""
    assert everywhere(lambda world: [world.barrier() for _ in range(3)]) == [[None] * 3] * SIZE


def test_a_gather_returns_what_every_rank_gave(everywhere: Everywhere) -> None:
    """In order of rank, on every rank, and any object that can be pickled."""
    found = everywhere(lambda world: world.gather({"rank": world.rank, "set": {world.rank}}))
    assert found == [[{"rank": rank, "set": {rank}} for rank in range(SIZE)]] * SIZE


def test_a_broadcast_returns_what_the_primary_gave(everywhere: Everywhere) -> None:
    """What the others pass is not even looked at: it may be what cannot be pickled."""
    found = everywhere(lambda world: world.broadcast(["seed"] if world.is_primary else print))
    assert found == [["seed"]] * SIZE
    unpicklable = everywhere(lambda w: w.broadcast(1 if w.is_primary else (_ for _ in ())))
    assert unpicklable == [1] * SIZE


def test_who_waits_for_a_lost_rank_is_told(controller: Controller) -> None:
    """By an error that says whose loss it is, and that is known as a symptom."""
    controller.lose(2, "raised KeyError")
    with pytest.raises(WorldBrokenError, match="barrier 'x' can never complete: rank 2 raised"):
        world_of(controller, 0).barrier("x")


def test_a_sync_point_waits_for_nobody(controller: Controller) -> None:
    """It is only noted, with its name and when it was passed."""
    world_of(controller, 1).sync_point("before-commit")
    [told] = controller.told
    assert (told["kind"], told["name"]) == ("sync_point", "before-commit")
    assert told["at_s"] > 0


def test_outside_of_a_rank_there_is_no_world() -> None:
    """The error says what to do."""
    with pytest.raises(NoWorldError, match=r"@pytest\.mark\.multihost"):
        pytest_multihost.current_world()
