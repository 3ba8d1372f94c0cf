"""Which results a call could have had on its rank alone, judged on hand-made records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pytest_multihost.extensions.sweep.local_decisions.decisions import (
    OtherResult,
    local_decisions,
    other_results,
)
from pytest_multihost.extensions.sweep.local_decisions.facts import (
    ClockRead,
    Seen,
    SeenByRank,
    SeenCall,
)
from pytest_multihost.testing import Place

pytestmark = pytest.mark.unit

HERE = Place("train.py", 10, "train")


def truth(value: bool) -> Seen:
    """Return a truth value."""
    return Seen("truth", str(value), str(value))


def whole(value: int) -> Seen:
    """Return a whole number."""
    return Seen("whole", str(value), str(value))


def number(value: float) -> Seen:
    """Return a measured number."""
    return Seen("number", str(value), str(value), is_measured=True)


def entries(length: int) -> Seen:
    """Return a list."""
    return Seen("list", str(length), f"list of {length}")


NONE = Seen("none", "None", "None")
FALSE, TRUE = truth(False), truth(True)
ARRAY = Seen("array", "8", "a", is_measured=True, is_array=True)
OTHER_ARRAY = replace(ARRAY, digest="b")


def calls(target: str, *results: Seen, **facts: object) -> list[SeenCall]:
    """Return calls of one function at one line, with the same facts."""
    return [
        SeenCall(target=f"train:{target}", nth=nth, result=each, at=HERE, **facts)  # type: ignore[arg-type]
        for nth, each in enumerate(results, 1)
    ]


def found(*ranks: Sequence[SeenCall], made: Sequence[str] = ()) -> list[OtherResult]:
    """Return what is found in the calls of each rank."""
    records = {
        rank: SeenByRank(tuple(each), made=frozenset(made)) for rank, each in enumerate(ranks)
    }
    return list(other_results(records))


def values(results: Sequence[OtherResult], rank: int = 0) -> list[tuple[int, str]]:
    """Return number of the call and value of a rank's results."""
    return [(each.nth, str(each.value)) for each in results if each.rank == rank]


# Decisions that a rank takes from what it alone sees


def test_a_truth_from_measured_numbers_that_differ_may_be_the_other_truth() -> None:
    """As of early stopping from a metric of the rank's own data; at the first and the last call."""
    first = calls("is_worse", FALSE, FALSE, FALSE, inputs=(number(0.5),))
    second = calls("is_worse", FALSE, FALSE, FALSE, inputs=(number(0.6),))
    assert values(found(first, second)) == [(1, "True"), (3, "True")]
    assert values(found(first, second), rank=1) == [(1, "True"), (3, "True")]


def test_a_truth_from_numbers_read_from_arrays_that_differ_may_be_the_other_truth() -> None:
    """The numbers need no argument: a method reads them from an array of its object."""
    first, second = (calls("overflowed", FALSE, measured=each) for each in ("a", "b"))
    assert values(found(first, second)) == [(1, "True")]


def test_a_truth_from_random_numbers_that_differ_may_be_the_other_truth() -> None:
    """Nobody has agreed on a seed."""
    first, second = (calls("drops_out", TRUE, drawn=each) for each in ("a", "b"))
    assert values(found(first, second)) == [(1, "False")]


def test_a_truth_from_the_environment_alone_may_be_the_other_truth() -> None:
    """Hosts may have other variables."""
    each = calls("is_debugging", FALSE, reads=frozenset({"environment"}))
    assert values(found(each, each)) == [(1, "True")]


def test_a_file_that_nobody_found_or_made_may_be_there_for_one_rank() -> None:
    """As the file with which somebody stops a job."""
    each = calls("is_asked_to_stop", FALSE, reads=frozenset({"file"}), asked=("/run/stop",))
    assert values(found(each, each)) == [(1, "True")]


def test_a_signal_may_reach_one_rank() -> None:
    """A function that is called so depends on a signal to its process."""
    each = calls("Trainer.is_preempted", FALSE, FALSE)
    assert values(found(each, each)) == [(1, "True"), (2, "True")]


