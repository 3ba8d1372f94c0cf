"""Backend ``jax``: `jax.distributed` on CPU, with gloo collectives.

One timeout cannot be set: gloo's 30 s for the first collective between a set of devices, counted
from the first rank that enters it (XLA never sets it). A rank that is later fails the others.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import sys
import time
from collections.abc import Mapping

from pytest_multihost.core.backends.backend import Backend
from pytest_multihost.core.jax_private import (
    IMPORTED_LATE,
    advertise_to_gloo,
    search_plugins_once,
)
from pytest_multihost.core.model.spec import RankSpec, WorldSpec
from pytest_multihost.core.trust import require_own_listener

_MARGIN_S = 60.0
_POLL_S = 0.002
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=(\S*)")
_TIMEOUT_FLAGS = (
    "--xla_cpu_collective_timeout_seconds",
    "--xla_cpu_collective_call_terminate_timeout_seconds",
)

_TIMEOUTS = ("initialization_timeout", "heartbeat_timeout_seconds", "shutdown_timeout_seconds")


def runtime_timeout_s(world: WorldSpec) -> int | None:
    """Return one value for jax's own timeouts, in seconds, longer than the test's deadline.

    None if runtimes keep their own timeouts, because the test is about their effects.
    """
    if world.keeps_timeouts:
        return None
    return int(world.startup_timeout_s + world.timeout_s + _MARGIN_S)


def xla_flags(inherited: str, timeout_s: int | None) -> str:
    """Return XLA_FLAGS for a rank.

    Args:
        inherited: The user's flags. Their timeouts stay; their device count is removed,
            because jax gets the number of devices from its settings, and XLA refuses a second one.
        timeout_s: XLA's timeout for a collective, in seconds; None: its own.
    """
    kept = _DEVICE_COUNT.sub("", inherited).split()
    flags = _TIMEOUT_FLAGS if timeout_s is not None else ()
    added = [f"{flag}={timeout_s}" for flag in flags if flag not in inherited]
    return " ".join(kept + added)


def devices_of_env(env: Mapping[str, str]) -> int | None:
    """Return how many devices XLA_FLAGS in a test's own environment gives each rank, if it says."""
    found = _DEVICE_COUNT.findall(env.get("XLA_FLAGS", ""))
    return int(found[-1]) if found and found[-1].isdecimal() else None


def _start(spec: RankSpec) -> None:
    timeout_s = runtime_timeout_s(spec.world)
    os.environ["XLA_FLAGS"] = xla_flags(os.environ.get("XLA_FLAGS", ""), timeout_s)
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", spec.world.local_devices)
    host, port = spec.world.host_of(0).address, spec.ports[1]
    address = f"{host}:{port}"
    # A client that comes before the primary's service listens would back off for 1 s. The wait has
    # no timeout of its own; the world's startup timeout applies.
    while not (spec.is_primary or _is_reached(host, port)) or not _is_own(spec, port):
        time.sleep(_POLL_S)
    if not spec.world.shares_files:
        advertise_to_gloo(spec.host.address)
    jax.distributed.initialize(
        address,
        spec.world.size,
        spec.rank,
        coordinator_bind_address=address,
        cluster_detection_method="deactivate",
        **({} if timeout_s is None else dict.fromkeys(_TIMEOUTS, timeout_s)),
    )
    jax.devices()


def _is_reached(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0


def _is_own(spec: RankSpec, port: int) -> bool:
    """Return whether no other user's process is, or can come, at the primary's port.

    Another machine has its own port of that number. A stranger's process may stop to listen while
    it is looked for, so on this machine the primary's process must listen.
    """
    is_here = spec.host.address == spec.world.host_of(0).address
    return not is_here or require_own_listener(port) or spec.is_primary


def _preload() -> None:
    """Import jax and the modules that it imports when it compiles, and search for its plugins.

    None of that starts a thread or a backend. Otherwise every rank would spend 60 ms of CPU on it.
    """
    import jax  # noqa: F401

    for name in IMPORTED_LATE:
        with contextlib.suppress(ImportError):  # another version of jaxlib
            importlib.import_module(name)
    search_plugins_once()


JAX = Backend(
    name="jax",
    package="jax",
    extra="jax",
    start=_start,
    preload=_preload,
    devices=lambda: tuple(sys.modules["jax"].local_devices()),  # imported at the start
    devices_of_env=devices_of_env,
    primary_leaves_last=True,
    connects_by_proxies=True,
    noise=(r"\[Gloo\] Rank \d+ is connected to \d+ peer ranks\.",),
    hints={
        r"distributed\.initialize\S* (should only be called once|must be called before)": (
            "The backend has initialised jax.distributed already: remove the test's call, or give"
            ' the test backend="none".'
        )
    },
    symptoms=(
        r"Gloo [\w-]+ failed: .*(Connection closed|reset by peer|Connect timeout|Timed out)",
        r"Gloo [\w-]+ failed: Application timeout caused pair closure",
        r"Gloo context initialization failed: .*(DEADLINE_EXCEEDED|Connect timeout|Timed out)",
        r"Gloo context initialization failed: .*(reset by peer|Connection closed by peer)",
        r"Barrier (failed|timed out)",
        r"[Hh]eartbeat timeout",
        r"(UNAVAILABLE|CANCELLED|DEADLINE_EXCEEDED): .*(coordination|RPC|Socket closed)",
        r"GetKeyValue\(\) timed out",
    ),
    fatal_symptoms=(
        r"client\.h:\d+\] Terminating process because the JAX distributed service",
        r"Failed to send RPC to coordination service",
    ),
)
