"""Start the ranks of worlds, and carry messages between the harness's processes.

`wire` has the framing, `server` the process that forks ranks, `netns` and `docker` make hosts for
them, `attach` starts them through several processes of a launcher such as torchrun.

Beside them: `interface` is what the engine asks of a launcher, with a world on several servers, why
processes cannot start, and how several controllers share one machine; `harness_collectives` is the
harness's own barrier, `interpreter` runs a new interpreter and `job_spec` is its job;
`launcher_env` is which rank the variables of a launcher such as torchrun give to a process,
`container_entry` the first program of a container; `libc` and `reaper` deal with processes, and
with the signals that end a run as Ctrl-C does.
"""

from pytest_multihost.launch.harness_collectives import HarnessCollectives
from pytest_multihost.launch.interface import (
    Ending,
    Launcher,
    RemotePart,
    RunningWorld,
    WorldProcesses,
    hold_permits,
    require_jumping_clock,
)

__all__ = [
    "Ending",
    "HarnessCollectives",
    "Launcher",
    "RemotePart",
    "RunningWorld",
    "WorldProcesses",
    "hold_permits",
    "require_jumping_clock",
]
