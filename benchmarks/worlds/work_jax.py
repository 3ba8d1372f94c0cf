"""jax.distributed on CPU: one jitted sum over all ranks."""

import socket
import time

import jax
import numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

preload = ("jaxlib.mlir.dialects.builtin", "jaxlib.mlir.dialects.mhlo")
end = jax.distributed.shutdown


def start(rank, size, directory, port):
    while rank and not _accepts(port):  # a client that comes too early backs off for a second
        time.sleep(0.002)
    jax.config.update("jax_platforms", "cpu")
    place = f"127.0.0.1:{port}"
    jax.distributed.initialize(place, size, rank, cluster_detection_method="deactivate")


def _accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def work(size, value):
    mesh = Mesh(numpy.array(jax.devices()), ("rank",))
    split, whole = NamedSharding(mesh, PartitionSpec("rank")), NamedSharding(mesh, PartitionSpec())
    array = jax.make_array_from_callback((size,), split, lambda _: numpy.full(1, value, "f4"))
    return float(jax.jit(lambda x: x.sum(), out_shardings=whole)(array))