def test_a_measured_number_that_differs_may_be_none() -> None:
    """NaN first, then infinity."""
    first, second = calls("loss", number(0.5), number(0.3)), calls("loss", number(0.6), number(0.2))
    results = found(first, second)
    assert values(results) == [(1, "nan"), (1, "inf"), (2, "nan"), (2, "inf")]
    assert [each.is_later for each in results if each.rank == 0] == [False, True, True, True]


def test_a_count_that_differs_may_be_zero() -> None:
    """As the number of tokens for the rank's expert."""
    first, second = calls("tokens_for_expert", whole(4)), calls("tokens_for_expert", whole(7))
    assert values(found(first, second)) == [(1, "0")]


def test_an_entry_of_a_cache_may_be_missing() -> None:
    """If the function returns None for entries that are missing."""
    each = calls("cached_plan", NONE, entries(3))
    assert values(found(each, each)) == [(2, "None")]
    each = calls("Cache.find", entries(3), may_be_none=True)
    assert values(found(each, each)) == [(1, "None")]
    each = calls("is_cached", TRUE)
    assert values(found(each, each)) == [(1, "False")]


def test_a_list_of_data_may_be_shorter_or_empty() -> None:
    """Of the draws of a list the last but one leaves one entry less, the first none."""
    each = calls("load_batches", entries(6), entries(2))
    results = [one for one in found(each, each) if one.rank == 0]
    assert [(one.change, one.nth) for one in results] == [
        ("short", 6),
        ("empty", 1),
        ("short", 9),
        ("empty", 8),
    ]


def test_a_list_that_differs_may_be_empty_if_code_asks_for_that() -> None:
    """As the gradients of the rank's expert; not if all ranks have the same, or nobody asks."""
    ranks = [calls("gradients", entries(each), may_be_empty=True) for each in (3, 4)]
    assert values(found(*ranks)) == [(1, "[]")]
    assert found(ranks[0], ranks[0]) == []
    assert found(*(calls("gradients", entries(each)) for each in (3, 4))) == []


def test_a_selection_from_measured_numbers_may_be_shorter_or_empty() -> None:
    """As of the samples that one rank keeps; lists of arrays are no selections."""
    lists = [
        Seen("list", "4", digest, is_measured=True, is_array=is_array)
        for is_array in (False, True)
        for digest in "ab"
    ]
    ranks = [calls("informative", each, inputs=(each,)) for each in lists[:2]]
    assert [(one.change, one.nth) for one in found(*ranks) if one.rank == 0] == [
        ("short", 4),
        ("empty", 1),
    ]
    ranks = [calls("clipped", each, inputs=(each,)) for each in lists[2:]]
    assert found(*ranks) == []


def test_a_truth_from_generators_that_differ_may_be_the_other_truth() -> None:
    """Of a seed of the rank's own; generators of one seed draw the same."""
    ranks = [calls("trains", TRUE, inputs=(Seen("generator", "", each),)) for each in "ab"]
    assert values(found(*ranks)) == [(1, "False")]
    assert found(ranks[0], ranks[0]) == []


def test_a_test_of_a_measured_number_in_a_library_may_fail() -> None:
    """The calls of each line are compared: a library may have called the function as well."""
    for target, value in (("math:isfinite", "False"), ("torch:isnan", "True")):
        first, second = (
            [
                SeenCall(target=target, nth=nth, result=FALSE, inputs=(ARRAY,), at=HERE),
                SeenCall(target=target, nth=9, result=FALSE, inputs=(each,), at=HERE),
            ]
            for nth, each in ((3, ARRAY), (4, OTHER_ARRAY))
        )
        assert values(found(first, second)) == [(9, value)]


