"""sweep.json: what is written is read again, and readers find the texts that they need."""

from __future__ import annotations

import json
import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from sweeps import DIFFERS, NOT_SWEPT, OTHERS, SOUND, SWEEP, UNSURE, disturbance

from pytest_multihost import at, faults
from pytest_multihost.extensions.sweep.record import read_sweep, sweep_record, write_sweep
from pytest_multihost.extensions.sweep.result import DisturbedRun, SweepResult, Weakness
from pytest_multihost.testing import MultihostError

pytestmark = pytest.mark.unit

CONTRACT = Path(__file__).parents[3] / "docs" / "results.md"


@pytest.mark.parametrize(
    "result", [SWEEP, UNSURE, SOUND, NOT_SWEPT], ids=["weak", "unsure", "sound", "not swept"]
)
def test_a_sweep_is_read_as_it_was_written(result: SweepResult, tmp_path: Path) -> None:
    """A sweep goes on, and its page is made again, from the file."""
    assert read_sweep(write_sweep(tmp_path, result)) == result


def test_a_part_of_a_sweep_that_an_earlier_version_ran_is_read(tmp_path: Path) -> None:
    """Its pages can be made again, and the sweep goes on from it."""
    path = write_sweep(tmp_path, SWEEP)
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**record, "shard": [1, 2]}), encoding="utf-8")
    assert replace(read_sweep(path), shard=None) == SWEEP


def test_a_value_that_is_no_number_of_json_survives(tmp_path: Path) -> None:
    """A loss that becomes NaN."""
    fault = faults.returns(rank=1, value=math.nan, at=at.call("train:loss"))
    run = replace(DIFFERS, disturbance=disturbance("differs", fault, OTHERS, None))
    path = write_sweep(tmp_path, replace(SOUND, runs=(run,)))
    assert "NaN" not in path.read_text(encoding="utf-8")
    [again] = read_sweep(path).runs
    assert math.isnan(again.disturbance.fault.params["value"])


def test_readers_find_the_texts_of_a_weakness() -> None:
    """Without knowing how they are made."""
    weakness = sweep_record(SWEEP)["weaknesses"][0]  # type: ignore[index, call-overload]
    assert weakness["text"] == "ranks 1-3 wait in barrier #4 for rank 0, which has failed"
    assert weakness["witness"]["done"].startswith("rank 0's rename of */ckpt/step_5.tmp failed")
    assert weakness["mending"]["page"] == "docs/patterns.md#agree-on-errors"
    assert weakness["replay"].endswith("--multihost-replay 7f3a")


def test_readers_find_whether_a_repeat_has_shown_a_weakness_again() -> None:
    """A weakness for which that is false fails no test."""
    for result, confirmed in ((SWEEP, True), (UNSURE, False)):
        weakness = sweep_record(result)["weaknesses"][0]  # type: ignore[index, call-overload]
        assert weakness["confirmed"] is confirmed


@pytest.mark.parametrize("text", ["", "[]", '{"schema": "pytest-multihost-hangs/sweep/1"}'])
def test_a_file_that_is_no_sweep_is_refused_by_name(text: str, tmp_path: Path) -> None:
    """It may be half a file of a run that was killed."""
    path = tmp_path / "sweep.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MultihostError, match=re.escape(str(path))):
        read_sweep(path)


@pytest.mark.parametrize("value", [SweepResult, DisturbedRun, Weakness])
def test_the_contract_names_every_field(value: type) -> None:
    """A field that nobody can look up is no part of it."""
    contract = CONTRACT.read_text(encoding="utf-8")
    names = {each.name.removesuffix("_") for each in fields(value)}
    assert [name for name in sorted(names) if f"`{name}`" not in contract] == []


@pytest.mark.parametrize(
    "result", [SWEEP, UNSURE, SOUND, NOT_SWEPT], ids=["weak", "unsure", "sound", "not swept"]
)
def test_a_sweep_has_the_schema_that_the_guide_offers(result: SweepResult) -> None:
    """With every field that is written, also those that only people read."""
    jsonschema = pytest.importorskip("jsonschema")
    path = CONTRACT.parent / "schema" / "sweep.schema.json"
    schema = json.loads(path.read_text(encoding="utf-8"))
    record = sweep_record(result)
    jsonschema.validate(record, schema)
    assert record.keys() == schema["properties"].keys()


def test_the_example_of_the_contract_is_a_sweep() -> None:
    """It can be read as one, and has the keys that are written."""
    page = CONTRACT.read_text(encoding="utf-8").partition("<!-- example: sweep -->")[2]
    text = page.partition("```json\n")[2].partition("```")[0]
    example = json.loads(text)
    assert example.keys() == sweep_record(SWEEP).keys()
    assert example["weaknesses"][0].keys() == sweep_record(SWEEP)["weaknesses"][0].keys()  # type: ignore[index, call-overload, union-attr]
