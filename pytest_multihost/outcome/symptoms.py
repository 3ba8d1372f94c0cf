"""What tells that a rank's failure only follows from another's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_SAID_BY_TESTS = frozenset({"AssertionError", "Failed", "_pytest.outcomes.Failed"})
"""Types of exceptions that only a test raises: its words are its own, whatever they quote."""


@dataclass(frozen=True, slots=True)
class Symptoms:
    """How a backend's failures look when they follow from another rank's.

    Attributes:
        raised: Regular expressions for the text of an exception.
        fatal: Regular expressions for the log of a rank whose runtime ended it.
    """

    raised: tuple[str, ...] = ()
    fatal: tuple[str, ...] = ()


def is_symptom(data: Mapping[str, Any], text: str, symptoms: Symptoms) -> bool:
    """Whether an exception follows from another rank; no runtime asserts that a peer is gone."""
    if data["type"] in _SAID_BY_TESTS:
        return False
    return bool(data["is_harness_symptom"]) or matches(symptoms.raised, text)


def is_raised_from_symptom(data: Mapping[str, Any], symptoms: Symptoms) -> bool:
    """Whether an exception was raised from such a one, or while it was handled."""
    if data["type"] in _SAID_BY_TESTS:
        return False
    return any(matches(symptoms.raised, each) for each in data.get("causes", ()))


def matches(patterns: Iterable[str], text: str) -> bool:
    """Tell whether a text contains what any of the regular expressions says."""
    return any(re.search(pattern, text, re.DOTALL) for pattern in patterns)
