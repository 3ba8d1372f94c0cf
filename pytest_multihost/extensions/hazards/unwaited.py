"""The rule `unwaited`: no thread waits for an asynchronous operation."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_multihost.core.model.operation import RUNTIME_SCOPE
from pytest_multihost.extensions.hazards.records import Records
from pytest_multihost.extensions.hazards.rule import Found, HazardRule, Occurrences


def _find(records: Records) -> Iterator[Found]:
    for rank, record in records.items():
        for each in record.launches:
            operation = each.operation
            is_meant = operation.kind != "wait" and operation.scope == RUNTIME_SCOPE
            is_known = operation.failed or operation.is_handed_on or len(operation.group) == 1
            if is_meant and operation.waited_s is None and not is_known:
                yield Found(((rank, (each,)),), operation.group)


def _summarize(seen: Occurrences) -> str:
    return f"{seen.ranks} never waited for {seen.operation}"


UNWAITED = HazardRule(
    name="unwaited",
    find=_find,
    summarize=_summarize,
    when="It hangs, or uses a buffer that is still in use, when the operation is not yet"
    " complete as its buffer is freed, its group is destroyed or its rank leaves.",
    is_default=True,
    judges_plain_runs=False,
)
