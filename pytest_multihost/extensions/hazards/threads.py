"""The rule `threads`: two threads of a rank are in operations of one group at the same time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from pytest_multihost.extensions.hazards.model import Launch
from pytest_multihost.extensions.hazards.records import Records, collectives_by_group
from pytest_multihost.extensions.hazards.rule import Found, HazardRule, Occurrences


def _find(records: Records) -> Iterator[Found]:
    """Find a rank with two threads inside calls of one group at the same time.

    A lock, a queue or a join that orders two calls lets the second begin only when the first has
    returned. Equal calls match in either order.
    """
    for rank, record in records.items():
        if len({each.thread for each in record.launches}) < 2:  # noqa: PLR2004 - as it says
            continue
        for launches in collectives_by_group(record).values():
            for earlier, later in _overlapping(launches):
                if earlier.thread != later.thread and _call(earlier) != _call(later):
                    yield Found(((rank, (earlier, later)),), later.operation.group)


def _call(launch: Launch) -> tuple[str, str, int | None]:
    """Return the key of calls that can match each other."""
    return launch.operation.name, launch.operation.detail, launch.operation.root


def _overlapping(launches: Sequence[Launch]) -> Iterator[tuple[Launch, Launch]]:
    """Yield each synchronous call with each call that began before it returned."""
    for index, earlier in enumerate(launches):
        operation = earlier.operation
        if operation.waited_s != operation.since_s:
            continue
        ended_s = inf if operation.ended_s is None else operation.ended_s
        for later in launches[index + 1 :]:
            if later.operation.since_s >= ended_s:
                break
            yield earlier, later


def _summarize(seen: Occurrences) -> str:
    return f"two threads of {seen.ranks} are in operations of the {seen.group} at a time"


THREADS = HazardRule(
    name="threads",
    find=_find,
    summarize=_summarize,
    when="It hangs when the threads of another rank come in the other order: nothing orders"
    " the two calls, and the operations of the group do not match then.",
    is_default=True,
    judges_plain_runs=False,
)
