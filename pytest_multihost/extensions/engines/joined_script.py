"""Runs a script in the processes that torchrun, srun or mpirun has started.

Each process runs the same command. Rank 0's process is the controller; the others start ranks for
it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from pytest_multihost.core.command.joined_script import JoinedScript, OtherProcesses
from pytest_multihost.core.launch.ending_signals import interrupt_on_signals
from pytest_multihost.core.launch.server import ServerLauncher
from pytest_multihost.core.model.errors import LaunchError, MultihostError, SettingError
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.extensions.engines.attach import (
    Connector,
    Peer,
    PeersLauncher,
    Rendezvous,
    detect_local_peers,
    hosts_of,
    require_one_machine,
    with_controller,
)
from pytest_multihost.extensions.engines.meeting import LauncherMeeting
from pytest_multihost.extensions.engines.peer_server import PeerProcess

JOIN_S = 300.0
"""How long the processes wait for each other."""

_LOST = 1
_REMEDY = "Every process must run the same command, and reach rank 0."


def run_joined(script: JoinedScript) -> int:
    """Run a script in the processes that a launcher has started, including this one.

    Raises:
        SettingError: No launcher has started this process as one of several.
    """
    try:
        meeting = LauncherMeeting.at(script.folder, os.environ)
    except SettingError as error:
        happened = "--ranks is missing: multihost run --ranks N train.py"
        raise SettingError(happened, seen=f"A launcher would give it, but {error}") from error
    plan = script.plan(meeting.membership.size)
    spec = plan.spec
    if meeting.membership.rank:
        return be_peer(meeting.rendezvous, spec, script.scratch, script.launcher(plan))
    interrupt_on_signals()
    peers, code = meet(meeting, spec, script.scratch), _LOST
    processes = with_controller(peers)
    spec = replace(spec, hosts=hosts_of(spec.size, processes) or spec.hosts)
    local = (each.hello.pid for each in peers.values() if each.is_local)
    others = OtherProcesses(
        launcher=partial(PeersLauncher, "attach", processes) if peers else lambda own: own,
        pids=frozenset(pid for pid in local if pid),
        check=partial(check_peers, peers),
    )
    try:
        code = script.run(replace(plan, spec=spec), others)
    finally:
        meeting.part(code)
    return code


def meet(meeting: LauncherMeeting, spec: WorldSpec, folder: Path) -> Mapping[int, Peer]:
    """Wait for the other processes in rank 0's process; return them by rank.

    Args:
        spec: The world; all processes must have the same one.
        folder: A folder for a file that tells whether a peer shares this machine's files.

    Raises:
        MultihostError: A process did not connect, or cannot take part.
    """
    peers = {each.rank: each for each in meeting.await_companions(JOIN_S, remedy=_REMEDY)}
    for peer in peers.values():
        if peer.hello.problems:
            seen = "\n".join(peer.hello.problems)
            raise LaunchError(f"{peer.name} cannot take part", seen=seen)
        if peer.hello.tests != (_world(spec),):
            seen = f"There: {peer.hello.tests}, here: {_world(spec)}."
            raise LaunchError(f"{peer.name} runs another script than rank 0's", seen=seen)
    detect_local_peers(peers, folder)
    require_one_machine(peers, spec)
    return peers


def check_peers(peers: Mapping[int, Peer]) -> None:
    """Check whether a process has received a signal that ends the run.

    Raises:
        KeyboardInterrupt: A process has; the text names the signal and the process.
    """
    for peer in peers.values():
        if why := peer.interruption:
            raise KeyboardInterrupt(why)


def be_peer(rendezvous: Rendezvous, spec: WorldSpec, home: Path, launcher: ServerLauncher) -> int:
    """Start ranks for rank 0's process until the run ends; return its exit code.

    Args:
        home: A private directory of this process.
    """
    process = PeerProcess(partial(Connector(rendezvous).connect, JOIN_S))
    process.take_signals()
    problems: tuple[str, ...] = ()
    try:
        try:
            launcher.open()
        except LaunchError as error:
            problems = (str(error),)
        process.connect(tests=(_world(spec),), problems=problems)
        code = process.serve(lambda _: launcher, home)
    except MultihostError as error:
        why = printable(str(error), keeps_lines=True)
        sys.stderr.write(f"multihost run: rank {rendezvous.membership.rank}: {why}\n")
        return _LOST
    finally:
        launcher.close()
    process.outlive_controller()
    return code


def _world(spec: WorldSpec) -> tuple[str, int, str]:
    return (spec.nodeid, spec.size, spec.backend)
