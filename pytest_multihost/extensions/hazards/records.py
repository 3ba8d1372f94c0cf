"""The record of a run that rules judge, and selections from it."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_multihost.core.model.operation import RUNTIME_SCOPE, GroupKey, group_by_value
from pytest_multihost.extensions.hazards.model import Launch, RankRecord

Records = Mapping[int, RankRecord]
"""The operations that each rank launched, by rank."""


def collectives(record: RankRecord) -> list[Launch]:
    """Return the collectives of a rank in groups that have other members."""
    return [
        each
        for each in record.launches
        if each.operation.kind == "collective"
        and each.operation.scope == RUNTIME_SCOPE
        and len(each.operation.group) > 1
    ]


def collectives_by_group(record: RankRecord) -> dict[GroupKey, list[Launch]]:
    """Return the `collectives` of a rank by group, in launch order."""
    return group_by_value((each.operation.group_key, each) for each in collectives(record))
