"""Run scripted worlds: `run_world` with a clock that only we move and ranks that only we know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_multihost.core.engine import Surroundings, run_world
from pytest_multihost.core.launch import RunningWorld
from pytest_multihost.testing import (
    Dump,
    ManualClock,
    RankSnapshot,
    Release,
    ScriptedLauncher,
    Step,
    WorldResult,
    make_dump,
    make_spec,
)


@dataclass(frozen=True)
class Ran:
    """A world that has come to its end."""

    result: WorldResult
    launcher: ScriptedLauncher

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.result.ended_s - self.result.started_s

    def _since_start(self, at_s: float) -> float:
        return at_s - self.result.started_s

    def gates(self, *, rank: int | None = None) -> list[Any]:
        """Return the gates that were opened, with the time, and with the rank unless one is given.

        What was sent, not what the history says: only the frame frees a rank.
        """
        opened = [
            (self._since_start(at_s), to, frame.message.gate)
            for at_s, to, frame in self.launcher.sent
            if isinstance(frame.message, Release)
        ]
        if rank is None:
            return opened
        return [(at_s, gate) for at_s, to, gate in opened if to == rank]

    def answers(self, rank: int) -> list[Any]:
        """Return the answers to the rank's exchanges: when, and what kind or error."""
        return [
            (self._since_start(at_s), getattr(frame.message, "error", type(frame.message).__name__))
            for at_s, to, frame in self.launcher.sent
            if to == rank and not isinstance(frame.message, Release)
        ]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Ran]:
    """Run a script; see the arguments."""

    def run(
        script: Sequence[Step],
        *,
        size: int = 2,
        timeout_s: float = 60.0,
        startup_timeout_s: float = 30.0,
        error: BaseException | None = None,
        error_at_s: float = 0.0,
        launched_by: type[ScriptedLauncher] = ScriptedLauncher,
        **surroundings: Any,  # noqa: ANN401 - fields of Surroundings
    ) -> Ran:
        # Not started at 0, so that a moment cannot be taken for a duration.
        clock = ManualClock(1000.0)
        launcher = launched_by(clock, script, error=error, error_at_s=error_at_s)

        def dumper(
            world: RunningWorld, ranks: Sequence[int], _: Path, __: Sequence[RankSnapshot]
        ) -> tuple[Dump, ...]:
            assert launcher.ended == [], "a rank that has been ended has no stack"
            world.request_dumps(ranks, "threads")
            return tuple(make_dump(rank, "test_it.py:1 test_it") for rank in ranks)

        spec = make_spec(size, timeout_s=timeout_s, startup_timeout_s=startup_timeout_s)
        surroundings = Surroundings(
            launcher=launcher,
            dumper=dumper,
            now=clock.now,
            directory=tmp_path,
            scratch=tmp_path,
            **surroundings,
        )
        return Ran(run_world(spec, surroundings), launcher)

    return run
