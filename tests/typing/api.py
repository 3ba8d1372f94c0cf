"""What a user writes, checked by mypy and never run.

An error here is a change that breaks somebody's type check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import assert_type

from pytest_multihost import (
    MultihostError,
    NoWorldError,
    World,
    WorldBrokenError,
    current_world,
)
from pytest_multihost.core.backends import Backend
from pytest_multihost.core.launch import Launcher, RunningWorld
from pytest_multihost.testing import (
    Event,
    ManualClock,
    RankSpec,
    ScriptedLauncher,
    Step,
    make_dump,
    make_spec,
    well_behaved,
)


def in_a_test(world: World, shared_tmp_path: Path) -> None:
    """Use the world as a test does."""
    assert_type(world.rank, int)
    assert_type(world.size, int)
    assert_type(world.is_primary, bool)
    assert_type(world.backend, str)
    assert_type(world.host, str)
    assert_type(world.devices, Sequence[object])
    assert_type(world.shared_directory, Path)
    assert_type(world.clock.now(), float)
    assert_type(world.clock.jumps, int)
    assert_type(world.clock.is_jumping, bool)
    world.barrier()
    world.barrier("loaded")
    world.sync_point("before-commit")
    assert_type(world.gather(world.rank), list[int])
    assert_type(world.gather({"loss": 0.5}, name="losses"), list[dict[str, float]])
    assert_type(world.broadcast(shared_tmp_path), Path)
    assert_type(world.broadcast("run-1" if world.is_primary else None), str | None)


def in_code_without_fixtures() -> int:
    """Find the world as a library or a TestCase does."""
    try:
        world = current_world()
    except NoWorldError as error:
        assert_type(error.remedy, str)
        return 0
    assert_type(world, World)
    try:
        world.barrier("ready")
    except WorldBrokenError as error:
        known: MultihostError = error
        raise known from None
    return world.rank


def wrong(world: World) -> None:
    """Make mistakes that a type checker is to find: each `ignore` must be needed."""
    world.rank = 3  # type: ignore[misc]
    world.barrier(3)  # type: ignore[arg-type]
    world.barrier(nome="x")  # type: ignore[call-arg]
    world.nodes  # type: ignore[attr-defined]  # noqa: B018


def a_backend_of_ones_own() -> Backend:
    """Offer a backend; everything but the name and the start has a default."""

    def start(spec: RankSpec) -> None:
        assert_type(spec.world.size, int)
        assert_type(spec.ports, tuple[int, int])

    return Backend(name="mine", start=start, symptoms=(r"peer \d+ is gone",))


def a_test_of_ones_own_launcher() -> Sequence[Event]:
    """Fakes fit where the real ones do: by their methods, without inheritance."""
    clock = ManualClock()
    script = [*well_behaved(0), Step(1, "ready", after_s=0.5)]
    fake = ScriptedLauncher(clock, script)
    launcher: Launcher = fake
    now: Callable[[], float] = clock.now
    world: RunningWorld = launcher.start(make_spec(2), directory=Path(), scratch=Path())
    dump: Callable[..., object] = make_dump
    dump(0, "storage.py:17 read_shard")
    assert_type(now(), float)
    return world.wait(1.0)
