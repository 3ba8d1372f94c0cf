"""A server whose ranks are fresh interpreters.

For tests whose module cannot be imported in a process that is forked later, say because of a
module-level `jnp.ones(3)`. This server imports nothing but itself; each rank runs pytest anew. It
costs seconds per test instead of milliseconds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn

from pytest_multihost.launch.interface import RunRank
from pytest_multihost.launch.server.serve import serve
from pytest_multihost.launch.server.start_server import (
    ORDER,
    control_of,
    take_job_spec,
    write_job_spec,
)
from pytest_multihost.launch.wire.channel import Channel
from pytest_multihost.model.fault import hash_seed_of
from pytest_multihost.model.json_values import from_json, to_json
from pytest_multihost.model.spec import RankSpec

CODE = "from pytest_multihost.launch.server.spawn_server import main; main()"


def main() -> NoReturn:
    """Serve until the controller goes."""
    order = take_job_spec()
    run: RunRank = partial(exec_rank, code=order["code"], order=order["rank"])
    serve(control_of(order), run, controller=order["controller"])


def exec_rank(spec: RankSpec, channel: Channel, *, code: str, order: Mapping[str, Any]) -> NoReturn:
    """Become a fresh interpreter that runs `code` for `spec`."""
    seed = hash_seed_of(spec.world.faults, spec.rank, spec.world.seed)
    own = {} if seed is None else {"PYTHONHASHSEED": str(seed)}
    channel.stream.set_inheritable(True)
    errand = {**order, "spec": to_json(spec), "channel": channel.stream.fileno()}
    environment = {**os.environ, **own, ORDER: str(write_job_spec(errand))}
    os.execve(sys.executable, [sys.executable, "-c", code], environment)


def spec_of(order: Mapping[str, Any]) -> RankSpec:
    """Return the place in the world that an order carries."""
    return from_json(RankSpec, order["spec"])
