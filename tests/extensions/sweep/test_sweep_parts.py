"""Parts of a checkpoint, one of each rank: they lie together, and a published folder has all."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from pytest_multihost.extensions.sweep.saved import (
    Acts,
    SavedFile,
    SavedFiles,
    acts_of,
    find_damage,
)
from pytest_multihost.testing import Point, RecordedPoint

pytestmark = pytest.mark.unit


def saved(*paths: str, **names: tuple[str, ...]) -> SavedFiles:
    """Return files of weights, and texts with names in them: ``index=(...)``."""
    weights = {path: SavedFile(8, "zip") for path in paths}
    texts = {f"{name}.json": SavedFile(8, "json", names=each) for name, each in names.items()}
    return SavedFiles({**weights, **texts})


def by_ranks(*paths: str, **more: tuple[str, ...]) -> Acts:
    """Return that each rank has made one of these files."""
    return Acts({path: rank for rank, path in enumerate(paths)}, **more)


def found(usual: SavedFiles, now: SavedFiles, acts: Acts) -> list[str]:
    """Return what is wrong, as texts."""
    return [str(each) for each in find_damage(usual, now, acts)]


HOUR = ("run-2026_09/shard-0.pt", "run-2026_09/shard-1.pt", "run-2026_09/shard-2.pt")
SPLIT = ("run-2026_10/shard-0.pt", "run-2026_11/shard-1.pt", "run-2026_10/shard-2.pt")


def test_parts_of_ranks_lie_in_one_folder() -> None:
    """A folder that each rank has named after its own clock has the part of that rank alone."""
    [text] = found(saved(*HOUR), saved(*SPLIT), by_ranks(*HOUR))
    assert text.startswith("run-2026_11/shard-1.pt is apart")
    assert found(saved(*HOUR), saved(*HOUR), by_ranks(*HOUR)) == []


def test_files_of_one_rank_may_lie_in_several_folders() -> None:
    """It may begin a new one each hour."""
    acts = Acts(dict.fromkeys(HOUR, 0))
    assert found(saved(*HOUR), saved(*SPLIT), acts) == []


def test_folders_that_are_apart_in_any_run_are_meant_so() -> None:
    """Each rank has a folder of its own, whose name also has the time."""
    own = ("replica-0-09/w.pt", "replica-1-09/w.pt")
    later = ("replica-0-09/w.pt", "replica-1-11/w.pt")
    assert found(saved(*own), saved(*later), by_ranks(*own)) == []


PARTS = ("step-3/shard-0.pt", "step-3/shard-1.pt")


def test_a_folder_that_got_its_last_name_has_all_parts() -> None:
    """Whoever looks for it by that name takes it for whole."""
    acts = by_ranks(*PARTS, published=("step-3",))
    [text] = found(saved(*PARTS), saved(PARTS[0]), acts)
    assert text == "step-3 has its last name and lacks shard-1.pt"
    assert find_damage(saved(*PARTS), saved(PARTS[0]), acts)[0].is_vouched
    assert found(saved(*PARTS), saved("old.pt"), acts) == []
    assert found(saved(*PARTS), saved(PARTS[0]), by_ranks(*PARTS)) == []


def test_a_checkpoint_for_which_older_ones_are_removed_has_all_parts() -> None:
    """If the older ones are still there, the program has noticed."""
    acts = by_ranks(*PARTS, removed=("*/step-1/shard-0.pt", "*/step-1/shard-1.pt"))
    [text] = found(saved(*PARTS), saved(PARTS[0]), acts)
    assert text == "step-3 lacks shard-1.pt, although older ones were removed"
    assert found(saved(*PARTS), saved(PARTS[0], "step-1/shard-0.pt"), acts) == []


def test_an_index_names_the_weights_that_are_there() -> None:
    """A part that a rank did not see in a listing is in no index."""
    usual = saved("m-0.pt", "m-1.pt", index=("m-0.pt", "m-1.pt"))
    now = saved("m-0.pt", "m-1.pt", index=("m-0.pt",))
    assert found(usual, now, Acts()) == ["index.json does not name m-1.pt, which is there"]
    other = saved("m-0.pt", "m-1.pt", index=("m-0.pt", "m-9.pt"))
    assert "does not name" not in json.dumps(found(usual, other, Acts()))


def at(rank: int, call: str, name: str, *, other: str = "", makes: bool = False) -> RecordedPoint:
    """Return a call of a rank on a file in the folder that ranks share."""
    return RecordedPoint(rank, Point("io", f"*/{name}", call=call), 0, other=other, makes=makes)


def test_a_file_in_a_folder_that_is_renamed_was_made_by_who_wrote_it() -> None:
    """The names of points are those at the time of the call."""
    points: Mapping[int, list[RecordedPoint]] = {
        0: [
            at(0, "open", "step.tmp/a-0.pt", makes=True),
            at(0, "open", "log", makes=True),
            at(0, "rename", "step", other="*/step.tmp", makes=True),
            at(0, "unlink", "old/a-0.pt"),
        ],
        1: [at(1, "open", "step.tmp/a-1.pt", makes=True), at(1, "open", "log", makes=True)],
    }
    acts = acts_of(points, ["step/a-0.pt", "step/a-1.pt", "log"])
    assert acts.makers == {"step/a-0.pt": 0, "step/a-1.pt": 1}
    assert (acts.published, acts.removed) == (("step",), ("*/old/a-0.pt",))


def test_a_name_with_a_date_is_known_by_its_glob() -> None:
    """Points at files whose names differ in each run have globs."""
    points = {0: [at(0, "open", "run-*_09/a.pt", makes=True)]}
    assert acts_of(points, ["run-2026-11-29_09/a.pt"]).makers == {"run-2026-11-29_09/a.pt": 0}
