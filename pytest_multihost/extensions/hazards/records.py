"""The record of a run that rules judge: what each rank has launched, and parts of that."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_multihost.core.model.operation import RUNTIME_SCOPE, GroupKey, group_by_value
from pytest_multihost.extensions.hazards.model import Launch, RankRecord

Records = Mapping[int, RankRecord]
"""What each rank has launched, by rank."""


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
    """Return the same for each group, in the order of their launch."""
    return group_by_value((each.operation.group_key, each) for each in collectives(record))
