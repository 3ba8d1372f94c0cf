"""Each fault against the real thing: what was asked for, and what was observed.

Tests with faults are run by pytest in ranks; what they measure comes back by a file. Delays and
rates are told from the time that something took longer than without the fault - but for orbax,
whose threads read side by side, from the time that its calls slept, as the shim counts it -, shares
of a processor from the rank's own clocks. Then a hang that depends on the order of the ranks
is repeated by its token, and 1 GB is read through the idle shim. Prints Markdown; exits with 1 if
something is out of bounds: delays 10 %, rates 20 %, shares 5 points,
memory 10 %, all else exact.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import io_shim

REPEATS = 20
KINDS = {"delay": "10 %", "memory": "10 %", "rate": "20 %", "share": "5 points", "exact": "exact"}

MEASURED = r"""
import itertools, json, os, pathlib, time
import numpy as np
import pytest
from pytest_multihost import at, faults
from pytest_multihost.extensions.faults.io_shim import IoPage

FROM_NOW = at.sync_point("from now")
DELAY, RATE, MB = 0.05, 8e6, 1_000_000
BESIDE_S = 0.5

def world_of(*given, ranks=2, **more):
    return pytest.mark.multihost(ranks=ranks, timeout=90, faults=list(given), **more)

def tell(fault, against, kind, asked, observed, unit):
    line = {"fault": fault, "against": against, "kind": kind, "asked": asked,
            "observed": observed, "unit": unit}
    with open(os.environ["MEASURED"], "a") as file:
        file.write(json.dumps(line) + "\n")

def took(action):
    began = time.monotonic()
    action()
    return time.monotonic() - began

def io_count():
    return IoPage.open(pathlib.Path(os.environ["PYTEST_MULTIHOST_IO_SHIM"])).fired()[0]

# -- Files --

@pytest.fixture
def restore(world, shared_tmp_path):
    "Save 8 MB, half on each rank; return what restores them, from files."
    import jax, orbax.checkpoint as ocp
    from jax.sharding import NamedSharding, PartitionSpec
    values = np.random.default_rng(0).standard_normal((2, MB)).astype("f8")
    mesh = jax.make_mesh((world.size,), ("host",))
    sharding = NamedSharding(mesh, PartitionSpec("host"))
    state = {"a": jax.make_array_from_callback(values.shape, sharding, lambda i: values[i])}
    path = shared_tmp_path / "ckpt"
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, state)
    like = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
    def restore():
        with ocp.StandardCheckpointer() as checkpointer:
            restored = checkpointer.restore(path, like)
        np.testing.assert_array_equal(restored["a"].addressable_shards[0].data[0],
                                      values[world.rank].astype(restored["a"].dtype))
    return restore

@world_of(faults.slow_io(rank=0, seconds=DELAY, path="*/ckpt/*", at=FROM_NOW), backend="jax")
def test_orbax_delay(world, restore):
    plain = took(restore)
    world.sync_point("from now")
    whole = took(restore)
    if world.rank == 0:
        count = io_count()
        tell("slow_io(seconds)", f"orbax restore from disk, {count.struck} calls, slept", "delay",
             DELAY, count.slept_s / count.struck, "s a call")
    else:
        assert whole > plain + DELAY  # it waits for the rank that is slow

@world_of(faults.slow_io(rank=0, bytes_per_s=RATE, path="*/ckpt/*", at=FROM_NOW), backend="jax")
def test_orbax_rate(world, restore):
    plain = took(restore)
    world.sync_point("from now")
    whole = took(restore)
    if world.rank == 0:
        count = io_count()
        tell("slow_io(bytes_per_s)", f"orbax restore from disk, {count.bytes / MB:.1f} MB",
             "rate", RATE / MB, count.bytes / (whole - plain) / MB, "MB/s")

def loader(files):
    import torch
    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return len(files)
        def __getitem__(self, index):
            with open(files[index], "rb", buffering=0) as file:
                return len(file.read(MB))
    return torch.utils.data.DataLoader(Files(), num_workers=2, batch_size=4)

