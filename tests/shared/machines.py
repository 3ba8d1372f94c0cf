"""Machines of namespaces: each with its own network, processes, clock and name."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import pytest

OWN_CLOCK = ("--uts", "--time", "--monotonic", "5000")
"""Of unshare(1): a name and a monotonic clock of its own."""

CARD = "eth0"
"""The network interface of each machine."""

_UP_S = 10.0

_NUMBERS = count(1)
"""Numbers of networks in this process, which may need several pairs at once."""


@contextmanager
def two_networks() -> Iterator[tuple[str, str]]:
    """Make two networks with a cable between them: 10.98.0.1 and 10.98.0.2; skip if impossible."""
    first, second = names = [f"attach-{os.getpid()}-{next(_NUMBERS)}" for _ in range(2)]
    commands = [["netns", "add", name] for name in names]
    other_end = ("peer", "name", CARD, "netns", second)
    commands.append(["-n", first, "link", "add", CARD, "type", "veth", *other_end])
    for number, name in enumerate(names, 1):
        commands.append(["-n", name, "address", "add", f"10.98.0.{number}/24", "dev", CARD])
        commands += [["-n", name, "link", "set", each, "up"] for each in ("lo", CARD)]
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


@dataclass(frozen=True)
class Site:
    """Machines that a switch connects.

    Attributes:
        door: What a command has to begin with to use the switch's own address, 10.97.0.1; its
            processes, name and clock are those of this machine.
        entries: The same for each machine: its addresses are 10.97.0.11, 10.97.0.12, and so on.
        switch: The switch's network.
    """

    door: tuple[str, ...]
    entries: tuple[tuple[str, ...], ...]
    switch: str

    def unplug(self, index: int) -> None:
        """Cut the machine at an index off from all others."""
        _run_all([["ip", "-n", self.switch, "link", "set", f"port{index}", "down"]])


@contextmanager
def connected_machines(hosts: Sequence[str]) -> Iterator[Site]:
    """Make machines with these names and a switch between them; skip if impossible."""
    switch, *networks = [f"site-{os.getpid()}-{next(_NUMBERS)}" for _ in range(len(hosts) + 1)]
    commands = [["netns", "add", name] for name in (switch, *networks)]
    commands.append(["-n", switch, "link", "add", "switch", "type", "bridge"])
    commands.append(["-n", switch, "address", "add", "10.97.0.1/24", "dev", "switch"])
    commands += [["-n", switch, "link", "set", each, "up"] for each in ("lo", "switch")]
    for number, name in enumerate(networks):
        port, card = f"port{number}", ("name", CARD, "netns", name)
        commands.append(["-n", switch, "link", "add", port, "type", "veth", "peer", *card])
        commands.append(["-n", switch, "link", "set", port, "master", "switch", "up"])
        commands.append(["-n", name, "address", "add", f"10.97.0.{11 + number}/24", "dev", CARD])
        commands += [["-n", name, "link", "set", each, "up"] for each in ("lo", CARD)]
    started = []
    try:
        _run_all([["ip", *each] for each in commands])
        for network, host in zip(networks, hosts, strict=True):
            started.append(_machine(network, host))
        door = ("nsenter", f"--net=/run/netns/{switch}", "--")
        yield Site(door, tuple(_entry(each.pid) for each in started), switch)
    finally:
        for each in started:
            each.communicate(b"")
        for name in (switch, *networks):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def _machine(network: str, host: str) -> subprocess.Popen[bytes]:
    """Start the first process of a machine, which ends at the end of its input.

    It is bash, which collects the exit codes of orphans, as the first process of a machine must.
    ip-netns-exec(8) would hide /sys/fs/cgroup, without which slurmd does not start.
    """
    alone = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", *OWN_CLOCK]
    up = f"hostname {host} && echo up && read line"
    process = subprocess.Popen(
        ["nsenter", f"--net=/run/netns/{network}", "--", *alone, "bash", "-c", up],
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
