"""What the I/O shim costs while it is idle, and what its delays and rates come to for real readers.

Idle: 1 GB from the page cache, with the shim and without it in turns, each in a process of its own
that reads the file several times. It is processor time, which is all that such a read takes. What
else runs on the machine can only add to it, so the fastest with the shim is compared with the
fastest without; how the pairs of the rounds differ is shown beside it. On a shared machine that
scatters by some percent, more than the bound. So the bound is held by what is the same in every
read: what a call costs more, of one byte, times the number of calls.
Readers: each in a process of its own with a file of 8 MB; the delay is compared with the number of
calls, the rate with the bytes. Files lie below --directory and are removed. Exits with 1 if
something is out of bounds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from pytest_multihost.core.preload import preload_variables
from pytest_multihost.extensions.faults.io_shim import find_library, why_missing

IDLE_BOUND = 0.01
DELAY_BOUND = 0.10
RATE_BOUND = 0.20
DELAY_S = 0.1
RATE = 16e6

IDLE = """
import mmap, os, sys, time
# A page of its own: how a buffer lies in its page changes the speed of copying by some percent.
descriptor, buffer = os.open(sys.argv[1], os.O_RDONLY), mmap.mmap(-1, int(sys.argv[2]))
buffer[:] = bytes(len(buffer))
best = 9e9
for _ in range(int(sys.argv[3])):
    began, at = time.process_time(), 0
    while moved := os.preadv(descriptor, [buffer], at):
        at += moved
    best = min(best, time.process_time() - began)
print(best)
"""

PRELUDE = """
import ctypes, json, os, pathlib, shutil, sys, time
from pytest_multihost.extensions.faults.io_shim import IoRule, attach
here = pathlib.Path.cwd()
file, SIZE = here / "target.bin", 8_000_000
file.write_bytes(os.urandom(SIZE))
def fread():
    c = ctypes.CDLL(None)
    c.fopen.restype, c.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p] * 2
    c.fread.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    stream, buffer = c.fopen(os.fsencode(file), b"rb"), ctypes.create_string_buffer(1 << 20)
    while c.fread(buffer, 1, 1 << 20, stream):
        pass
def pread():
    descriptor = os.open(file, os.O_RDONLY)
    for at in range(0, SIZE, 1_000_000):
        os.pread(descriptor, 1_000_000, at)
"""
MEASURE = """
path = sys.argv[1]
page = attach(here / "page")
read()
found = {}
for name, rule in {"delay": {"seconds": DELAY}, "rate": {"bytes_per_s": RATE}}.items():
    page.add(IoRule(path=path, **rule))
    began = time.monotonic()
    read()
    took, count = time.monotonic() - began, page.fired()[0]
    page.clear()
    began = time.monotonic()
    read()
    plain = time.monotonic() - began
    found[name] = [took, plain, count.struck, count.bytes, count.slept_s]
print(json.dumps(found))
"""
ARRAY = """
import numpy
values = numpy.random.default_rng(0).integers(0, 255, SIZE, dtype="u1")
"""
TENSORSTORE = (
    ARRAY
    + """
import tensorstore as ts
spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": str(here / "target")}}
chunks = ts.ChunkLayout(chunk_shape=[1_000_000])
array = ts.open(spec, create=True, dtype=ts.uint8, shape=[SIZE], chunk_layout=chunks).result()
array.write(values).result()
def read(): ts.open(spec).result().read().result()
"""
)
ORBAX = (
    ARRAY
    + """
import jax, orbax.checkpoint as ocp
jax.config.update("jax_platforms", "cpu")
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(here / "target", {"a": values})
def read():
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.restore(here / "target", {"a": values})
"""
)
TORCH = ARRAY + (
    "import torch\ntorch.save(torch.from_numpy(values), here / 'target.pt')\n"
    "def read(): torch.load(here / 'target.pt')\n"
)
READERS = {
    "open().read()": "def read(): file.open('rb').read()",
    "os.pread": "read = pread",
    "pathlib": "read = file.read_bytes",
    "shutil.copyfile": "def read(): shutil.copyfile(file, here / 'copy')",
    "C fread": "read = fread",
    "numpy.fromfile": "import numpy\ndef read(): numpy.fromfile(file, 'u1')",
    "numpy.load": ARRAY
    + "numpy.save(here / 'target.npy', values)\ndef read(): numpy.load(here / 'target.npy')",
    "torch.load": TORCH,
    "tensorstore zarr": TENSORSTORE,
    "orbax restore": ORBAX,
}
PATHS = {
    "numpy.load": "*/target.npy",
    "torch.load": "*/target.pt",
    "tensorstore zarr": "*/target/*",
    "orbax restore": "*/target/*",
}
"""Which files are slow; otherwise the 8 MB alone."""


def run(program: str, *args: str, cwd: Path, environment: Mapping[str, str]) -> Any:  # noqa: ANN401 - JSON
    """Run a program; returns the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *args],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
    )
    return json.loads(done.stdout.splitlines()[-1])


