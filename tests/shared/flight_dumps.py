"""Dumps of torch's flight recorder, made by hand."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_multihost.core.blame import Judgement
from pytest_multihost.extensions.flight.recording import read_dumps
from pytest_multihost.extensions.flight.told_world import judge_dumps
from pytest_multihost.testing import SourceContext

START_S = 1_795_000_000.0
WORLD = "0"
TENSORS = {
    "input_sizes": [[4]],
    "input_dtypes": ["Float"],
    "output_sizes": [[4]],
    "output_dtypes": ["Float"],
}


def op(name: str, sequence: int, group: str = WORLD, **more: object) -> dict[str, Any]:
    """Return a collective that a rank has launched; without `state` it is open."""
    return {
        "name": name,
        "process_group": (group, "default_pg" if group == WORLD else "undefined"),
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "is_p2p": False,
        "state": "scheduled",
        **more,
    }


def ended(name: str, sequence: int, group: str = WORLD, **more: object) -> dict[str, Any]:
    """Return a collective whose end was seen."""
    return op(name, sequence, group, state="completed", retired=True, **more)


def p2p(name: str, sequence: int, group: str = WORLD, **more: object) -> dict[str, Any]:
    """Return a send or receive: `name` is as torch writes it, ``send 0->1``."""
    return op(name, 0, group, p2p_seq_id=sequence, is_p2p=True, **more)


def dump(
    *entries: Mapping[str, Any],
    groups: Mapping[str, Sequence[int]],
    backend: str = "nccl",
    status: Mapping[str, tuple[int, int]] | None = None,
    first: int = 0,
    ahead_s: float = 0.0,
    version: str = "2.10",
) -> dict[str, Any]:
    """Return what a rank dumps.

    Args:
        entries: What it has launched, in order, a second apart unless they have an `at_s`.
        groups: Its groups: name and members.
        backend: Which performs them.
        status: Of each group the last operation launched, and the last whose end was seen.
        first: How many operations before them were overwritten.
        ahead_s: How far its clock is ahead.
        version: Of the format.
    """
    numbers = {name: number for number, name in enumerate(groups)}
    made = []
    for index, each in enumerate(entries):
        entry = {**TENSORS, "retired": False, **each}
        at_s = START_S + ahead_s + entry.pop("at_s", float(index))
        entry["profiling_name"] = f"{backend}:{entry.pop('name')}"
        entry["record_id"] = entry["op_id"] = first + index
        entry["pg_id"] = numbers[entry["process_group"][0]]
        entry["time_created_ns"] = int(at_s * 1e9)
        made.append(entry)
    return {
        "version": version,
        "pg_config": {
            name: {"name": name, "desc": "undefined", "ranks": str(list(ranks))}
            for name, ranks in groups.items()
        },
        "pg_status": {
            str(numbers[name]): {
                "last_enqueued_collective": launched,
                "last_started_collective": -1,
                "last_completed_collective": completed,
            }
            for name, (launched, completed) in (status or {}).items()
        },
        "entries": made,
    }


def judged(
    folder: Path,
    dumps: Mapping[int, Mapping[str, Any]],
    *,
    dumped_s: Mapping[int, float] | None = None,
) -> Judgement:
    """Return what follows from dumps that were taken some seconds after the world began."""
    for rank, each in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}"
        path.write_bytes(pickle.dumps(dict(each)))
        at_s = START_S + (dumped_s or {}).get(rank, 600.0)
        os.utime(path, (at_s, at_s))
    return judge_dumps(read_dumps(folder), "dumps", SourceContext("/"))
