"""The least that worlds of RANKS ranks cost: fork, start the runtime, one collective, `_exit`.

No fixtures, no report, no log, nobody who watches. Ranks leave together, because the first to
close its sockets can fail the others. Prints the seconds and CPU seconds of TESTS worlds.
"""

import gc
import importlib
import json
import os
import resource
import socket
import tempfile
import time

import work


def main():
    for name in importlib.import_module(f"work_{os.environ['BACKEND']}").preload:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    size, before = int(os.environ["RANKS"]), children_s()
    walls = [world(size) for _ in range(int(os.environ["TESTS"]))]
    cpu_s = (children_s() - before) / len(walls)
    print(json.dumps({"walls": walls, "cpu_s": cpu_s}))


def children_s():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def world(size):
    with tempfile.TemporaryDirectory() as directory, socket.socket() as holder:
        began = time.monotonic()
        holder.bind(("127.0.0.1", 0))
        port = holder.getsockname()[1]
        holder.close()
        done, go = os.pipe(), os.pipe()
        ranks = [fork(rank, size, (directory, port), done, go) for rank in range(size)]
        os.close(done[1])
        os.close(go[0])
        finished = b"".join(iter(lambda: os.read(done[0], size), b""))
        assert len(finished) == size
        os.close(go[1])
        assert all(os.waitpid(rank, 0)[1] == 0 for rank in ranks)
        os.close(done[0])
        return time.monotonic() - began


def fork(rank, size, place, done, go):
    child = os.fork()
    if child:
        return child
    os.close(go[1])
    os.close(done[0])
    if os.environ["BACKEND"] != "none":
        work.start(rank, size, *place)
        assert work.work(size, 1.5) == size * 1.5  # no first test: memory is not noted
    os.write(done[1], b"x")
    os.close(done[1])
    os.read(go[0], 1)
    os._exit(0)


main()