@pytest.fixture
def files(tmp_path):
    (tmp_path / "data").mkdir()
    found = [tmp_path / "data" / str(n) for n in range(16)]
    for each in found:
        each.write_bytes(bytes(MB))
    return found

@world_of(faults.slow_io(rank=0, seconds=DELAY, path="*/data/*", at=FROM_NOW))
def test_loader_delay(world, files):
    plain = took(lambda: list(loader(files)))
    world.sync_point("from now")
    whole = took(lambda: list(loader(files)))
    if world.rank == 0:
        count = io_count()  # the two workers wait side by side
        tell("slow_io(seconds)", f"torch DataLoader, 2 workers, {count.struck} calls", "delay",
             DELAY, 2 * (whole - plain) / count.struck, "s a call")

@world_of(faults.slow_io(rank=0, bytes_per_s=RATE, path="*/data/*", at=FROM_NOW))
def test_loader_rate(world, files):
    plain = took(lambda: list(loader(files)))
    world.sync_point("from now")
    whole = took(lambda: list(loader(files)))
    if world.rank == 0:
        tell("slow_io(bytes_per_s)", "torch DataLoader, 2 workers, 16 MB", "rate",
             RATE / MB, io_count().bytes / (whole - plain) / MB, "MB/s")

@world_of(faults.slow_io(rank=0, error="EIO", path="*/model.pt", at=FROM_NOW))
def test_error(world, tmp_path):
    import torch
    torch.save(torch.ones(1000), tmp_path / "model.pt")
    world.sync_point("from now")
    found = 0
    try:
        torch.load(tmp_path / "model.pt")
    except OSError as error:
        found = error.errno
    if world.rank == 0:
        tell("slow_io(error)", "torch.load", "exact", 5, found, "errno")

# -- Object storage --

@pytest.fixture
def read_s3(world, object_store):
    import tensorstore as ts
    spec = {"driver": "zarr", "kvstore": object_store.tensorstore_kvstore("array/")}
    if world.is_primary:
        array = ts.open(spec, create=True, dtype=ts.uint8, shape=[4 * MB],
                        chunk_layout=ts.ChunkLayout(chunk_shape=[MB])).result()
        array.write(np.random.default_rng(0).integers(0, 255, 4 * MB, dtype="u1")).result()
    world.barrier("written")
    return lambda: ts.open(spec).result().read().result()

@world_of()
def test_s3(world, read_s3, object_store):
    if not world.is_primary:
        return
    read_s3()
    plain = took(read_s3)
    object_store.slow(seconds=0.5, methods=["GET"])
    whole = took(read_s3)
    tell("object_store.slow", "tensorstore S3 read, metadata then chunks", "delay", 0.5,
         (whole - plain) / 2, "s a request")
    object_store.heal()
    object_store.throttle(bytes_per_s=4e6)
    whole = took(read_s3)
    moved = object_store.fired()[0].bytes
    tell("object_store.throttle", f"tensorstore S3 read, {moved / MB:.1f} MB", "rate", 4.0,
         moved / (whole - plain) / MB, "MB/s")

# -- Points --

def waited(world, what):
    "How long the others wait for rank 1."
    world.barrier("begin")
    return took(what)

@world_of(faults.delay(rank=1, seconds=BESIDE_S, at=at.collective("all_reduce", nth=2)),
          backend="gloo")
def test_delay_gloo(world):
    import torch, torch.distributed as dist
    x = torch.ones(1000)
    plain = waited(world, lambda: dist.all_reduce(x))
    late = waited(world, lambda: dist.all_reduce(x))
    if world.rank == 0:
        tell("delay", "gloo all_reduce, as the other rank waits", "delay", BESIDE_S,
             late - plain, "s")

@world_of(faults.freeze(rank=1, seconds=BESIDE_S, at=at.collective("all_reduce", nth=2)),
          backend="gloo")
def test_freeze_gloo(world):
    import torch, torch.distributed as dist
    x = torch.ones(1000)
    plain = waited(world, lambda: dist.all_reduce(x))
    late = waited(world, lambda: dist.all_reduce(x))
    if world.rank == 0:
        tell("freeze", "gloo all_reduce, as the other rank waits", "delay", BESIDE_S,
             late - plain, "s")

