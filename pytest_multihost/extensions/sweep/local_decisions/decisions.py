"""Finds the calls whose results depend on data of their rank alone, and other such results.

A result is local if it depends on measured numbers that differ between ranks, on random numbers
that differ, or on the rank's own environment. A function that performs operations agrees on its
result with other ranks. A function of the rank's number, or of values that are equal on all ranks,
has the same result in every run. Neither is disturbed: such a run could not happen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import PurePath
from typing import Literal

from pytest_multihost.core.model.verdict import Place
from pytest_multihost.extensions.sweep.local_decisions.facts import (
    RankRecords,
    Seen,
    SeenByRank,
    SeenCall,
)
from pytest_multihost.extensions.sweep.local_decisions.names import (
    CACHE,
    COUNTED,
    DATA,
    NOT_A_COUNT,
    SIGNAL,
)
from pytest_multihost.extensions.sweep.local_decisions.watched import (
    OF_CHANCE,
    OF_FILES,
    OF_LIBRARIES,
    OF_QUEUES,
)

Change = Literal["returns", "short", "empty"]

_NOT_FINITE: Mapping[str, int] = {"isfinite": 0, "isnan": 1, "isinf": 1}
"""The results for a number that is not finite."""

NAN, INF = float("nan"), float("inf")

_ENDS_OF_CHANCE = (0.0, 0.999_999)
"""The least and the largest random number from 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherResult:
    """A result that a call could have had on its rank.

    Attributes:
        target: The function, as ``module:function``.
        nth: The number of the call among the rank's calls of the function; for data, the number of
            the draw that ends them.
        value: The value that is returned instead.
        before: Number of operations that the rank had begun before.
        is_later: Whether it is less likely to show something than the function's other ones.
    """

    rank: int
    target: str
    nth: int
    change: Change = "returns"
    value: object = None
    at: Place | None = None
    before: int = 0
    is_later: bool = False


def other_results(records: RankRecords, *, finds_data: bool = True) -> Sequence[OtherResult]:
    """Return other results that calls of the undisturbed run could have had, in order of targets.

    Of each function the first and the last call are changed.

    Args:
        finds_data: Whether functions whose names say so return data.
    """
    made = frozenset[str]().union(*(each.made for each in records.values()))
    by_target: dict[str, dict[int, list[SeenCall]]] = {}
    for rank, record in records.items():
        for call in record.calls:
            by_target.setdefault(call.target, {}).setdefault(rank, []).append(call)
    functions = [_Function(target, calls, made) for target, calls in by_target.items()]
    found: list[OtherResult] = []
    for each in sorted(functions, key=lambda each: each.is_of_library):
        changed = frozenset(one.target for one in found if one.change == "returns")
        if not each.agrees:
            for rank in each.calls:
                found += each.changes(rank, changed, finds_data=finds_data)
    return found


