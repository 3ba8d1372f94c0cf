"""Warn of hazards, or fail the test."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

from pytest_multihost.model.errors import MultihostHazardWarning
from pytest_multihost.model.hazard import Hazards
from pytest_multihost.pytest_plugin.tally import TALLY


def warn_of_hazards(item: pytest.Item, hazards: Hazards) -> bool:
    """Warn of each hazard at its first line; return whether such warnings are errors.

    Args:
        item: The test.
        hazards: What its run has shown.
    """
    is_error = False
    for hazard in hazards.open:
        path, line, _ = item.location
        place = hazard.places[0] if hazard.places else None
        file, number = (place.file, place.line) if place is not None else (path, (line or 0) + 1)
        try:
            warnings.warn_explicit(
                hazard.text, MultihostHazardWarning, str(Path(item.config.rootpath, file)), number
            )
        except MultihostHazardWarning:  # -W error
            is_error = True
    return is_error


def fails_test(item: pytest.Item, hazards: Hazards) -> bool:
    """Tell of a test's hazards, and return whether they fail it."""
    mode = item.config.stash[TALLY].settings.hazards.mode
    return bool(hazards.open) and (mode == "fail" or warn_of_hazards(item, hazards))