@world_of(faults.delay(rank=0, seconds=BESIDE_S, at=at.call("jax:device_put", nth=2)),
          backend="jax")
def test_delay_jax(world):
    import jax
    values = np.ones(1000)
    put = lambda: jax.block_until_ready(jax.device_put(values))
    plain, late = took(put), took(put)
    if world.rank == 0:
        tell("delay", "jax.device_put", "delay", BESIDE_S, late - took(put), "s")

@world_of(faults.memory_pressure(rank=0, headroom_mb=256, at=FROM_NOW), backend="jax")
def test_memory_jax(world):
    import jax
    values = np.ones(1 << 20, dtype="f4")  # 4 MiB
    for _ in range(20):  # jax's threads come with the first ones: their stacks are data, too
        jax.block_until_ready(jax.device_put(values + 1, may_alias=False))
    world.sync_point("from now")
    kept = []
    try:
        while len(kept) < 100:
            kept.append(jax.block_until_ready(jax.device_put(values + 1, may_alias=False)))
    except (MemoryError, RuntimeError, ValueError):
        pass
    found = sum(each.nbytes for each in kept) / (1 << 20)
    if world.rank == 0:
        tell("memory_pressure", "jax.device_put, 4 MiB each", "memory", 256, found, "MiB")
    else:
        assert len(kept) == 100

@world_of(faults.fd_pressure(rank=0, headroom=8, at=FROM_NOW))
def test_descriptors(world, files):
    world.sync_point("from now")
    opened = []
    try:
        for each in files:
            opened.append(open(each))
    except OSError:
        pass
    count = len(opened)
    while opened:
        opened.pop().close()
    if world.rank == 0:
        tell("fd_pressure", "open, 16 files", "exact", 8, count, "files")

def measure_share(world, percent):
    import torch
    x = torch.ones(200, 200)
    world.sync_point("from now")
    if world.rank == 0:
        began, used = time.monotonic(), time.process_time()
        while time.monotonic() - began < 4:
            x @ x
        share = (time.process_time() - used) / (time.monotonic() - began)
        tell("cpu_throttle", "torch matmul, one thread", "share", percent, 100 * share, "%")

@world_of(faults.cpu_throttle(rank=0, percent=20, at=FROM_NOW))
def test_share_20(world):
    measure_share(world, 20)

@world_of(faults.cpu_throttle(rank=0, percent=50, at=FROM_NOW))
def test_share_50(world):
    measure_share(world, 50)

@world_of(faults.cpu_throttle(rank=0, percent=80, at=FROM_NOW))
def test_share_80(world):
    measure_share(world, 80)

@world_of(faults.kill(rank=1, at=at.collective("all_reduce", nth=2)), backend="gloo")
def test_kill(world):
    import torch, torch.distributed as dist
    x = torch.ones(1000)
    dist.all_reduce(x)
    found = 1
    try:
        dist.all_reduce(x)
        found = 2
    except RuntimeError:
        pass
    tell("kill", "gloo all_reduce, before the second", "exact", 1, found, "all_reduce done")

@world_of(faults.raise_at(rank=1, error="ConnectionError", at=at.call("jax:device_put", nth=2)),
          backend="jax")
def test_raise(world):
    import jax
    jax.device_put(1)
    found = 0
    try:
        jax.device_put(2)
    except ConnectionError:
        found = 1
    if world.rank == 1:
        tell("raise_at", "jax.device_put, the second", "exact", 1, found, "ConnectionError")

@world_of(faults.hash_seed(), ranks=3)
def test_seed(world):
    orders = set(world.gather(hash("text")))
    if world.is_primary:
        tell("hash_seed", "hash of a text, 3 ranks", "exact", 3, len(orders), "hashes")

@world_of(faults.start_skew(rank=1, seconds=1), backend="gloo")
def test_skew(world):
    pass

@world_of(backend="gloo")
def test_no_skew(world):
    pass
"""

ORDERED = """
import os
import pytest
from pytest_multihost import at, faults

@pytest.mark.multihost(ranks=2, timeout=30, faults=[
    faults.delay(rank="one", seconds=0.4, at=at.sync_point("elect"))])
