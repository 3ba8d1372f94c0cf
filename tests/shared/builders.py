"""Parts of worlds made by hand, for tests of the judgement."""

from __future__ import annotations

from pytest_multihost.core.model.event import Event
from pytest_multihost.testing import exited, make_event, well_behaved


def history_of_a_hang(size: int, *, ended_s: float = 19.0) -> list[Event]:
    """Return the events of ranks that reach the test's body, stay there and are then ended."""
    history = [
        make_event(0.0, rank, step.kind, step.detail)
        for rank in range(size)
        for step in well_behaved(rank, stays_in="call")
    ]
    ended = {**exited(signal=15), "by_harness": True}
    return [*history, *(make_event(ended_s, rank, "exited", ended) for rank in range(size))]