def test_a_number_that_is_read_from_an_array_and_differs_may_be_none() -> None:
    """At each line by itself."""
    ranks = [
        [
            SeenCall(target="torch:Tensor.item", nth=1, result=number(0.5), at=HERE),
            SeenCall(
                target="torch:Tensor.item",
                nth=2,
                result=number(0.5 + rank),
                at=replace(HERE, line=12),
            ),
        ]
        for rank in range(2)
    ]
    assert values(found(*ranks)) == [(2, "nan"), (2, "inf")]


def test_a_file_that_is_asked_for_in_a_line_may_be_there_for_one_rank() -> None:
    """If nobody has found or made this file; others do not matter."""
    asks = SeenCall(target="pathlib:Path.exists", nth=1, result=FALSE, asked=("/stop",), at=HERE)
    other = replace(asks, nth=2, asked=("/ready",), at=replace(HERE, line=12))
    finds = replace(other, nth=3, result=TRUE)
    assert values(found([asks, other, finds])) == [(1, "True")]
    assert found([asks], made=["/stop/part"]) == []


def test_a_queue_may_be_empty() -> None:
    """What fills it may be late; a queue that is empty stays so."""
    each = [
        SeenCall(target="queue:Queue.empty", nth=nth, result=result, at=HERE)
        for nth, result in enumerate((FALSE, FALSE, TRUE), 1)
    ]
    assert values(found(each, each)) == [(1, "True"), (2, "True")]


def test_a_random_number_that_differs_may_be_the_least_or_the_largest() -> None:
    """From one seed all ranks draw the same."""
    ranks = [
        [SeenCall(target="random:random", nth=1, result=number(each), at=HERE)]
        for each in (0.5, 0.6)
    ]
    assert values(found(*ranks)) == [(1, "0.0"), (1, "0.999999")]
    assert found(ranks[0], ranks[0]) == []


def test_a_number_that_is_read_for_a_result_is_not_changed_as_well() -> None:
    """The result of the function is changed already."""
    item = SeenCall(target="torch:Tensor.item", nth=1, result=number(0.5), at=HERE)
    ranks = [
        [
            *calls("loss", number(0.1 + rank), number(0.2 * rank)),
            replace(item, result=number(rank), inside=("train:loss",)),
        ]
        for rank in range(2)
    ]
    assert {each.target for each in found(*ranks)} == {"train:loss"}
    ranks = [[replace(item, result=number(rank), inside=("train:step",))] for rank in range(2)]
    assert {each.target for each in found(*ranks)} == {"torch:Tensor.item"}


# Innocents


def test_a_function_of_equal_values_is_left_alone() -> None:
    """As whether a step is to be saved, or a loss that was averaged before."""
    each = calls("should_save", FALSE, TRUE, inputs=(whole(10), number(0.5)))
    assert found(each, each) == []
    each = calls("average_loss", number(0.5), number(0.3), inputs=(number(2.5),))
    assert found(each, each) == []


def test_a_function_of_the_rank_alone_is_left_alone() -> None:
    """Whatever it returns: a truth, an index, a share, the rank's own files."""
    cases = {
        "is_primary": (TRUE, FALSE, FALSE),
        "shard_of": tuple(map(entries, (4, 3, 3))),
        "offset": tuple(map(whole, (0, 4, 8))),
        "share": tuple(map(number, (0.25, 0.5, 0.75))),
    }
    for name, results in cases.items():
        ranks = [
            calls(name, each, each, inputs=(whole(rank),)) for rank, each in enumerate(results)
        ]
        assert found(*ranks) == [], name


def test_an_index_that_counts_steps_and_ranks_is_left_alone() -> None:
    """Even if it is computed from what is measured: the ranks always differ by the same."""
    ranks = [
        calls("row", whole(rank), whole(4 + rank), inputs=(number(0.1 * rank),))
        for rank in range(2)
    ]
    assert found(*ranks) == []


def test_a_function_that_performs_operations_is_left_alone() -> None:
    """It agrees with the other ranks, as on a vote."""
    ranks = [calls("any_rank", FALSE, inputs=(number(each),), performed=1) for each in (0.5, 0.6)]
    assert found(*ranks) == []


