"""Parses the texts of options from a command line, the environment, or an ini file."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.setting_values import MAX_RANKS, MAX_SECONDS, MAX_SEED

T = TypeVar("T")


def parse_count(text: str) -> int:
    """Read a whole number of at least 1.

    Raises:
        SettingError: The text is not such a number.
    """
    if not (text.isdecimal() and int(text) > 0):
        raise SettingError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def parse_rank(text: str) -> int:
    """Read a rank.

    Raises:
        argparse.ArgumentTypeError: The text is not a whole number of at least 0.
    """
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"must be a rank, such as 0, not {text!r}")
    return int(text)


def parse_ranks(text: str) -> tuple[int, ...] | Mapping[str, int]:
    """Read "4", "1,2,4", or the sizes of roles: "trainer=4,engine=2".

    Raises:
        SettingError: A part is not a whole number from 1 to `MAX_RANKS`, or comes twice.
    """
    parts = [part.strip() for part in text.split(",")]
    if all("=" in part for part in parts):
        given = [[each.strip() for each in part.split("=", 1)] for part in parts]
        if all(name and _is_size(size) for name, size in given):
            return {name: int(size) for name, size in given}
    if not all(map(_is_size, parts)):
        raise SettingError(f"sizes must be whole numbers from 1 to {MAX_RANKS}, not {shown(text)}")
    _refuse_equal(sizes := tuple(map(int, parts)), text)
    return sizes


def _is_size(text: str) -> bool:
    return bool(re.fullmatch("[0-9]{1,9}", text)) and 1 <= int(text) <= MAX_RANKS


def parse_seed(text: str) -> int:
    """Read a whole number.

    Raises:
        argparse.ArgumentTypeError: The text is not a number, or too long for the name of a file.
    """
    try:
        seed = int(text)
    except ValueError:
        seed = MAX_SEED + 1
    if abs(seed) > MAX_SEED:
        wanted = f"must be a whole number of at most {MAX_SEED}"
        raise argparse.ArgumentTypeError(f"{wanted}, not {shown(text)}")
    return seed


def parse_names(text: str) -> tuple[str, ...]:
    """Read "gloo" or "gloo,jax".

    Raises:
        SettingError: A part is empty, or comes twice.
    """
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise SettingError(f"a name is missing in {shown(text)}")
    _refuse_equal(parts, text)
    return parts


def _refuse_equal(values: Sequence[object], text: str) -> None:
    if len({*values}) < len(values):
        raise SettingError(f"{shown(text)} has a value twice")


def parse_seconds(text: str) -> float:
    """Read a positive number of seconds.

    Raises:
        SettingError: The text is not such a number, or more than 1e9.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= MAX_SECONDS:
        wanted = "a positive number of seconds, at most 1e9"
        raise SettingError(f"must be {wanted}, not {shown(text)}")
    return seconds


def one_of(*choices: T) -> Callable[[str], T]:
    """Return a function that accepts only one of `choices`."""

    def parse(text: str) -> T:
        for choice in choices:
            if text == choice:
                return choice
        raise SettingError(f"must be one of {', '.join(map(str, choices))}, not {shown(text)}")

    return parse
