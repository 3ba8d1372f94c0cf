"""Writes and reads sweep.json: the result of a sweep, with texts for readers.

Its contract is docs/results.md.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.json_values import (
    Json,
    JsonError,
    finite,
    from_json,
    parse_foreign,
    to_json,
)
from pytest_multihost.core.model.regular_file import read_regular
from pytest_multihost.core.model.setting_values import MAX_RANKS
from pytest_multihost.extensions.sweep.file_names import SWEEP_NAME
from pytest_multihost.extensions.sweep.references import report_of
from pytest_multihost.extensions.sweep.result import DisturbedRun, SweepResult, Weakness
from pytest_multihost.extensions.sweep.words import (
    disturbance_text,
    mending,
    rating_text,
    replay_command,
    survives_text,
    waits_text,
)

_NUMBERS: Mapping[str, float] = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
"""The numbers that JSON lacks, by the texts that replace them."""

MAX_BYTES, _MAX_WHY = 1 << 25, 300
"""The maximum size of a sweep.json, and of the reason why one cannot be used."""


def sweep_record(result: SweepResult) -> dict[str, Json]:
    """Return the content of sweep.json."""
    return {
        **_plain(to_json(result)),
        "survives": survives_text(result),
        "runs": [_run_record(each) for each in result.runs],
        "weaknesses": [_weakness_record(result, each) for each in result.weaknesses],
    }


def _run_record(run: DisturbedRun) -> dict[str, Json]:
    texts = {"done": disturbance_text(run.disturbance), "text": waits_text(run)}
    return {**_plain(to_json(run)), **texts}


def _weakness_record(result: SweepResult, weakness: Weakness) -> dict[str, Json]:
    cure = mending(weakness.witness)
    return {
        **_plain(to_json(weakness)),
        "witness": _run_record(weakness.witness),
        "confirmed": weakness.is_confirmed,
        "text": waits_text(weakness.witness),
        "mending": {"advice": cure.advice, "page": cure.page},
        "rating_text": rating_text(weakness),
        "seen_in": report_of(weakness.witness.disturbance.fault),
        "replay": replay_command(result, weakness.witness),
    }


def _plain(record: Mapping[str, Json]) -> dict[str, Json]:
    """Return a record with NaN and infinity as texts."""
    return {name: finite(value) for name, value in record.items()}


def write_sweep(directory: Path, result: SweepResult) -> Path:
    """Write sweep.json into a folder, and return its path.

    Raises:
        OSError: The file cannot be written.
    """
    text = json.dumps(sweep_record(result), indent=1, allow_nan=False)
    files.write(directory / SWEEP_NAME, text + "\n")
    return directory / SWEEP_NAME


def read_sweep(path: Path) -> SweepResult:
    """Return the result in a sweep.json.

    Raises:
        MultihostError: The file cannot be read, or is not a result of a sweep.
    """
    try:
        data = parse_foreign(read_regular(path, max_bytes=MAX_BYTES))
        return _checked(from_json(SweepResult, _with_numbers(data)))
    except (OSError, JsonError) as error:
        raise MultihostError(
            f"{path} cannot be used as the result of a sweep",
            seen=str(error)[:_MAX_WHY],
            remedy="Sweep the test again with this version of pytest-multihost-hangs.",
        ) from error


def _checked(result: SweepResult) -> SweepResult:
    """Return a result whose numbers of runs and ranks can be.

    Raises:
        JsonError: A number is none of a run or of a rank.
    """
    if not 1 <= result.world_size <= MAX_RANKS:
        raise JsonError(f"world_size: {result.world_size} is not between 1 and {MAX_RANKS}")
    count = len(result.runs)
    for each in result.weaknesses:
        for number in (*each.shown_by, *(one.run for one in each.unsteady)):
            if not 0 <= number < count:
                raise JsonError(f"weaknesses: run {number} is none of its {count} runs")
    return result


def sweeps_of(run: Path) -> list[SweepResult]:
    """Return the sweeps of a run of pytest; skips files that cannot be read."""
    found = []
    for path in sorted(run.glob(f"*/{SWEEP_NAME}")):
        with contextlib.suppress(MultihostError):
            found.append(read_sweep(path))
    return found


def _with_numbers(value: Json) -> Json:
    """Return a JSON value with the parameters of the fault `returns` as numbers again."""
    if isinstance(value, list):
        return [_with_numbers(each) for each in value]
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "returns" and isinstance(params := value.get("params"), dict):
        numbers = {
            name: _NUMBERS.get(each, each) if isinstance(each, str) else each
            for name, each in params.items()
        }
        return {**value, "params": numbers}
    return {name: _with_numbers(each) for name, each in value.items()}
