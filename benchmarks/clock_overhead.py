"""What the library of a clock that jumps costs, per call and in threads that never wait for time.

    python benchmarks/clock_overhead.py

A small C program makes each call many times: without the library; with it but without a page, as
the server; and with a page, as a rank whose clock may jump. The three take turns, and the fastest
round of each counts: what else runs on the machine can only add to it.
The last rows are the time that the controller takes for what it does with each look and each jump.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_multihost.core.preload import preload_variables
from pytest_multihost.extensions.clock.page import (
    _HEADER_SIZE,
    _SLOT,
    PAGE_VARIABLE,
    ClockPage,
    find_clock_library,
    why_clock_missing,
)

CALLS = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &at);
  return at.tv_sec * 1e9 + at.tv_nsec;
}

#define MEASURE(name, count, call)                     \\
  {                                                    \\
    double began = now();                              \\
    for (int i = 0; i < count; i++) { call; }          \\
    printf("\\"%s\\": %f, ", name, (now() - began) / count); \\
  }

int main(void) {
  struct timespec at, zero = {0, 0}, later;
  struct timeval day;
  int ends[2], null = open("/dev/null", O_WRONLY);
  char byte = 0;
  sem_t semaphore;
  sem_init(&semaphore, 0, 0);
  if (pipe(ends) || write(ends[1], "x", 1) != 1) return 1;
  struct pollfd ready = {ends[0], POLLIN, 0};
  clock_gettime(CLOCK_REALTIME, &later);
  later.tv_sec += 1000;
  printf("{");
  MEASURE("clock_gettime", 2000000, clock_gettime(CLOCK_MONOTONIC, &at))
  MEASURE("time", 2000000, time(NULL))
  MEASURE("gettimeofday", 2000000, gettimeofday(&day, NULL))
  MEASURE("nanosleep of 0", 20000, nanosleep(&zero, NULL))
  MEASURE("poll, not waiting", 300000, poll(&ready, 1, 0))
  MEASURE("poll, ready", 300000, poll(&ready, 1, 1000))
  MEASURE("semaphore, ready", 300000, sem_post(&semaphore); sem_timedwait(&semaphore, &later))
  MEASURE("write of a byte", 300000, if (write(null, &byte, 1) != 1) return 1)
  printf("\\"pid\\": %d}\\n", getpid());
}
"""


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    library, compiler = find_clock_library(), shutil.which("cc")
    if library is None or compiler is None:
        print(why_clock_missing() or "there is no C compiler")
        return 1
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory)
        (here / "calls.c").write_text(CALLS)
        command = [compiler, "-O2", "-o", str(here / "calls"), str(here / "calls.c"), "-pthread"]
        subprocess.run(command, check=True)
        page = ClockPage.create(here / "clock")
        preloaded = preload_variables(os.environ, [library])
        variants = ({}, preloaded, {**preloaded, PAGE_VARIABLE: str(here / "clock")})
        best: list[dict[str, float]] = [{}, {}, {}]
        for _ in range(rounds):
            for found, variables in zip(best, variants, strict=True):
                for name, ns in _run(here / "calls", variables).items():
                    found[name] = min(ns, found.get(name, ns))
        print(f"{'ns per call':20}{'without':>10}{'no page':>10}{'page':>10}   ratios")
        for name in list(best[0])[:-1]:
            plain, idle, live = (each[name] for each in best)
            ratios = f"{idle / plain:.2f}  {live / plain:.2f}"
            print(f"{name:20}{plain:10.1f}{idle:10.1f}{live:10.1f}   {ratios}")
        _print_controller(page)
    return 0


def _run(program: Path, variables: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [program], env={**os.environ, **variables}, capture_output=True, check=True
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _print_controller(page: ClockPage) -> None:
    """Print what a look at 200 waits takes, and a jump that none of them is due at."""
    far_ns = round(page.now() * 1e9) + 10**15
    for number in range(200):
        slot = (number + 1, 1, far_ns, 10**15, 1 + number % 6, 1, 0, 0, 0, 0, 0, 0)
        _SLOT.pack_into(page._map, _HEADER_SIZE + number * _SLOT.size, *slot)  # noqa: SLF001
    page._header.used = 200  # noqa: SLF001
    print(f"look at 200 waits   {_best_ms(page.waits):10.3f} ms")
    print(f"jump over none      {_best_ms(lambda: page.jump(page.now() + 1)):10.3f} ms")


def _best_ms(call: Callable[[], object]) -> float:
    best = 9e9
    for _ in range(200):
        began = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - began)
    return best * 1e3


if __name__ == "__main__":
    sys.exit(main())