def test_it(world, shared_tmp_path):
    world.barrier("begin")
    world.sync_point("elect")
    try:  # whoever comes first leads; the code below takes it for granted that this is rank 0
        os.close(os.open(shared_tmp_path / "leader", os.O_CREAT | os.O_EXCL))
        leads = True
    except FileExistsError:
        leads = False
    if leads and world.rank == 1:
        world.barrier("led by the wrong one")
    world.barrier("end")
"""


def run_pytest(directory: Path, source: str, *args: str) -> tuple[str, list[dict[str, Any]]]:
    """Run tests there; return the output and the verdicts."""
    (directory / "test_faults.py").write_text(source)
    (directory / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "multihost_hangs", *args],
        cwd=directory,
        env={
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "MEASURED": str(directory / "measured"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    verdicts = (directory / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    return done.stdout + done.stderr, [json.loads(line) for line in verdicts]


def measure(directory: Path) -> bool:
    """Print the table; return whether all is within bounds."""
    output, verdicts = run_pytest(directory, MEASURED)
    lines = (directory / "measured").read_text().splitlines()
    rows = [json.loads(line) for line in lines] + list(skew_of(verdicts))
    print("| fault | against | asked | observed | off | bound | |")
    print("|---|---|---|---|---|---|---|")
    fine = [show(**row) for row in rows]
    failed = [each["nodeid"] for each in verdicts if each["status"] != "passed"]
    if failed:
        print(f"\nNot measured: {', '.join(failed)}\n{output[-6000:]}")
    return all(fine) and not failed


def skew_of(verdicts: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield how much later a world with a rank that comes late was ready."""
    startup = {each["nodeid"].rpartition("::")[2]: each["startup_s"] for each in verdicts}
    late = startup["test_skew"] - startup["test_no_skew"]
    yield {
        "fault": "start_skew",
        "against": "gloo rendezvous of 2 ranks",
        "kind": "delay",
        "asked": 1,
        "observed": late,
        "unit": "s",
    }


def show(*, fault: str, against: str, kind: str, asked: float, observed: float, unit: str) -> bool:
    """Print a row; return whether it is within bounds."""
    share = observed - asked
    off = share / asked
    bounds = {
        "delay": abs(off) <= 0.10,
        "memory": abs(off) <= 0.10,
        "rate": abs(off) <= 0.20,
        "share": abs(share) <= 5,
    }
    is_fine = bounds.get(kind, observed == asked)
    told = f"{share:+.1f} points" if kind == "share" else f"{off:+.1%}"
    print(
        f"| {fault} | {against} | {asked:g} {unit} | {observed:.4g} {unit} | {told}"
        f" | {KINDS[kind]} | {'ok' if is_fine else 'OUT OF BOUNDS'} |"
    )
    return is_fine


def repeat(directory: Path) -> bool:
    """Find a hang that depends on who is late, and repeat it by its token."""
    for seed in range(20):
        output, [verdict] = run_pytest(directory, ORDERED, "--multihost-seed", str(seed))
        if verdict["outcome"] == "hung":
            break
    (token,) = set(re.findall(r"--multihost-replay (\S+)", output))
    same = 0
    for seed in range(REPEATS):
        args = ("--multihost-replay", token, "--multihost-seed", str(seed))
        _, [again] = run_pytest(directory, ORDERED, *args)
        diagnoses = [
            each["diagnosis"] and each["diagnosis"]["summary"] for each in (verdict, again)
        ]
        same += again["outcome"] == "hung" and diagnoses[0] == diagnoses[1]
    print(f"\nA hang of one order of the ranks, repeated by its token: {same} of {REPEATS}.")
    print(f"  {verdict['diagnosis']['summary']}")
    return same == REPEATS


def main() -> int:
    """Measure all; returns 0 if it is within bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="of reads through the idle shim")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        fine = measure(Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        fine &= repeat(Path(directory))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        print("\nAn idle shim:")
        fine &= io_shim.idle(Path(directory), size=1 << 30, rounds=options.rounds)
    print("\nAll within bounds." if fine else "\nOut of bounds.")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
