"""Start the ranks of worlds, and carry messages between the harness's processes.

* `interface`: what the engine asks of a launcher. `composite_world`: a world on several servers.
  `remote_ranks`: ranks on other machines, as the watchdog sees them.
* `server`: the process that forks ranks.
* `launcher_env`: launchers such as torchrun, and the rank that they give to a process in its
  variables. `meeting`: how the processes of one launcher meet.
* `frames`: how messages become bytes. `wire`: connections of frames. `packets`: messages with file
  descriptors. `harness_collectives`: the harness's own barrier.
* `interpreter`: runs a new interpreter; `job_spec` is its job.
* `refusals`: why processes cannot start. `permits`: how several controllers share one machine.
* `ports`: ports that are kept free for ranks.
* `libc`, `reaper`: deal with processes. `ending_signals`: signals that end a run as Ctrl-C does.
* `kernel_identity`: whether two processes see the same processes and the same clock.
"""

from pytest_multihost.core.launch.harness_collectives import HarnessCollectives
from pytest_multihost.core.launch.interface import Ending, Launcher, RunningWorld, WorldProcesses
from pytest_multihost.core.launch.permits import hold_permits
from pytest_multihost.core.launch.remote_ranks import RemoteRanks

__all__ = [
    "Ending",
    "HarnessCollectives",
    "Launcher",
    "RemoteRanks",
    "RunningWorld",
    "WorldProcesses",
    "hold_permits",
]
