"""Jobs for `attach_jobs.py`: hangs whose culprit stands at a line marked HERE, and healthy jobs.

    python live_jobs.py rank NAME SCRATCH       one rank, with torchrun's variables; any Python 3.7+
    python live_jobs.py serve                   reads jobs from standard input, one JSON a line, and
                                                forks their ranks: torch is imported once for all

A rank touches SCRATCH/up-RANK when all have met, and then calls the function NAME.
"""

import ctypes
import fcntl
import json
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time

LONG_S = 100000
CLONE_NEWPID = 0x20000000


class Star:
    """Meetings of ranks without torch: all send a byte to rank 0, and it answers."""

    def __init__(self, rank, size, port):
        if rank == 0:
            server = socket.create_server(("127.0.0.1", port))
            peers = [server.accept()[0] for _ in range(size - 1)]
            self.peers = sorted(peers, key=lambda each: each.recv(1))
        else:
            self.peers = [reached(port)]
            self.peers[0].sendall(bytes([rank]))
        self.rank = rank

    def meet(self):
        """Return when all ranks have called it."""
        if self.rank == 0:
            for each in self.peers:
                each.recv(1)
            for each in self.peers:
                each.sendall(b".")
        else:
            self.peers[0].sendall(b".")
            self.peers[0].recv(1)


def reached(port):
    """Return a connection to a port on which somebody will listen soon."""
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port))
        except OSError:
            time.sleep(0.05)


class Torch:
    """Meetings by all_reduce."""

    def __init__(self, rank, size, port):
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        self.torch, self.dist = torch, dist
        dist.init_process_group(
            "gloo", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=size
        )

    def meet(self):
        """Return when all ranks have called it."""
        self.dist.all_reduce(self.torch.ones(3))


def run(name, rank, size, port, scratch):
    """Be one rank."""
    function = globals()[name]
    kind = Torch if name.startswith("torch_") else Star
    world = kind(rank, size, port)
    world.scratch = scratch
    world.meet()
    with open(os.path.join(scratch, "up-%d.part" % rank), "w") as file:
        file.write(str(os.getpid()))
    os.rename(file.name, file.name[: -len(".part")])
    function(world, rank, size)


# Hangs in which rank 1 is late, for torch and for plain Python


def nap():
    time.sleep(LONG_S)  # HERE


def slept(world, rank, size):
    if rank == 1:
        nap()
    world.meet()


def locked_itself(world, rank, size):
    lock = threading.Lock()
    if rank == 1:
        lock.acquire()
        lock.acquire()  # HERE
    world.meet()


def waited_for_queue(world, rank, size):
    if rank == 1:
        queue.Queue().get()  # HERE
    world.meet()


def waited_for_child(world, rank, size):
    if rank == 1:
        subprocess.call(["sleep", str(LONG_S)])  # HERE
    world.meet()


def waited_for_thread(world, rank, size):
    if rank == 1:
        thread = threading.Thread(target=threading.Event().wait, daemon=True)
        thread.start()
        thread.join()  # HERE
    world.meet()


def waited_for_condition(world, rank, size):
    if rank == 1:
        condition = threading.Condition()
        with condition:
            condition.wait()  # HERE
    world.meet()


def read_own_pipe(world, rank, size):
    if rank == 1:
        ends = os.pipe()
        os.read(ends[0], 1)  # HERE
    world.meet()


def selected_own_socket(world, rank, size):
    if rank == 1:
        pair = socket.socketpair()
        select.select([pair[0]], [], [])  # HERE
    world.meet()


def locked_a_file(world, rank, size):
    if rank == 1:
        files = [open(os.path.join(world.scratch, "lock"), "w") for _ in "12"]
        fcntl.flock(files[0], fcntl.LOCK_EX)
        fcntl.flock(files[1], fcntl.LOCK_EX)  # HERE
    world.meet()


def stopped(world, rank, size):
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)  # HERE
    world.meet()


def spun(world, rank, size):
    while rank == 1:  # HERE
        pass  # HERE
    world.meet()


