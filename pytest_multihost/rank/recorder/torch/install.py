"""What a rank does with other ranks through torch.distributed.

The methods of the bound C++ class `ProcessGroup` are wrapped, not the functions of
`torch.distributed`: test modules have long imported those by name, and DDP, FSDP and the object
collectives go through the class as well. So one operation is noted for each call of the class: it
is what the other ranks must match. What C++ calls in C++ only torch's flight recorder sees.
"""

from __future__ import annotations

import contextlib
from types import ModuleType

from pytest_multihost.rank.recorder.after_import import after_import
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.rank.recorder.torch.flight_recorder import Flight
from pytest_multihost.rank.recorder.torch.group_creation import Creation
from pytest_multihost.rank.recorder.torch.groups import Groups
from pytest_multihost.rank.recorder.torch.process_groups import Calls
from pytest_multihost.rank.recorder.torch.works import Works


def install(recorder: Recorder) -> None:
    """Note what this rank does through torch.distributed from now on, be it imported or not.

    What is wrapped takes, returns and raises what it did before.
    """
    name = "torch.distributed.distributed_c10d"
    after_import(name, lambda module: _watch(recorder, module))


def _watch(recorder: Recorder, module: ModuleType) -> None:
    groups = Groups(recorder, module)
    works = Works(recorder)
    calls = Calls(recorder, groups, works)
    flight = Flight(recorder, groups, works)
    creation = Creation(recorder, groups, calls.details, flight)
    with contextlib.suppress(Exception):  # another version of torch: the rest is watched
        works.watch(module.Work)
    with contextlib.suppress(Exception):
        calls.watch(module.ProcessGroup)
    with contextlib.suppress(Exception):
        creation.watch(module)
