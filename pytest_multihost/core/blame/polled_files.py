"""Ranks that poll for a file whose existence is a lock, and the rank that holds it.

Only the stacks show such a wait: the rank sleeps in a loop that asks for the file. A file that a
living rank has open is its lock. A file that no rank has open was left behind, or a late rank will
make it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pytest_multihost.core.blame.rank_states import RankState
from pytest_multihost.core.model.rank_names import Names
from pytest_multihost.core.model.result import WorldResult
from pytest_multihost.core.model.stack import PolledFile
from pytest_multihost.core.outcome import Finding


def with_polled_files(
    states: Sequence[RankState], result: WorldResult, finding: Finding
) -> tuple[RankState, ...]:
    """Return the states; ranks that poll for a file wait for the rank that has it open."""
    files = {each.rank: each.file for each in result.dumps if each.file is not None}
    pids = {each.facts.pid: each.facts.rank for each in finding.ranks}
    return tuple(_with_file(each, files.get(each.rank), pids, result.spec.names) for each in states)


def _with_file(
    state: RankState, file: PolledFile | None, pids: Mapping[int | None, int], names: Names
) -> RankState:
    if file is None or state.condition != "alive" or state.pending or state.seen.owed:
        return state
    ranks = {pids[pid] for pid in file.holders if pid in pids} - {state.rank}
    note = f"polls for the file {file.path}, {_whose(file, sorted(ranks), names)}"
    seen = replace(state.seen, owed=note)
    if ranks and file.exists:
        held = tuple(sorted({*seen.lock_holders, *ranks}))
        seen = replace(seen, lock_holders=held, tries_lock=True)
    return replace(state, seen=seen)


def _whose(file: PolledFile, ranks: Sequence[int], names: Names) -> str:
    """Return who has made a file, after its name."""
    if not file.exists:
        return "which does not exist"
    made = "" if file.made_s is None else f" made {file.made_s:.0f} s ago"
    if ranks:
        return f"which {names.of(ranks)} has open,{made}"
    if file.holders:
        return f"which process {file.holders[0]} has open,{made}"
    owner = ""
    if file.author:
        owner = (
            f"; it names process {file.author}, which"
            f" {'still runs' if file.is_alive else 'has ended'}"
        )
    return f"which exists,{made}, and which no living process has open{owner}"