torch_slept, torch_locked_itself, torch_queue = slept, locked_itself, waited_for_queue
torch_child, torch_thread, torch_pipe = waited_for_child, waited_for_thread, read_own_pipe
torch_stopped, torch_flock, torch_spun = stopped, locked_a_file, spun


# Hangs of torch


def torch_waited_for_key(world, rank, size):
    if rank == 1:
        threading.Event().wait()  # HERE
    world.dist.barrier()


def torch_received(world, rank, size):
    if rank == 1:
        nap()
    elif rank == 0:
        world.dist.recv(world.torch.ones(1), src=1)
    world.dist.barrier()


def torch_ddp_met_barrier(world, rank, size):
    model = ddp_model(world)
    for step in range(3):
        if rank == size - 1 and step == 2:
            world.dist.barrier()  # HERE
        loss = model(world.torch.ones(4, 64)).sum()
        loss.backward()  # HERE on a tie


def torch_groups_in_opposite_orders(world, rank, size):
    both = [world.dist.new_group(list(range(size))) for _ in "12"]
    crossed(world, rank, *both)


def crossed(world, rank, a, b):
    if rank % 2:
        world.dist.all_reduce(world.torch.ones(1), group=b)  # HERE on a tie
        world.dist.all_reduce(world.torch.ones(1), group=a)
    else:
        world.dist.all_reduce(world.torch.ones(1), group=a)  # HERE on a tie
        world.dist.all_reduce(world.torch.ones(1), group=b)


def torch_gather_met_reduce(world, rank, size):
    if rank == 1:
        world.dist.all_gather([world.torch.ones(1)] * size, world.torch.ones(1))  # HERE
    world.meet()


def torch_group_of_a_loop(world, rank, size):
    a, b = (world.dist.new_group(list(range(size))) for _ in "12")
    for group in (b, a) if rank % 2 else (a, b):
        met(world, group)


def met(world, group):
    if world.dist.get_rank() % 2:
        world.dist.all_reduce(world.torch.ones(1), group=group)  # HERE on a tie
    world.dist.all_reduce(world.torch.ones(1), group=group)  # HERE on a tie


def torch_broadcast_of_buffers(world, rank, size):
    model = ddp_model(world, world.torch.nn.BatchNorm1d(64))
    for step in range(3):
        if rank == 1 and step == 2:
            nap()
        model(world.torch.ones(4, 64)).sum().backward()


def torch_last_rank_waits_for_itself(world, rank, size):
    world.dist.barrier()
    world.dist.destroy_process_group()
    if rank == 1:
        time.sleep(1)
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()  # HERE


def torch_group_met_world(world, rank, size):
    group = world.dist.new_group([0, 1])
    if rank == 0:
        world.dist.all_reduce(world.torch.ones(1), group=group)  # HERE on a tie
    world.dist.barrier()  # HERE on a tie


# Healthy jobs


def ddp_model(world, *more):
    from torch.nn.parallel import DistributedDataParallel

    nn = world.torch.nn
    return DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), *more, nn.Linear(64, 1)))


def ddp(world, rank, late_s):
    model = ddp_model(world)
    while True:
        model(world.torch.ones(4, 64)).sum().backward()
        time.sleep(late_s)


def torch_fine_ddp(world, rank, size):
    ddp(world, rank, 0.1)


def torch_fine_ddp_of_a_slow_rank(world, rank, size):
    ddp(world, rank, 0.4 if rank == 1 else 0.05)


def torch_fine_ddp_with_barriers(world, rank, size):
    model = ddp_model(world)
    while True:
        model(world.torch.ones(4, 64)).sum().backward()
        world.dist.barrier()
        time.sleep(0.1 * (rank + 1))


def torch_fine_groups(world, rank, size):
    a, b = (world.dist.new_group(list(range(size))) for _ in "12")
    while True:
        for group in (a, b):
            world.dist.all_reduce(world.torch.ones(1), group=group)
        world.dist.barrier(group=a)
        time.sleep(0.1)


def torch_fine_saves(world, rank, size):
    while True:
        if rank == 0:
            with open(os.path.join(world.scratch, "checkpoint"), "wb") as file:
                file.write(b"x" * (1 << 22))
            time.sleep(1.0)
        world.dist.barrier()


