"""Machines of namespaces: each with its own network, processes, clock and name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

OWN_CLOCK = ("--uts", "--time", "--monotonic", "5000")
"""Of unshare(1): a name and a monotonic clock of its own."""

_UP_S = 10.0


@contextmanager
def two_networks() -> Iterator[tuple[str, str]]:
    """Make two networks with a cable between them: 10.98.0.1 and 10.98.0.2; skip if impossible."""
    first, second = names = tuple(f"attach-{os.getpid()}-{number}" for number in (1, 2))
    cable = [f"c{os.getpid()}-{number}" for number in (1, 2)]
    commands = [["netns", "add", name] for name in names]
    commands.append(["link", "add", cable[0], "type", "veth", "peer", "name", cable[1]])
    for number, (name, end) in enumerate(zip(names, cable, strict=True), 1):
        commands.append(["link", "set", end, "netns", name])
        commands.append(["-n", name, "address", "add", f"10.98.0.{number}/24", "dev", end])
        commands += [["-n", name, "link", "set", each, "up"] for each in ("lo", end)]
    alone = ["unshare", "--pid", "--fork", "--mount-proc", *OWN_CLOCK, "hostname", "beta"]
    whole = [["ip", *each] for each in commands] + [["ip", "netns", "exec", second, *alone]]
    try:
        _run_all(whole)
        yield first, second
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _run_all(commands: Sequence[Sequence[str]]) -> None:
    """Run what makes networks; skip the test where that is not possible."""
    try:
        for each in commands:
            subprocess.run(each, capture_output=True, check=True, timeout=_UP_S)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"networks, clocks and tables of processes cannot be made here: {error}")


@contextmanager
def two_machines() -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Make two machines, alpha and beta; yield what a command has to begin with to run there.

    All that runs there ends with them.
    """
    with two_networks() as networks:
        started = []
        try:
            for network, host in zip(networks, ("alpha", "beta"), strict=True):
                started.append(_machine(network, host))
            first, second = (_entry(each.pid) for each in started)
            yield first, second
        finally:
            for each in started:
                each.communicate(b"")


def _machine(network: str, host: str) -> subprocess.Popen[bytes]:
    """Start the first process of a machine, which ends at the end of its input."""
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *OWN_CLOCK]
    up = f"hostname {host} && echo up && read line"
    process = subprocess.Popen(
        ["ip", "netns", "exec", network, *alone, "sh", "-c", up],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def _entry(pid: int) -> tuple[str, ...]:
    """Return what enters the machine whose first process a process has forked."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:  # noqa: PTH123
        child = file.read().split()[0]
    return ("nsenter", "--target", child, "--net", "--pid", "--mount", "--uts", "--time", "--")
