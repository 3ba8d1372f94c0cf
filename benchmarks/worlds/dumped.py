"""Run one program of the corpus as a plain script of torch, and dump its flight recorders.

    python dumped.py MODULE TEST RANKS DIR SECONDS

Some seconds after all ranks are up, each dumps its recorder to DIR/trace_RANK, as far as it can: a
rank whose thread cannot run, or that is gone, leaves none. Then all are ended. gloo's recorder does
not list the members of groups (torch 2.13). They are added as NCCL's recorder writes them, since
torch's own analyser needs them.
"""

import importlib
import inspect
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path

import torch.distributed as dist
from torch._C import _distributed_c10d as bindings

POLL_S = 0.05
UP_S = 30.0
DUMPED_S = 4.0
COMPILER = "torch._inductor"


class World:
    """What the programs use of the fixture `world`; its barrier leaves no trace in torch."""

    def __init__(self, rank, size, directory):
        self.rank, self.size, self.directory = rank, size, directory
        self.is_primary, self.met = rank == 0, 0

    def barrier(self, name=""):
        self.met += 1
        (self.directory / f"met-{name}-{self.met}-{self.rank}").touch()
        while len([*self.directory.glob(f"met-{name}-{self.met}-*")]) < self.size:
            time.sleep(POLL_S)


def dump_when_asked(rank, directory):
    while not (directory / "now").exists():
        time.sleep(POLL_S)
    sys.modules.setdefault(COMPILER, None)  # torch would import it, for seconds
    trace = pickle.loads(bindings._dump_fr_trace())  # noqa: S301, SLF001 - of this process
    world = dist.distributed_c10d._world  # noqa: SLF001 - no public way
    trace["pg_config"] = {
        name: {
            "name": name,
            "desc": "default_pg" if name == "0" else "undefined",
            "ranks": str(sorted(world.pg_group_ranks[group])),
        }
        for group, name in list(world.pg_names.items())
        if group in world.pg_group_ranks
    }
    draft = directory / f"draft.{rank}"
    draft.write_bytes(pickle.dumps(trace, protocol=2))
    draft.rename(directory / f"trace_{rank}")


def be_rank(rank, size, function, directory):
    os.setsid()
    log = os.open(directory / f"rank-{rank}.log", os.O_CREAT | os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    threading.Thread(target=dump_when_asked, args=(rank, directory), daemon=True).start()
    store = dist.FileStore(str(directory / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    (directory / f"up-{rank}").touch()
    values = {
        "world": World(rank, size, directory),
        "shared_tmp_path": directory / "shared",
        "tmp_path": directory / f"own-{rank}",
    }
    for each in ("shared_tmp_path", "tmp_path"):
        values[each].mkdir(exist_ok=True)
    function(*(values[each] for each in inspect.signature(function).parameters))
    threading.Event().wait()  # as a script does that still has to write its last checkpoint


def wait_until(is_so, seconds):
    end_s = time.monotonic() + seconds
    while not is_so() and time.monotonic() < end_s:
        time.sleep(POLL_S)


def main():
    module, test, size, directory = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
    function = getattr(importlib.import_module(module), test)
    pids = []
    for rank in range(size):
        pid = os.fork()
        if not pid:
            try:
                be_rank(rank, size, function, directory)
            finally:
                if sys.exc_info()[0] is not None:
                    sys.excepthook(*sys.exc_info())
                os._exit(1)
        pids.append(pid)
    try:
        wait_until(lambda: len([*directory.glob("up-*")]) == size, UP_S)
        time.sleep(float(sys.argv[5]))
        (directory / "now").touch()
        wait_until(lambda: len([*directory.glob("trace_*")]) == size, DUMPED_S)
    finally:
        for pid in pids:
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            os.waitpid(pid, 0)


main()
