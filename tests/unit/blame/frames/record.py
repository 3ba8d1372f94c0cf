"""A program: record the native frames of real hangs into native.json, which unit tests read.

Usage: record.py [OPERATION/LOCAL_DEVICES ...]
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from pathlib import Path

from pytest_multihost.core.watch.probes import native_threads

HERE = Path(__file__).parent
FILE = HERE / "native.json"
CASES = (
    *("psum/1", "psum/2", "cold/1", "cold/2", "allgather/1", "ppermute/1", "alltoall/1"),
    *("barrier/1", "key/1", "shutdown/1", "matmul/1", "matmul/2"),
    *("torch_all_reduce/1", "torch_all_gather/1", "torch_broadcast/1", "torch_barrier/1"),
    *("torch_recv/1", "torch_store/1", "torch_matmul/1"),
)
_DULL = (
    "Py",
    "_",
    "absl::",
    "std::",
    "cfunction",
    "method_vectorcall",
    "object_",
    "pymain",
    "run_",
)
_DEPTH = 16


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def record(operation: str, local_devices: str) -> dict[str, list[list[str]]]:
    """Return the distinct stacks of both ranks while rank 1 waits for rank 0."""
    place = ["2", local_devices, str(free_port())]
    program = [sys.executable, str(HERE / "hanging_rank.py"), operation]
    ranks = [
        subprocess.Popen(
            [*program, str(rank), *place], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for rank in range(2)
    ]
    try:
        for rank in ranks:
            while rank.stdout is not None and rank.stdout.readline().strip() != b"ready":
                pass
        time.sleep(1)
        look = native_threads({index: rank.pid for index, rank in enumerate(ranks)})
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    stacks = {
        str(rank): [[s for s in each.symbols if not s.startswith(_DULL)] for each in threads]
        for rank, threads in look.threads.items()
    }
    return {rank: _distinct(found) for rank, found in stacks.items()}


def _distinct(stacks: list[list[str]]) -> list[list[str]]:
    return [list(stack[:_DEPTH]) for stack in dict.fromkeys(map(tuple, stacks)) if stack]


def write(recorded: dict[str, dict[str, list[list[str]]]]) -> None:
    """Write each stack once, and for each case and rank the numbers of its stacks."""
    numbers: dict[tuple[str, ...], int] = {}
    cases = {
        case: {
            rank: [numbers.setdefault(tuple(stack), len(numbers)) for stack in stacks]
            for rank, stacks in ranks.items()
        }
        for case, ranks in sorted(recorded.items())
    }
    lines = [json.dumps(list(stack)) for stack in numbers]
    found = [f"{json.dumps(case)}: {json.dumps(ranks)}" for case, ranks in cases.items()]
    text = '{"stacks": [\n%s\n],\n"cases": {\n%s\n}}\n'
    FILE.write_text(text % (",\n".join(lines), ",\n".join(found)))


def read() -> dict[str, dict[str, list[list[str]]]]:
    """Return for each case and rank its stacks."""
    data = json.loads(FILE.read_text())
    return {
        case: {rank: [data["stacks"][number] for number in found] for rank, found in ranks.items()}
        for case, ranks in data["cases"].items()
    }


if __name__ == "__main__":
    recorded = read() if FILE.exists() else {}
    for case in sys.argv[1:] or CASES:
        recorded[case] = record(*case.split("/"))
        write(recorded)
        print(case, [len(stacks) for stacks in recorded[case].values()])
