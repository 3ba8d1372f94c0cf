"""What a rank does with other ranks through torch.distributed.

The methods of the bound C++ class `ProcessGroup` are wrapped, not the functions of
`torch.distributed`: test modules have long imported those by name, and DDP, FSDP and the object
collectives go through the class as well. So one operation is noted for each call of the class: it
is what the other ranks must match. What C++ calls in C++ only torch's flight recorder sees.
"""

from __future__ import annotations

import contextlib
from importlib.util import find_spec
from types import ModuleType
from typing import Literal

from pytest_multihost.rank.recorder.fast import library
from pytest_multihost.rank.recorder.imports import after_import
from pytest_multihost.rank.recorder.recorder import Recorder
from pytest_multihost.rank.recorder.torch_calls import Calls
from pytest_multihost.rank.recorder.torch_creation import Creation
from pytest_multihost.rank.recorder.torch_fast import put_before
from pytest_multihost.rank.recorder.torch_flight import Flight
from pytest_multihost.rank.recorder.torch_groups import Groups
from pytest_multihost.rank.recorder.torch_works import Works

Way = Literal["in C", "in Python"]


def install(recorder: Recorder, way: Way = "in C") -> None:
    """Note what this rank does through torch.distributed from now on, be it imported or not.

    What is wrapped takes, returns and raises what it did before.

    Args:
        recorder: What writes it down.
        way: Where the common calls are recorded; in Python all the same where there is no library.
    """
    if way == "in C" and find_spec("torch"):
        library.loaded()  # compiled before ranks are forked, if it must be
    name = "torch.distributed.distributed_c10d"
    after_import(name, lambda module: _watch(recorder, module, way))


def _watch(recorder: Recorder, module: ModuleType, way: Way) -> None:
    fast = library.loaded() if way == "in C" else None
    groups = Groups(recorder, module)
    works = Works(recorder, thread=fast.Local()) if fast else Works(recorder)
    calls = Calls(recorder, groups, works)
    flight = Flight(recorder, groups, works)
    creation = Creation(recorder, groups, calls.details, flight)
    with contextlib.suppress(Exception):  # another version of torch: the rest is watched
        works.watch(module.Work)
    with contextlib.suppress(Exception):
        calls.watch(module.ProcessGroup)
    if fast is not None:
        with contextlib.suppress(Exception):
            put_before(fast, calls, works, module)
    with contextlib.suppress(Exception):
        creation.watch(module)
