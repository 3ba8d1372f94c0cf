"""Start the ranks of worlds, and carry messages between the harness's processes.

* `interface`: what the engine asks of a launcher, with a world on several servers, why processes
  cannot start, and how several controllers share one machine.
* `server`: the process that forks ranks.
* `launcher_env`: such launchers, and the rank that they give to a process in its variables.
* `wire`: connections and frames. `harness_collectives`: the harness's own barrier.
* `interpreter`: runs a new interpreter; `job_spec` is its job.
* `ports`: ports that are kept free for ranks.
* `libc`, `reaper`: deal with processes, and with the signals that end a run as Ctrl-C does.
"""

from pytest_multihost.core.launch.harness_collectives import HarnessCollectives
from pytest_multihost.core.launch.interface import (
    Ending,
    Launcher,
    RunningWorld,
    WorldProcesses,
    hold_permits,
)
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