@dataclass(frozen=True)
class _Function:
    """A function, and its calls on each rank, in order.

    Attributes:
        made: The files that ranks have made.
    """

    target: str
    calls: Mapping[int, Sequence[SeenCall]]
    made: frozenset[str]

    @property
    def name(self) -> str:
        """Its name, and those of the classes around it, in small letters."""
        path = self.target.partition(":")[2].replace(".", "_")
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", path).lower()

    @property
    def own_name(self) -> str:
        """Its name without its class."""
        return self.target.rpartition(":")[2].rpartition(".")[2]

    @property
    def is_of_library(self) -> bool:
        """Whether it belongs to Python or torch."""
        return self.target in OF_LIBRARIES

    @property
    def agrees(self) -> bool:
        """Whether it performs operations, in which ranks agree on its result."""
        return any(call.performed for found in self.calls.values() for call in found)

    def changes(
        self, rank: int, changed: frozenset[str], *, finds_data: bool
    ) -> Iterator[OtherResult]:
        """Yield other results of a rank's calls.

        Args:
            changed: The functions of the user's whose results are changed themselves.
            finds_data: Whether functions whose names say so return data.
        """
        calls = [each for each in self.calls[rank] if not each.is_asserted]
        if self.is_of_library:
            calls = [each for each in calls if changed.isdisjoint(each.inside)]
        if not calls:
            return
        sorts = {each.result.sort for each in calls}
        is_data = bool(DATA.search(self.own_name)) or self._selects
        if finds_data and is_data and sorts <= {"list", "array"}:
            yield from self._ends_of_data(rank)
        elif self.is_of_library:
            yield from self._ends(rank, calls, self._of_a_library)
        elif sorts == {"truth"}:
            yield from self._ends(rank, calls, self._truths)
        elif sorts == {"number"}:
            yield from self._ends(rank, calls, self._numbers)
        elif sorts == {"whole"}:
            yield from self._ends(rank, calls, self._counts)
        else:
            yield from self._ends(rank, calls, self._nothing)

    def _ends(
        self,
        rank: int,
        calls: Sequence[SeenCall],
        values_of: Callable[[SeenCall], Iterable[object]],
    ) -> Iterator[OtherResult]:
        """Yield other results of the first and the last call at each line that can have any."""
        by_line: dict[object, list[SeenCall]] = {}
        for each in calls:
            line = (each.at.file, each.at.line) if each.at and self.is_of_library else None
            by_line.setdefault(line, []).append(each)
        for found in by_line.values():
            able = [(each, values) for each in found if (values := tuple(values_of(each)))]
            ends = {each.nth: (each, values) for each, values in (*able[:1], *able[-1:])}
            for number, (each, values) in enumerate(ends.values()):
                for value in values:
                    yield OtherResult(
                        rank=rank,
                        target=self.target,
                        nth=each.nth,
                        value=value,
                        at=each.at,
                        before=each.before,
                        is_later=number > 0 or value == INF,
                    )

    # The sorts of results

    def _truths(self, call: SeenCall) -> Iterator[object]:
        """Yield the other truth, if it can be the truth on one rank alone."""
        is_true = call.result.text == "True"
        if SIGNAL.search(self.name):
            yield from () if is_true else [True]
        elif CACHE.search(self.name):
            yield from [False] if is_true else ()
        elif (
            self.has_measured_input
            or self.has_drawn_input
            or (call.reads == {"environment"} and not self._differs(call))
            or (call.reads == {"file"} and self._is_never_there(is_true=is_true, call=call))
        ):
            yield not is_true

    def _numbers(self, call: SeenCall) -> Iterator[object]:
        """Yield numbers that are not finite, for a number that is measured and differs."""
        is_local = self.has_measured_input or (
            call.reads.isdisjoint({"clock", "random"}) and self._varies_on_its_own
        )
        if is_local and self._differs(call) and math.isfinite(float(call.result.text)):
            yield from (NAN, INF)

    def _counts(self, call: SeenCall) -> Iterator[object]:
        """Yield 0 for a count that differs between ranks."""
        is_count = COUNTED.search(self.own_name) and not NOT_A_COUNT.search(self.own_name)
        is_local = is_count or (self.has_measured_input and self._varies_by_more_than_rank)
        if is_local and self._differs(call) and int(call.result.text) > 0:
            yield 0

    def _nothing(self, call: SeenCall) -> Iterator[object]:
        """Yield None for an entry that is not always found, [] for a list that may be empty."""
        results = [each.result.sort for found in self.calls.values() for each in found]
        may_be_none = call.may_be_none or "none" in results
        is_local = bool(CACHE.search(self.name)) or self.has_measured_input
        if call.result.sort != "none" and may_be_none and is_local:
            yield None
        if call.may_be_empty and self._differs(call) and int(call.result.text) > 0:
            yield []

    def _of_a_library(self, call: SeenCall) -> Iterator[object]:
        """Yield other results of a function of Python or torch.

        These are the results for numbers that are not finite, for files that no rank makes, for
        other random numbers, and for work that has not come yet.
        """
        test = _NOT_FINITE.get(self.own_name)
        is_true = call.result.text == "True"
        if self.target in OF_FILES:
            yield from [True] if self._is_never_there(is_true=is_true, call=call) else ()
            return
        if self.target in OF_QUEUES:
            yield from () if is_true else [True]
            return
        if self.target in OF_CHANCE:
            yield from _ENDS_OF_CHANCE if self._differs(call) else ()
            return
        if test is None:
            if self._differs(call) and call.result.sort == "number":
                yield from (NAN, INF) if math.isfinite(float(call.result.text)) else ()
        elif any(map(_is_local, self._inputs_beside(call))):
            yield bool(test)

    def _ends_of_data(self, rank: int) -> Iterator[OtherResult]:
        """Yield draws at which the data of the first or the last call end early."""
        drawn = 0
        ends: list[tuple[SeenCall, int, int]] = []
        for number, each in enumerate(self.calls[rank], 1):
            if each.nth != number:  # a call in between was not recorded
                break
            length = min(int(each.result.text), _MOST_DRAWS)
            if length:
                ends.append((each, drawn + 1, drawn + length))
            drawn += length + 1
        for number, (each, first, last) in enumerate(dict.fromkeys((*ends[:1], *ends[-1:]))):
            for change, nth in (("short", last), ("empty", first)):
                yield OtherResult(
                    rank=rank,
                    target=self.target,
                    nth=nth,
                    change="short" if change == "short" else "empty",
                    at=each.at,
                    before=each.before,
                    is_later=number > 0,
                )

    def _is_never_there(self, *, is_true: bool, call: SeenCall) -> bool:
        """Return whether a file that no rank has found or made may be there for one rank.

        A rank that is shown a file that it makes later, such as a cache, would fail to open it.
        """
        asked = frozenset(call.asked)
        beside = [each for found in self.calls.values() for each in found]
        is_found = any(e.result.text == "True" for e in beside if asked.intersection(e.asked))
        is_made = any(PurePath(each).is_relative_to(one) for each in self.made for one in asked)
        return bool(asked) and not is_true and not is_found and not is_made

    @property
    def _selects(self) -> bool:
        """Whether it makes lists of measured numbers from others that differ between ranks.

        Lists of arrays do not count: of gradients and parameters all ranks have as many.
        """
        results = [each.result for found in self.calls.values() for each in found]
        is_plain = all(each.sort == "list" and not each.is_array for each in results)
        return is_plain and any(
            _is_local(each.result for each in beside)
            and any(
                values[0].sort == "list" and _is_local(values)
                for values in zip(*(each.inputs for each in beside), strict=False)
            )
            for beside in self._beside
        )

    # The inputs of results

    @cached_property
    def has_measured_input(self) -> bool:
        """Whether any call depends on numbers that are measured and differ between ranks."""
        return any(map(_depend_on_measured, self._beside))

    @cached_property
    def has_drawn_input(self) -> bool:
        """Whether any call draws random numbers that differ between ranks, or gets a generator."""
        return any(
            _differ(each.drawn for each in beside)
            or any(
                values[0].sort == "generator" and _differ(each.digest for each in values)
                for values in zip(*(each.inputs for each in beside), strict=False)
            )
            for beside in self._beside
        )

    @cached_property
    def _beside(self) -> Sequence[tuple[SeenCall, ...]]:
        """Calls of several ranks at one line, each its rank's nth there."""
        found: dict[object, list[SeenCall]] = {}
        for calls in self.calls.values():
            numbers: dict[object, int] = {}
            for each in calls:
                line = (each.at.file, each.at.line) if each.at else None
                numbers[line] = number = numbers.get(line, 0) + 1
                found.setdefault((line, number), []).append(each)
        return [tuple(each) for each in found.values() if len(each) > 1]

    def _beside_call(self, call: SeenCall) -> tuple[SeenCall, ...]:
        """Return a call and those of other ranks beside it."""
        return self._beside_of.get(id(call), ())

    @cached_property
    def _beside_of(self) -> Mapping[int, tuple[SeenCall, ...]]:
        return {id(each): beside for beside in self._beside for each in beside}

    def _inputs_beside(self, call: SeenCall) -> Iterator[tuple[Seen, ...]]:
        yield from zip(*(each.inputs for each in self._beside_call(call)), strict=False)

    def _differs(self, call: SeenCall) -> bool:
        """Return whether the result of a call differs between ranks."""
        return _differ(each.result.digest for each in self._beside_call(call))

    @property
    def _varies_on_its_own(self) -> bool:
        """Whether the results of a rank vary, so that they depend on more than its number."""
        return any(len({each.result.text for each in found}) > 1 for found in self.calls.values())

    @property
    def _varies_by_more_than_rank(self) -> bool:
        """Whether the differences between ranks vary from call to call."""
        rows = [[float(each.result.text) for each in found] for found in self.calls.values()]
        apart = {
            tuple(value - column[0] for value in column) for column in zip(*rows, strict=False)
        }
        return len(apart) > 1


