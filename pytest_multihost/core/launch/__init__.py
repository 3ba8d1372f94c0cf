"""Start the ranks of worlds, and carry messages between the harness's processes.

* `interface`: the engine's interface to launchers. `composite_world`: a world on several servers.
  `remote_ranks`: the watchdog's interface to ranks on other machines.
* `server`: the process that forks ranks.
* `launcher_env`: launchers such as torchrun, and the rank that they give to a process in its
  variables. `meeting`: how the processes of one launcher meet.
* `frames`: messages as bytes. `wire`: connections of frames. `packets`: messages with file
  descriptors. `harness_collectives`: the harness's own barrier.
* `interpreter`: starts a new interpreter; `job_spec` is its job.
* `refusals`: errors when processes cannot start. `control_groups`: the memory and processes that
  are left. `capacity`: how many ranks fit. `memory_guard`: ends a world before memory runs out.
  `descriptor_limit`: the limit of open files. `own_descriptors`: connections that ranks must not
  inherit.
  `permits`: shares one machine between controllers.
* `ports`: reserves ports for ranks. `scratch`: directories that the ranks of a world share.
* `libc`: system calls. `reaper`: ends processes. `ending_signals`: signals that end a run as Ctrl-C
  does.
* `kernel_identity`: whether two processes see the same processes and the same clock.
"""

from pytest_multihost.core.launch.frames import Decoder, WireFrame, encode
from pytest_multihost.core.launch.harness_collectives import Answers, HarnessCollectives
from pytest_multihost.core.launch.interface import Ending, Launcher, RunningWorld, WorldProcesses
from pytest_multihost.core.launch.launcher_env import (
    LAUNCHERS,
    Membership,
    first_node,
    parse_address,
    read_membership,
)
from pytest_multihost.core.launch.permits import hold_permits
from pytest_multihost.core.launch.remote_ranks import RemoteRanks
from pytest_multihost.core.launch.wire import FrameStream

__all__ = [
    "LAUNCHERS",
    "Answers",
    "Decoder",
    "Ending",
    "FrameStream",
    "HarnessCollectives",
    "Launcher",
    "Membership",
    "RemoteRanks",
    "RunningWorld",
    "WireFrame",
    "WorldProcesses",
    "encode",
    "first_node",
    "hold_permits",
    "parse_address",
    "read_membership",
]