def with_shim() -> dict[str, str]:
    """Return an environment in which the shim is preloaded."""
    return {**os.environ, **preload_variables(os.environ, [find_library()])}


CALLS = """
import os, sys, time
descriptor, pread, best = os.open(sys.argv[1], os.O_RDONLY), os.pread, 9e9
for _ in range(20):
    began = time.process_time()
    for _ in range(20_000):
        pread(descriptor, 1, 0)
    best = min(best, time.process_time() - began)
print(best / 20_000)
"""


def call_cost(file: Path, rounds: int) -> float:
    """Return what a call takes longer with the shim, in seconds."""
    ways, best = [dict(os.environ), with_shim()], [9e9, 9e9]
    for turn in range(rounds):
        for way in (0, 1) if turn % 2 else (1, 0):
            took = run(CALLS, str(file), cwd=file.parent, environment=ways[way])
            best[way] = min(best[way], took)
    print(f"  a call of one byte: {best[0] * 1e9:.0f} ns without, {best[1] * 1e9:.0f} ns with it")
    return best[1] - best[0]


def idle(directory: Path, *, size: int, rounds: int) -> bool:
    """Print what an idle shim costs; return whether it is within bounds."""
    file = directory / "large"
    with file.open("wb") as stream:
        for _ in range(0, size, 1 << 20):
            stream.write(bytes(1 << 20))
    fine = True
    more = call_cost(file, 2 * rounds)
    for buffer in (4096, 1 << 17, 1 << 20):
        pairs = []
        for turn in range(rounds):
            ways = [dict(os.environ), with_shim()]
            took = [0.0, 0.0]
            for way in (0, 1) if turn % 2 else (1, 0):
                args = (str(file), str(buffer), "5")
                took[way] = run(IDLE, *args, cwd=directory, environment=ways[way])
            pairs.append(took)
        costs = sorted(with_it / without - 1 for without, with_it in pairs)
        plain = min(without for without, _ in pairs)
        cost = min(with_it for _, with_it in pairs) / plain - 1
        share = more * size / buffer / plain
        fine &= share <= IDLE_BOUND
        print(
            f"  {size / 1e9:.2f} GB in reads of {buffer:>7} bytes: {plain:.3f} s without;"
            f" its calls cost {share:+.2%} more; with the shim {cost:+.2%}"
            f" (pairs: median {median(costs):+.2%}, {costs[0]:+.2%} to {costs[-1]:+.2%})"
        )
    file.unlink()
    return fine


def reader(name: str, directory: Path) -> bool:
    """Print what a reader met; return whether it is within bounds."""
    setting = f"DELAY, RATE = {DELAY_S}, {RATE}\n"
    program = setting + PRELUDE + READERS[name] + MEASURE
    path = PATHS.get(name, "*/target.bin")
    found = run(program, path, cwd=directory, environment=with_shim())
    took, plain, calls, _, slept = found["delay"]
    delay = slept / (calls * DELAY_S) - 1
    took_rate, plain_rate, calls_rate, moved, _ = found["rate"]
    rate = moved / (took_rate - plain_rate) / RATE - 1
    print(
        f"  {name:<17} {calls:>4} calls  {calls * DELAY_S:6.1f} s {slept:8.3f} s {delay:+7.1%}"
        f"  {took - plain:7.3f} s    {moved / 1e6:6.2f} MB in {calls_rate:>4} calls"
        f" {(took_rate - plain_rate):7.3f} s {rate:+7.1%}"
    )
    return abs(delay) <= DELAY_BOUND and abs(rate) <= RATE_BOUND


def main() -> int:
    """Measure both; returns 0 if all is within bounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--directory", type=Path, default=Path("/dev/shm"))  # noqa: S108 - memory
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", type=int, default=1 << 30)
    options = parser.parse_args()
    if find_library() is None:
        print(f"There is no shim: {why_missing()}")
        return 1
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        print("An idle shim:")
        fine = idle(Path(directory), size=options.size, rounds=options.rounds)
        print(f"{DELAY_S} s per call: asked, slept, off, in all; {RATE / 1e6:.0f} MB/s: took, off")
        for number, name in enumerate(READERS):
            own = Path(directory, str(number))
            own.mkdir()
            fine &= reader(name, own)
    print("All within bounds." if fine else "Out of bounds.")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
