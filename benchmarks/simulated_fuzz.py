"""Runs random programs on simulated ranks and on gloo's, and compares how far each rank comes.

    python benchmarks/simulated_fuzz.py --programs 100 --first 0

A program is a schedule of collectives, transfers and keys of a store that all ranks keep, in which
up to three steps of single ranks are then dropped, swapped or changed. So about half of them hang.
A rank writes the number of each step that it has finished. It must come at least as far as with
gloo: one that comes less far waits for something that gloo does not wait for, and a hang may be
proven that gloo does not have. Further is by design: some operations end early, see `exchange`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

COLLECTIVES = ("all_reduce", "broadcast", "reduce", "gather", "scatter", "all_gather", "barrier")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
SIDES = ("simulated", "gloo")
SEND, RECEIVE, SET, GET, WAIT = "send", "recv", "set", "get", "wait"


@dataclass(frozen=True, slots=True)
class Step:
    """What one rank does.

    Attributes:
        name: Of a collective, or "send", "recv", "set", "get", or "wait": for all open works.
        group: The number of the group of a collective.
        peer: The root of a collective, or the other rank of a transfer.
        tag: Of a transfer, or the number of a key.
        is_async: Whether the rank waits later.
    """

    name: str
    group: int = 0
    peer: int = 0
    tag: int = 0
    is_async: bool = False


Programs = list[list[Step]]
"""The steps of each rank."""


def make(seed: int) -> tuple[list[list[int]], Programs]:
    """Return the members of the groups, and the steps of each rank."""
    rng = random.Random(seed)
    size = rng.randint(3, 6)
    every = list(range(size))
    groups = [every, *(sorted(rng.sample(every, rng.randint(2, size))) for _ in range(2))]
    programs: Programs = [[] for _ in every]
    for number in range(rng.randint(4, 9)):
        kind = rng.random()
        if kind < 0.6:
            group = rng.randrange(3)
            root = rng.choice(groups[group])
            step = Step(rng.choice(COLLECTIVES), group, root, is_async=rng.random() < 0.3)
            for rank in groups[group]:
                programs[rank].append(step)
        elif kind < 0.9:
            one, two = rng.sample(every, 2)
            tag = rng.randrange(2)
            programs[one].append(Step(SEND, 0, two, tag, rng.random() < 0.5))
            programs[two].append(Step(RECEIVE, 0, one, tag, rng.random() < 0.5))
        else:
            one, two = rng.sample(every, 2)
            programs[one].append(Step(SET, tag=number))
            programs[two].append(Step(GET, tag=number))
        if rng.random() < 0.3:
            programs[rng.choice(every)].append(Step(WAIT))
    for _ in range(rng.randint(0, 3)):
        _change(programs, groups, rng)
    return groups, programs


def _change(programs: Programs, groups: list[list[int]], rng: random.Random) -> None:
    """Make one step of one rank wrong."""
    steps = rng.choice([each for each in programs if each])
    at = rng.randrange(len(steps))
    step = steps[at]
    match rng.randrange(4):
        case 0:
            del steps[at]
            if not steps:
                steps.append(Step(WAIT))
        case 1 if at:
            steps[at - 1], steps[at] = steps[at], steps[at - 1]
        case 2 if step.name in COLLECTIVES:
            steps[at] = replace(step, name=rng.choice(COLLECTIVES))
        case _ if step.name in ROOTED:
            steps[at] = replace(step, peer=rng.choice(groups[step.group]))
        case _:
            steps[at] = replace(step, is_async=not step.is_async)


TEST = """
import json
import os
import sys

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, {folder!r})
from simulated_fuzz import make

SEEDS = {seeds!r}

