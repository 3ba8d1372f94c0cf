"""A server whose ranks are fresh interpreters.

For tests whose module cannot be imported in a process that is forked later, say because of a
module-level `jnp.ones(3)`. This server imports nothing but itself, so it stays sound to fork; each
rank is forked and becomes an interpreter that runs pytest anew. It costs seconds per test instead
of milliseconds.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import NoReturn

from pytest_multihost.launch.interface import RunRank
from pytest_multihost.launch.job_spec import (
    JOB_VARIABLE,
    RankJob,
    SpawnServerJob,
    open_control,
    take_job,
    write_job,
)
from pytest_multihost.launch.server.serve import serve
from pytest_multihost.launch.wire.channel import Channel
from pytest_multihost.model.fault import hash_seed_of
from pytest_multihost.model.spec import RankSpec

SPAWN_SERVER_CODE = "from pytest_multihost.launch.server.spawn_server import main; main()"


def main() -> NoReturn:
    """Serve until the controller goes."""
    job: SpawnServerJob = take_job(SpawnServerJob)
    run: RunRank = partial(exec_rank, job=job)
    serve(open_control(job), run, controller=job.controller)


def exec_rank(spec: RankSpec, channel: Channel, *, job: SpawnServerJob) -> NoReturn:
    """Become a fresh interpreter that is the rank of `spec`."""
    seed = hash_seed_of(spec.world.faults, spec.rank, spec.world.seed)
    own = {} if seed is None else {"PYTHONHASHSEED": str(seed)}
    channel.stream.set_inheritable(True)
    rank = RankJob(run=job.run, spec=spec, channel=channel.stream.fileno())
    environment = {**os.environ, **own, JOB_VARIABLE: str(write_job(rank))}
    os.execve(sys.executable, [sys.executable, "-c", job.code], environment)
