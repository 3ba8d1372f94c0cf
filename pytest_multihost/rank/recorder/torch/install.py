"""Wrap what torch.distributed offers, once it has been imported.

The methods of the bound C++ class `ProcessGroup` are wrapped, not the functions of
`torch.distributed`. A test module that says `from torch.distributed import all_reduce` holds the
function itself, and putting a wrapper into torch's module would not reach it; but every such
function, DDP, FSDP and the object collectives all call the class. So one operation is recorded for
each call of the class: it is what the other ranks must match. What C++ calls in C++ only torch's
flight recorder sees.
"""

from __future__ import annotations

import contextlib
from types import ModuleType

from pytest_multihost.rank.recorder.after_import import after_import
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.rank.recorder.torch.flight_recorder import FlightRecorderThread
from pytest_multihost.rank.recorder.torch.group_creation import GroupCreationRecorder
from pytest_multihost.rank.recorder.torch.groups import Groups
from pytest_multihost.rank.recorder.torch.process_groups import ProcessGroupRecorder
from pytest_multihost.rank.recorder.torch.works import OpenWorks


def install(recorder: Recorder) -> None:
    """Record what this rank does through torch.distributed from now on, be it imported or not.

    What is wrapped takes, returns and raises what it did before.
    """
    name = "torch.distributed.distributed_c10d"
    after_import(name, lambda module: _wrap(recorder, module))


def _wrap(recorder: Recorder, module: ModuleType) -> None:
    groups = Groups(recorder, module)
    works = OpenWorks(recorder)
    calls = ProcessGroupRecorder(recorder, groups, works)
    flight = FlightRecorderThread(recorder, groups, works)
    creation = GroupCreationRecorder(recorder, groups, calls.details, flight)
    with contextlib.suppress(Exception):  # another version of torch: the rest is wrapped
        works.wrap(module.Work)
    with contextlib.suppress(Exception):
        calls.wrap(module.ProcessGroup)
    with contextlib.suppress(Exception):
        creation.wrap(module)
