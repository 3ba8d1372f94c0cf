"""What the options say about sweeps.

Read in every run of pytest; what sweeps is imported only where a test is to be swept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from pytest_multihost.model.errors import SettingError, shown
from pytest_multihost.model.sweep import DEFAULT_FAMILIES, Family

ALL_FAMILIES: tuple[Family, ...] = get_args(Family)

ACCEPTED_NAME = "multihost-accepted.toml"
"""The file of accepted weaknesses, in pytest's rootdir, where no other one is named."""

SWEEP_SIGNATURE = (
    "multihost_sweep(families=None, *, budget=None, decisions=(), values=(), batches=()): run this"
    " multihost test again and again, each time with one disturbance, to find the hang that it"
    f" hides. `families`: some of {', '.join(ALL_FAMILIES)}; `budget`: seconds; `decisions`,"
    " `values`: functions, as 'module:function', that return another truth value or NaN on one"
    " rank; `batches`: data loaders, as 'module:name', whose data end early on one rank."
)

_SHARD = re.compile("([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """How tests are swept where their markers say nothing else.

    Attributes:
        families: Sweep every multihost test with these; empty: only tests with the marker.
        budget_s: Seconds for each test.
        shard: Which part of each plan to run, and of how many; None for all of it.
        accepted: The file of accepted weaknesses; None: the usual one, if it is there.
        is_continued: Whether earlier sweeps are to go on.
    """

    families: tuple[Family, ...] = ()
    budget_s: float = 60.0
    shard: tuple[int, int] | None = None
    accepted: Path | None = None
    is_continued: bool = False


@dataclass(frozen=True, slots=True)
class SweepRequest:
    """How one test is to be swept.

    Attributes:
        families: With which disturbances.
        budget_s: Seconds.
        decisions: Functions, as ``module:function``, that return another truth value on one rank.
        values: Functions whose numbers become NaN on one rank.
        batches: Data loaders, as ``module:name``, beside those of torch and grain.
    """

    families: tuple[Family, ...]
    budget_s: float
    decisions: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    batches: tuple[str, ...] = ()


def parse_families(text: str) -> tuple[Family, ...]:
    """Read "late,fails".

    Raises:
        SettingError: There is no such family.
    """
    parts = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    found = tuple(each for each in ALL_FAMILIES if each in parts)
    if len(found) < len(parts):
        raise SettingError(
            f"families of disturbances are {', '.join(ALL_FAMILIES)}, not {shown(text)}",
            remedy=f"Say --multihost-sweep={','.join(DEFAULT_FAMILIES)}; the names of files go"
            " before an option that stands without a value.",
        )
    return found


def parse_shard(text: str) -> tuple[int, int]:
    """Read "2/4".

    Raises:
        SettingError: It is no part of a whole.
    """
    found = _SHARD.fullmatch(text)
    k, n = map(int, found.groups()) if found else (0, 0)
    if not 1 <= k <= n:
        raise SettingError(f"must be K/N, such as 2/4 for the second of four, not {shown(text)}")
    return k, n


def has_acceptances(root: Path, settings: SweepSettings) -> bool:
    """Return whether there is a file of what the project accepts, or one is named."""
    return settings.accepted is not None or (root / ACCEPTED_NAME).exists()
