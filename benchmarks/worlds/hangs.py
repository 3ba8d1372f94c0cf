"""Eight ways in which rank 1 of three goes wrong; the same for us and for every peer.

`moment` is when it does. A body is for all ranks; the part after it stands for the teardown.
"""

import ctypes
import os
import pathlib
import signal
import sys
import time
import unittest

CULPRIT = 1
LONG_S = 600
CASES = {}


def case(body):
    CASES[body.__name__] = body
    return body


def note_moment():
    pathlib.Path(os.environ["PLACE"], "moment").write_text(str(time.time()))


def all_reduce():
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(3))


def run(name, rank):
    all_reduce()
    if rank == CULPRIT:
        time.sleep(0.3)  # the others get to where they will be
        note_moment()
    CASES[name](rank)


def tear_down(name, rank):
    """What a test's own teardown would do."""
    if name == "teardown_hangs":
        if rank == CULPRIT:
            time.sleep(LONG_S)
        all_reduce()


@case
def killed_when_others_are_done(rank):
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)


@case
def exits_with_3(rank):
    if rank == CULPRIT:
        sys.exit(3)


@case
def skips_alone(rank):
    if rank == CULPRIT:
        raise unittest.SkipTest("alone")


@case
def holds_the_gil(rank):
    if rank == CULPRIT:
        ctypes.PyDLL(None).sleep(LONG_S)
    all_reduce()


@case
def is_stopped(rank):
    if rank == CULPRIT:
        os.kill(os.getpid(), signal.SIGSTOP)
    all_reduce()


@case
def reads_slowly(rank):
    if rank == CULPRIT:
        path = f"{os.environ['PLACE']}/slow"
        os.mkfifo(path)
        holder = os.open(path, os.O_RDWR)
        os.read(holder, 1)  # nothing ever comes
    all_reduce()


@case
def raises_before_a_collective(rank):
    if rank == CULPRIT:
        raise ValueError("culprit")
    all_reduce()


@case
def teardown_hangs(rank):
    all_reduce()
