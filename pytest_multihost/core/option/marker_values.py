"""Checks the values of markers' keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_multihost.core.model.errors import known_names, shown
from pytest_multihost.core.model.setting_values import MAX_RANKS, MAX_SECONDS
from pytest_multihost.core.option.option import Check


def check_values(values: Mapping[str, object], checks: Mapping[str, Check]) -> Iterator[str]:
    """Yield every problem with the values of a marker's keys; None is always valid."""
    if unknown := sorted(values.keys() - checks.keys()):
        known = known_names(checks, unknown[0])
        yield f"has no key {', '.join(map(repr, unknown))}; there are: {known}"
    for key, check in checks.items():
        if values.get(key) is not None and (problem := check(values[key])):
            yield f"{key} {problem}"


def as_tuple(value: object) -> tuple[Any, ...]:
    """Return the values of a list or tuple, a single value as a tuple of one, and None as ()."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def must_be(is_valid: Callable[[object], bool], expected: str) -> Check:
    """Return a check that reports the expected value if a value is invalid."""
    return lambda value: None if is_valid(value) else f"must be {expected}, not {shown(value)}"


def one_or_more(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return a check for one valid value, or a non-empty list of different valid values."""

    def check(value: object) -> bool:
        values = as_tuple(value)
        return bool(values) and all(map(is_valid, values)) and len({*values}) == len(values)

    return check


def is_seconds(value: object) -> bool:
    """Return whether a value is a positive number, and not too large for a timeout."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MAX_SECONDS  # type: ignore[operator]


def is_count(value: object) -> bool:
    """Return whether a value is a whole number from 1 to `MAX_RANKS`."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_RANKS


def are_faults(value: object) -> bool:
    """Return whether a value is a fault or a list of faults."""
    from pytest_multihost.core.model.fault import Fault

    return all(isinstance(each, Fault) for each in as_tuple(value))


def is_name(value: object) -> bool:
    """Return whether a value is a non-empty string."""
    return isinstance(value, str) and bool(value)


def is_one_of(*choices: str) -> Callable[[object], bool]:
    """Return a check for one of some texts."""
    return lambda value: isinstance(value, str) and value in choices


def is_environment(value: object) -> bool:
    """Return whether a value maps strings to strings."""
    return isinstance(value, Mapping) and all(
        isinstance(each, str) for each in (*value, *value.values())
    )
