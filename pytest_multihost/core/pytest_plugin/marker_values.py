"""Check the values that markers give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pytest_multihost.core.model.errors import shown
from pytest_multihost.core.model.fault import MAX_SECONDS, Fault
from pytest_multihost.core.model.spec import MAX_RANKS
from pytest_multihost.core.option import Check


def check_values(values: Mapping[str, object], checks: Mapping[str, Check]) -> Iterator[str]:
    """Yield every problem with the values of a marker's keys; None is never one."""
    if unknown := sorted(values.keys() - checks.keys()):
        yield f"has no key {', '.join(map(repr, unknown))}; there are: {', '.join(checks)}"
    for key, check in checks.items():
        if values.get(key) is not None and (problem := check(values[key])):
            yield f"{key} {problem}"


def as_tuple(value: object) -> tuple[Any, ...]:
    """Return the values of a list, or of one value, or none of None."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def each_once(value: object) -> tuple[Any, ...]:
    """Return the values of a list, or one value, in order and each once."""
    return tuple(dict.fromkeys(as_tuple(value)))


def must_be(is_valid: Callable[[object], bool], expected: str) -> Check:
    """Return a check that says what a value must be where it is not."""
    return lambda value: None if is_valid(value) else f"must be {expected}, not {shown(value)}"


def one_or_more(is_valid: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return whether a value, or each of a list that is not empty, is valid."""
    return lambda value: bool(as_tuple(value)) and all(map(is_valid, as_tuple(value)))


def is_seconds(value: object) -> bool:
    """Whether a value is a positive number, and not too large for a timeout."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= MAX_SECONDS  # type: ignore[operator]


def is_count(value: object) -> bool:
    """Whether a value is a whole number of ranks, and not too large."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_RANKS


def are_faults(value: object) -> bool:
    """Whether a value is a fault or a list of faults."""
    return all(isinstance(each, Fault) for each in as_tuple(value))


def is_name(value: object) -> bool:
    """Whether a value is a text that is not empty."""
    return isinstance(value, str) and bool(value)


def is_environment(value: object) -> bool:
    """Whether a value maps texts to texts."""
    return isinstance(value, Mapping) and all(
        isinstance(each, str) for each in (*value, *value.values())
    )
