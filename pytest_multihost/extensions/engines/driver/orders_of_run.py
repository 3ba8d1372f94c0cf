"""Derives the orders of the peers from the driver's own run of pytest."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from pytest_multihost.core.launch.launcher_env import is_foreign
from pytest_multihost.core.option import CORE_OPTIONS, Settings
from pytest_multihost.core.pytest_plugin.options import offered_options
from pytest_multihost.extensions.engines.driver import heartbeats
from pytest_multihost.extensions.engines.driver.options import CARRY
from pytest_multihost.extensions.engines.driver.order import PeerOrder
from pytest_multihost.extensions.engines.driver.versions import PACKAGE

_NCCL = (
    "ALGO BUFFSIZE COLLNET_ENABLE COMM_BLOCKING CROSS_NIC DEBUG DEBUG_FILE DEBUG_SUBSYS"
    " DMABUF_ENABLE GRAPH_MIXING_SUPPORT IB_DISABLE IB_GID_INDEX IB_HCA IB_QPS_PER_CONNECTION"
    " IB_RETRY_CNT IB_SL IB_TC IB_TIMEOUT LAUNCH_MODE MAX_CTAS MAX_NCHANNELS MIN_CTAS"
    " MIN_NCHANNELS NET NET_GDR_LEVEL NET_PLUGIN NSOCKS_PERTHREAD NTHREADS NVB_DISABLE"
    " NVLS_ENABLE P2P_DISABLE P2P_LEVEL PROTO PXN_DISABLE SHM_DISABLE SOCKET_FAMILY"
    " SOCKET_IFNAME SOCKET_NTHREADS TOPO_FILE TUNER_PLUGIN"
)
_TORCH = (
    "CPP_LOG_LEVEL CUDA_ARCH_LIST DEVICE_BACKEND_AUTOLOAD DISTRIBUTED_DEBUG FR_BUFFER_SIZE LOGS"
    " NCCL_ASYNC_ERROR_HANDLING NCCL_AVOID_RECORD_STREAMS NCCL_BLOCKING_WAIT NCCL_DUMP_ON_TIMEOUT"
    " NCCL_ENABLE_MONITORING NCCL_ENABLE_TIMING NCCL_HEARTBEAT_TIMEOUT_SEC NCCL_TRACE_BUFFER_SIZE"
    " NCCL_USE_COMM_NONBLOCKING SHOW_CPP_STACKTRACES USE_CUDA_DSA"
)
_JAX = (
    "CPU_COLLECTIVES_IMPLEMENTATION DEBUG_NANS DEFAULT_MATMUL_PRECISION DISABLE_JIT ENABLE_X64"
    " LOG_COMPILES NUM_CPU_DEVICES PLATFORMS PLATFORM_NAME THREEFRY_PARTITIONABLE"
    " TRACEBACK_FILTERING"
)
_PYTEST = "ADDOPTS DISABLE_PLUGIN_AUTOLOAD PLUGINS THEME THEME_MODE DEBUG"

CARRIED = frozenset(
    {
        *(f"NCCL_{each}" for each in _NCCL.split()),
        *(f"TORCH_{each}" for each in _TORCH.split()),
        *(f"JAX_{each}" for each in _JAX.split()),
        *(f"PYTEST_{each}" for each in _PYTEST.split()),
        *(each.variable for each in CORE_OPTIONS),
        *("GLOO_SOCKET_IFNAME", "GLOO_DEVICE_TRANSPORT", "TP_SOCKET_IFNAME", "OMP_NUM_THREADS"),
        *("XLA_FLAGS", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION"),
        *("XLA_PYTHON_CLIENT_ALLOCATOR", "CI", "TZ", "LANG", "LC_ALL", "LC_CTYPE", "LC_MESSAGES"),
        *("PYTHONHASHSEED", "PYTHONWARNINGS", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH"),
        *("LC_NUMERIC", "LC_TIME", "LC_COLLATE"),
    }
)
"""Variables of the driver that the peers get, beside those of this package's own options.

Each is named in full: `CI_JOB_TOKEN`, `TORCH_HUB_TOKEN` and the like begin as harmless ones do.
"""

_OF_ATTACHED = ("ATTACH", "RANK", "SIZE", "ADDRESS", "SECRET", "SECRET_FILE", "SERVER")


def orders_of_run(
    config: pytest.Config, settings: Settings, engine: str, secret: str, count: int
) -> Sequence[PeerOrder]:
    """Return the order of each peer.

    Args:
        secret: The run's secret, in hexadecimal digits.
    """
    start = Path(config.invocation_params.dir)
    named = settings.get(CARRY)
    return [
        PeerOrder(
            plugin=version(PACKAGE),
            secret=secret,
            rank=rank,
            size=count + 1,
            engine=engine,
            args=tuple(_portable(str(arg), start) for arg in config.invocation_params.args),
            directory=str(start),
            landmarks=tuple(_landmarks(config, start)),
            environment=carried_variables(
                os.environ, {*(each.variable for each in offered_options(config)), *named}
            ),
            silent_s=heartbeats.SILENT_S,
            path=tuple(_below(start, sys.path)),
        )
        for rank in range(1, count + 1)
    ]


def carried_variables(
    environment: Mapping[str, str], further: Collection[str] = ()
) -> dict[str, str]:
    """Return the variables that the peers get from the driver.

    Args:
        further: Names that the user, or an option of a plugin, adds.
    """
    own = {f"PYTEST_MULTIHOST_{name}" for name in _OF_ATTACHED}
    return {
        name: value
        for name, value in environment.items()
        if (name in CARRIED or name in further) and name not in own and not is_foreign(name)
    }


def _portable(arg: str, start: Path) -> str:
    """Return an argument for another copy of the project: a path inside becomes relative."""
    path, separator, rest = arg.partition("::")
    if path.startswith("/") and Path(path).is_relative_to(start):
        return f"{Path(path).relative_to(start)}{separator}{rest}"
    return arg


def _landmarks(config: pytest.Config, start: Path) -> Sequence[str]:
    """Return files of the project relative to the directory where pytest was started."""
    named = [str(arg).partition("::")[0] for arg in config.args]
    found = [*([config.inipath] if config.inipath else []), *(start / each for each in named)]
    return list(dict.fromkeys(str(p.relative_to(start)) for p in found if p.is_relative_to(start)))


def _below(start: Path, entries: Sequence[str]) -> Sequence[str]:
    """Return the entries of `sys.path` below a directory, relative to it."""
    paths = [start / each for each in entries]
    return [str(each.relative_to(start)) for each in paths if each.is_relative_to(start)]
