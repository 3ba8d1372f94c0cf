"""Hand-made folders of dumps: every culprit is named, and nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_dumps import WORLD, dump, ended, op
from flight_folders import Folder, brief, guilty, innocents, write

from pytest_multihost.core.blame import Judgement
from pytest_multihost.core.command import page_of
from pytest_multihost.extensions.flight.recording import DumpFolder, read_dumps
from pytest_multihost.extensions.flight.told_world import judge_dumps
from pytest_multihost.testing import SourceContext


def judged(folder: Folder, directory: Path) -> Judgement:
    """Return what follows from a folder."""
    return judge_dumps(write_and_read(folder, directory), folder.name, SourceContext("/"))


def write_and_read(folder: Folder, directory: Path) -> DumpFolder:
    """Return the dumps of a folder, as they are read from its files."""
    write(folder, directory)
    return read_dumps(directory)


@pytest.mark.parametrize("folder", [*guilty()], ids=lambda each: each.name)
def test_all_culprits_of_a_hang_are_named_and_nobody_else(tmp_path: Path, folder: Folder) -> None:
    """In the verdict and in the headline; nobody is certain whose part was not recorded."""
    found = judged(folder, tmp_path).diagnosis
    assert found is not None
    assert found.culprits == folder.culprits
    assert folder.confidence in ("", found.confidence)
    assert {*found.waiting}.isdisjoint(found.culprits)
    marked = "".join(span.text for span in found.headline if span.names == "culprit")
    assert marked


@pytest.mark.parametrize("folder", [*guilty()], ids=lambda each: each.name)
def test_no_note_names_a_culprit_that_the_verdict_does_not(tmp_path: Path, folder: Folder) -> None:
    """A second straggler is as much a culprit as the first."""
    found = judged(folder, tmp_path).diagnosis
    assert found is not None
    assert not [each for each in found.notes if each.startswith("also straggler")]


@pytest.mark.parametrize("folder", [*innocents()], ids=lambda each: each.name)
def test_nobody_is_named_who_only_looks_late_or_odd(tmp_path: Path, folder: Folder) -> None:
    """A page on which nothing hangs shows no rank as hung either."""
    found = judged(folder, tmp_path)
    page = page_of(found, "dumps")
    assert found.diagnosis is None or found.diagnosis.culprits == ()
    assert "►" not in page
    if found.diagnosis is None:
        assert "hung" not in page
        assert {each.outcome for each in found.finding.ranks} == {"passed"}


def test_ranks_without_a_dump_are_named_with_those_that_wait_for_them(tmp_path: Path) -> None:
    """Nothing is known of rank 2 but that three ranks wait for it."""
    folder = next(each for each in guilty() if each.name == "one rank left no dump")
    found = judged(folder, tmp_path).diagnosis
    assert found is not None
    assert (found.culprits, found.waiting) == ((2,), (0, 1, 3))
    assert found.summary == (
        "ranks 0,1,3 wait in all_reduce #2 (world group) for rank 2, of which nothing was recorded"
    )


def test_sizes_that_do_not_match_are_in_the_headline(tmp_path: Path) -> None:
    """The side that is named comes first."""
    folder = next(each for each in guilty() if each.name == "1 of 4 ranks passes another size")
    found = judged(folder, tmp_path).diagnosis
    assert found is not None
    assert found.summary == (
        "rank 2 passes Float[5] to all_reduce #2 (world group), ranks 0,1,3 Float[4]"
    )


def test_the_late_rank_of_a_large_world_of_one_entry_is_named(tmp_path: Path) -> None:
    """Each dump lists all ranks of the world, which are read and kept once."""
    dumps = write_and_read(brief(300), tmp_path)
    assert len({id(each.members[WORLD]) for each in dumps.recordings}) == 1
    found = judge_dumps(dumps, "dumps", SourceContext("/")).diagnosis
    assert found is not None
    assert (found.culprits, found.confidence) == ((151,), "certain")


def test_dumps_may_list_the_members_of_a_group_in_any_order(tmp_path: Path) -> None:
    """They are one group."""
    orders = {0: (0, 1, 2), 1: (2, 1, 0), 2: (0, 2, 1)}
    launched = {rank: [ended("all_reduce", 1), op("all_reduce", 2)] for rank in (0, 2)}
    dumps = {
        rank: dump(*launched.get(rank, [ended("all_reduce", 1)]), groups={WORLD: order})
        for rank, order in orders.items()
    }
    found = judged(Folder("orders", dumps), tmp_path).diagnosis
    assert found is not None
    assert (found.culprits, found.waiting) == ((1,), (0, 2))
