"""Perform faults: what kinds there are, how faults are parsed, validated, performed and cleaned up.

`kinds` lists the built-in ones: `process_faults`, `pressure`,
`slow_io`, `clock_skew`, `elapsed_time`, `file_views` and `call_results`. A rank performs most of
its faults itself, in the thread that passes the fault's point; a service of the world performs the
others.

`fault_text` reads faults from text, `validation` checks them; `clean_up` removes what ranks leave.
`io_shim` intercepts file access of the C library.
"""

from pytest_multihost.core.nemesis.clean_up import clean_up_faults, heal_files
from pytest_multihost.core.nemesis.fault_text import parse_fault
from pytest_multihost.core.nemesis.kinds import BUILT_IN_KINDS, kinds_by_name
from pytest_multihost.core.nemesis.validation import fault_problems, resolve_faults
from pytest_multihost.faults.kind import (
    FaultKind,
    Strike,
    positive,
    seconds,
    text,
    truth,
    whole,
)
from pytest_multihost.intercept.files import matcher
from pytest_multihost.intercept.targets import load_target

__all__ = [
    "BUILT_IN_KINDS",
    "FaultKind",
    "Strike",
    "clean_up_faults",
    "fault_problems",
    "heal_files",
    "kinds_by_name",
    "load_target",
    "matcher",
    "parse_fault",
    "positive",
    "resolve_faults",
    "seconds",
    "text",
    "truth",
    "whole",
]