def test_what_only_decides_an_assertion_is_left_alone() -> None:
    """The test checks it; the program does not decide by it."""
    ranks = [calls("is_near", TRUE, inputs=(number(each),), is_asserted=True) for each in (0.5, 1)]
    assert found(*ranks) == []


def test_a_question_about_the_form_of_an_array_is_left_alone() -> None:
    """The elements differ, but no element was read."""
    ranks = [calls("needs_padding", FALSE, inputs=(each,)) for each in (ARRAY, OTHER_ARRAY)]
    assert found(*ranks) == []
    reads = frozenset({"array"})
    ranks = [calls("is_large", FALSE, inputs=(a,), reads=reads) for a in (ARRAY, OTHER_ARRAY)]
    assert values(found(*ranks)) == [(1, "True")]


def test_a_file_that_a_rank_makes_is_not_there_before() -> None:
    """A rank that is shown its cache before it has made it fails to open it."""
    each = calls("is_built", FALSE, reads=frozenset({"file"}), asked=("/run/cache",))
    assert found(each, each, made=["/run/cache"]) == []


def test_a_file_that_is_found_at_last_was_not_there_before() -> None:
    """As a rank that polls sees it."""
    each = calls("is_ready", FALSE, FALSE, TRUE, reads=frozenset({"file"}), asked=("/run/ready",))
    assert found(each, each) == []


def test_a_variable_by_which_ranks_differ_is_left_alone() -> None:
    """It may tell the rank."""
    reads = frozenset({"environment"})
    assert found(calls("is_first", TRUE, reads=reads), calls("is_first", FALSE, reads=reads)) == []


def test_random_numbers_and_times_are_always_numbers() -> None:
    """A pause that is drawn is never NaN, nor is an elapsed time."""
    ranks = [
        calls("pause", number(0.1 + rank), number(0.2 * rank), drawn=str(rank), reads=reads)
        for rank, reads in ((0, frozenset({"random"})), (1, frozenset({"random"})))
    ]
    assert found(*ranks) == []
    reads = frozenset({"clock"})
    ranks = [calls("elapsed", number(0.1 * rank), number(1.0), reads=reads) for rank in (1, 2)]
    assert found(*ranks) == []


def test_random_numbers_from_one_seed_are_agreed() -> None:
    """All ranks draw the same."""
    each = calls("drops_out", FALSE, drawn="a", reads=frozenset({"random"}))
    assert found(each, each) == []


def test_a_value_that_is_unknown_is_not_compared() -> None:
    """Its digest is empty."""
    ranks = [
        calls("is_worse", FALSE, inputs=(replace(number(each), digest=""),)) for each in (0.5, 0.6)
    ]
    assert found(*ranks) == []


def test_an_entry_that_is_always_found_is_never_none() -> None:
    """The function has never returned None, and does not say that it may."""
    each = calls("cached_plan", entries(3))
    assert found(each, each) == []


def test_lists_without_the_name_of_data_are_left_alone() -> None:
    """As gradients, of which all ranks have as many; and data whose loaders the user has named."""
    each = calls("gradients", entries(3))
    assert found(each, each) == []
    each = calls("batches", entries(3))
    assert found(each, each)
    assert other_results({0: SeenByRank(tuple(each))}, finds_data=False) == []


def test_a_number_that_is_not_finite_anyway_is_left_alone() -> None:
    """NaN would be nothing new."""
    ranks = [calls("loss", number(each), inputs=(number(each),)) for each in (math.nan, 0.5)]
    assert values(found(*ranks)) == []


# Clocks


def test_more_time_may_elapse_before_each_line_that_reads_a_clock() -> None:
    """At its first and its last read; before the first read of all no time is measured."""
    begins = ClockRead(at=HERE, first=1, last=1)
    looks = ClockRead(at=replace(HERE, line=12), first=2, last=5, before=3)
    reads = local_decisions({0: SeenByRank((), (begins, looks))}).time_reads[0]
    assert [(each.number, each.at.line, each.is_later) for each in reads] == [
        (2, 12, False),
        (5, 12, True),
    ]