def perform(step, groups, members, rank, works, store, elements):
    group, own = groups[step.group], members[step.group]
    size, x = len(own), torch.ones(elements)
    every = [torch.zeros(elements) for _ in own]
    given = dict(group=group, async_op=step.is_async)
    is_root = step.peer == rank
    if step.name == "wait":
        for each in works:
            each.wait()
        works.clear()
        return
    if step.name == "set":
        store.set(f"k{{step.tag}}", "1")
        return
    if step.name == "get":
        store.get(f"k{{step.tag}}")
        return
    calls = {{
        "all_reduce": lambda: dist.all_reduce(x, **given),
        "broadcast": lambda: dist.broadcast(x, step.peer, **given),
        "reduce": lambda: dist.reduce(x, step.peer, **given),
        "gather": lambda: dist.gather(x, every if is_root else None, step.peer, **given),
        "scatter": lambda: dist.scatter(x, every if is_root else None, step.peer, **given),
        "all_gather": lambda: dist.all_gather(every, x, **given),
        "barrier": lambda: dist.barrier(**given),
        "send": lambda: (dist.isend if step.is_async else dist.send)(x, step.peer, tag=step.tag),
        "recv": lambda: (dist.irecv if step.is_async else dist.recv)(x, step.peer, tag=step.tag),
    }}
    work = calls[step.name]()
    if step.is_async:
        works.append(work)

def one(seed, backend):
    members, programs = make(seed)
    elements = 64 if seed % 2 else 1  # gloo's reduction sends no empty segments

    @pytest.mark.multihost(ranks=len(programs), backend=backend, timeout=40)
    def test(world):
        groups = [dist.group.WORLD, *(dist.new_group(each) for each in members[1:])]
        store = dist.distributed_c10d._get_default_store()
        works = []
        with open(f"{{seed}}-{{backend}}-{{world.rank}}.txt", "w", buffering=1) as log:
            for number, step in enumerate([*programs[world.rank], None], 1):
                if step is None:
                    for each in works:
                        each.wait()
                else:
                    perform(step, groups, members, world.rank, works, store, elements)
                print(number, file=log)
    return test

for seed in SEEDS:
    for backend in ("simulated", "gloo"):
        globals()[f"test_{{seed}}_{{backend}}"] = one(seed, backend)
"""


def main() -> None:
    """Run the programs that the command line chooses, and print those that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.programs)
    began_s = time.monotonic()
    outcomes = run(list(seeds))
    told = ", ".join(f"{how} {count}" for how, count in sorted(outcomes.items()))
    seconds, load = time.monotonic() - began_s, os.getloadavg()[0]
    print(f"{len(seeds)} programs: {told}; {seconds:.0f} s, load {load:.1f}")


@dataclass(frozen=True, slots=True)
class End:
    """How a world has ended, and the last step that each rank has finished."""

    how: str
    steps: tuple[int, ...]


def run(seeds: list[int]) -> Counter[str]:
    """Run programs and print those that differ; return how often simulated ones end how."""
    folder = Path(tempfile.mkdtemp(prefix="simulated-fuzz-"))
    (folder / "pytest.ini").write_text("[pytest]\n")
    source = TEST.format(folder=str(Path(__file__).parent), seeds=seeds)
    (folder / "test_programs.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "multihost_hangs"]
    command += ["--multihost-hazards=off"]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    subprocess.run(command, cwd=folder, env=environment, check=False, capture_output=True)
    lines = (folder / ".pytest_multihost" / "verdicts.jsonl").read_text().splitlines()
    ended = {each["nodeid"].rpartition("test_")[2]: each for each in map(json.loads, lines)}
    outcomes = Counter[str]()
    for seed in seeds:
        one, two = (_end(folder, f"{seed}-{each}", ended[f"{seed}_{each}"]) for each in SIDES)
        outcomes[one.how] += 1
        if one != two:
            is_behind = any(a < b for a, b in zip(one.steps, two.steps, strict=True))
            word = "behind" if is_behind else "ahead"
            outcomes[word] += 1
            ends = f"simulated {one.how} {one.steps}, gloo {two.how} {two.steps}"
            print(f"seed {seed}: {word}: {ends}  ({folder})")
    return outcomes


def _end(folder: Path, name: str, verdict: Mapping[str, Any]) -> End:
    steps = tuple(_last(folder / f"{name}-{rank}.txt") for rank in range(verdict["world_size"]))
    found = verdict["diagnosis"] or {}
    is_late = verdict["outcome"] == "hung" and found.get("detected_by") == "deadline"
    return End(verdict["outcome"] + " at the deadline" * is_late, steps)


def _last(path: Path) -> int:
    """Return the last step that a rank has finished."""
    lines = path.read_text().split() if path.exists() else []
    return int(lines[-1]) if lines else 0


if __name__ == "__main__":
    main()