def torch_fine_computes(world, rank, size):
    end_s = time.monotonic() + 120
    while rank == 1 and time.monotonic() < end_s:
        world.torch.ones(64, 64) @ world.torch.ones(64, 64)
        time.sleep(0.05)
    world.meet()


def fine_sleeps(world, rank, size):
    while True:
        if rank == 1:
            time.sleep(8)
        world.meet()


def fine_child(world, rank, size):
    while True:
        if rank == 1:
            program = "import time\nfor _ in range(99): time.sleep(.1)"
            subprocess.call([sys.executable, "-c", program])
        world.meet()


def fine_serves(world, rank, size):
    if rank == 1:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.accept()
    world.meet()


def fine_reads_fifo(world, rank, size):
    path = os.path.join(world.scratch, "fifo")
    if rank == 1:
        os.mkfifo(path)
        with open(path) as file:
            file.read()
    world.meet()


def fine_polls(world, rank, size):
    while rank == 1 and not os.path.exists(os.path.join(world.scratch, "ready")):
        time.sleep(0.2)
    world.meet()


def fine_waits_with_limit(world, rank, size):
    while True:
        if rank == 1:
            threading.Event().wait(5)
        world.meet()


torch_fine_sleeps, torch_fine_child, torch_fine_serves = fine_sleeps, fine_child, fine_serves
torch_fine_polls, torch_fine_limit = fine_polls, fine_waits_with_limit


# How ranks are started


def spawned(rank, name, size, port, scratch):
    """What `spawn` calls: the rank is the first argument."""
    run(name, rank, size, port, scratch)


def started(rank, name, size, port, scratch):
    """What `multiprocessing.Process` calls."""
    run(name, rank, size, port, scratch)


def forked(job):
    """Fork the ranks of a job; in a new PID namespace if it asks for one."""
    name, size, port, scratch = job["name"], job["size"], job["port"], job["scratch"]
    if job["how"] == "pidns":
        assert not ctypes.CDLL(None).unshare(CLONE_NEWPID)
        if os.fork() == 0:  # the first process of a namespace: all others end with it
            while True:
                time.sleep(LONG_S)
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            run(name, rank, size, port, scratch)
            os._exit(0)
        pids.append(pid)
    with open(os.path.join(scratch, "pids.part"), "w") as file:
        json.dump(pids, file)
    os.rename(file.name, os.path.join(scratch, "pids"))
    for pid in pids:
        os.waitpid(pid, 0)


def launch(job):
    """Start the ranks of a job, and wait for them."""
    arguments = (job["name"], job["size"], job["port"], job["scratch"])
    if job["how"] == "spawn":
        import torch.multiprocessing

        torch.multiprocessing.start_processes(
            spawned, args=arguments, nprocs=job["size"], start_method=job.get("method", "fork")
        )
    elif job["how"] in ("pool", "forkserver"):
        import multiprocessing

        method = "fork" if job["how"] == "pool" else "forkserver"
        with multiprocessing.get_context(method).Pool(job["size"] + 1) as pool:
            ranks = range(job["size"] - 1, -1, -1)
            pool.starmap(started, [(rank, *arguments) for rank in ranks], chunksize=1)
    elif job["how"] == "process":
        import multiprocessing

        context = multiprocessing.get_context("fork")
        ranks = range(job["size"] - 1, -1, -1)  # the last is started first
        processes = [context.Process(target=started, args=(r, *arguments)) for r in ranks]
        for each in processes:
            each.start()
            time.sleep(0.05)
        for each in processes:
            each.join()
    else:
        forked(job)


def serve():
    """Fork a launcher for each job that is asked for, and print its process id."""
    import torch._dynamo  # with all that DDP needs: once for all jobs
    import torch.nn.parallel  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in iter(sys.stdin.readline, ""):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            null = os.open("/dev/null", os.O_RDWR)
            for number in (0, 1):
                os.dup2(null, number)
            launch(json.loads(line))
            os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        environment = os.environ
        run(
            sys.argv[2],
            int(environment["RANK"]),
            int(environment["WORLD_SIZE"]),
            int(environment["MASTER_PORT"]),
            sys.argv[3],
        )
