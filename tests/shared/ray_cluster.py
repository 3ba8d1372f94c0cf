"""A Ray cluster on this machine."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cluster import LIMIT_S, environment

UP = """
import sys
from ray.cluster_utils import Cluster

memory = 80_000_000
about = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": memory}
cluster = Cluster(initialize_head=True, head_node_args=about)
for _ in range(int(sys.argv[1]) - 1):
    cluster.add_node(num_cpus=2, object_store_memory=memory)
print(cluster.address, flush=True)
for line in sys.stdin:
    cluster.remove_node(list(cluster.worker_nodes)[-1], allow_graceful=False)
    print("removed", flush=True)
cluster.shutdown()
"""


@contextmanager
def ray_cluster(nodes: int) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run a cluster; yield its address, and its process, which kills a raylet for each line."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed: pip install 'pytest-multihost-hangs[ray]'")
    with subprocess.Popen(
        [sys.executable, "-c", UP, str(nodes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**environment(), "RAY_USAGE_STATS_ENABLED": "0"},
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip(), process
        process.communicate(timeout=LIMIT_S)
