"""How far the hosts' clocks are apart, as far as dumps tell.

Nothing is judged by times across hosts but whether dumps were taken while ranks still moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from pytest_multihost.flight.recording import Recording

_LEAST = 5
"""Of fewer collectives in common no difference of clocks is derived: ranks enter them apart."""

_MATTERS_S = 1.0


def clocks_ahead_s(recordings: Sequence[Recording]) -> Mapping[int, float]:
    """Return by rank how many seconds its clock is ahead of the first rank's; mostly 0.

    Ranks meet in their collectives. If one always comes seconds later, its clock is ahead.
    """
    times = {each.rank: _times_s(each) for each in recordings}
    found: dict[int, float] = {}
    for rank, own in times.items():
        found[rank] = 0.0
        for other in found.keys() - {rank}:
            common = own.keys() & times[other].keys()
            if len(common) >= _LEAST:
                apart_s = median(own[each] - times[other][each] for each in common)
                found[rank] = found[other] + (apart_s if abs(apart_s) > _MATTERS_S else 0.0)
                break
    return found


def _times_s(recording: Recording) -> Mapping[tuple[str, int], float]:
    """Return when a rank has entered the collectives that are over."""
    return {
        (each.process_group[0], each.collective_seq_id): each.time_created_ns / 1e9
        for each in recording.entries
        if not each.is_p2p and (each.retired or each.state == "completed")
    }