_MOST_DRAWS = 1_000
"""As many draws of a list are counted."""


def _depend_on_measured(beside: Sequence[SeenCall]) -> bool:
    """Return whether calls of several ranks depend on measured numbers that differ between them.

    A function may only ask for the shape or the type of an array. So an array counts if the call
    read a number from an array or returned an array.
    """
    reads_arrays = any("array" in each.reads or each.result.is_array for each in beside)
    return _differ(each.measured for each in beside) or any(
        _is_local(values) and (reads_arrays or not values[0].is_array)
        for values in zip(*(each.inputs for each in beside), strict=False)
    )


def _is_local(values: Iterable[Seen]) -> bool:
    """Return whether values of ranks, one for each, are measured and differ."""
    found = tuple(values)
    return all(each.is_measured for each in found) and _differ(each.digest for each in found)


def _differ(digests: Iterable[str]) -> bool:
    """Return whether digests of ranks are known and differ."""
    found = set(digests)
    return len(found) > 1 and "" not in found


@dataclass(frozen=True, slots=True)
class TimeRead:
    """A read of a clock after which more time may have elapsed.

    Attributes:
        number: Its number among the reads of the rank's own code.
        is_later: Whether it is less likely to show something than another read of the line.
    """

    number: int
    at: Place
    before: int
    is_later: bool = False


@dataclass(frozen=True, slots=True)
class LocalDecisions:
    """The decisions that ranks take from data that they alone see.

    Attributes:
        results: Other results that calls could have had.
        time_reads: For each rank the reads of clocks after which more time may have elapsed.
    """

    results: Sequence[OtherResult] = ()
    time_reads: Mapping[int, Sequence[TimeRead]] = field(default_factory=dict)


NO_DECISIONS = LocalDecisions()


def local_decisions(records: RankRecords, *, finds_data: bool = True) -> LocalDecisions:
    """Return the decisions that ranks have taken in the undisturbed run.

    Args:
        finds_data: Whether functions whose names say so return data.
    """
    reads = {rank: tuple(_time_reads(each)) for rank, each in records.items()}
    return LocalDecisions(other_results(records, finds_data=finds_data), reads)


def _time_reads(record: SeenByRank) -> Iterator[TimeRead]:
    """Yield the reads of clocks by which a rank may decide, the first and the last of each line.

    Before the first read of all no time is measured.
    """
    for each in record.clock_reads:
        numbers = sorted({each.first, each.last} - {1})
        for number in numbers:
            yield TimeRead(number, each.at, each.before, is_later=number != numbers[0])
