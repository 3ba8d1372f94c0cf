"""Perform faults: what kinds there are, how faults are parsed, validated, performed and cleaned up.

`kind` says what a kind of fault is; `process_faults`, `slow_io`, `value_faults`, `file_views`,
`clock` and `network_faults` are the built-in kinds. Most are performed in the rank that they are
meant for, by the thread that passes the fault's point; those of the network by `launch.netns`.

`parse` reads faults from text, `validation` checks them, `cleanup` undoes them. `interpose`
intercepts file access of Python, `io_shim` that of the C library; `targets` finds the functions
that points name; `object_store` and `object_store_server` are an S3 endpoint.
"""

from pytest_multihost.nemesis.cleanup import clean_up_faults, heal_files
from pytest_multihost.nemesis.kind import FaultKind, Strike
from pytest_multihost.nemesis.parse import parse_fault
from pytest_multihost.nemesis.validation import BUILT_IN_KINDS, kinds_by_name, resolve_faults

__all__ = [
    "BUILT_IN_KINDS",
    "FaultKind",
    "Strike",
    "clean_up_faults",
    "heal_files",
    "kinds_by_name",
    "parse_fault",
    "resolve_faults",
]
