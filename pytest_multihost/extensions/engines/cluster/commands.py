"""Engines that run a command for each node: any command, and ssh."""

from __future__ import annotations

import shlex

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.extensions.engines.cluster.command_node import CommandFleet
from pytest_multihost.extensions.engines.engine import Engine, StartRequest, split_words

_INDEX = "{i}"
_EXAMPLE = "exec:kubectl exec -i worlds-{i} --"
_NODES = 2
"""How many nodes a command is run for, if nothing says so."""

_SSH = ("ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=5")
"""Without a terminal, and without a question that no person would answer."""


def begin_exec(text: str, request: StartRequest) -> CommandFleet:
    """Run a command for each node, with the node's index in place of ``{i}``.

    Raises:
        SettingError: The text is not a command, or is the same for several nodes.
        LaunchError: It cannot be started.
    """
    words, count = split_words("exec", text), request.count or _NODES
    if not words:
        raise SettingError("exec: a command is missing", remedy=_EXAMPLE)
    if count > 1 and not any(_INDEX in word for word in words):
        raise SettingError(
            f"exec: the command is the same for all {count} nodes",
            seen=f"There is no {_INDEX} in {shown(text)}.",
            remedy=f"Write {_INDEX} where the node's index belongs: {_EXAMPLE}",
        )
    commands = [
        (str(index), [*(word.replace(_INDEX, str(index)) for word in words), *request.command])
        for index in range(count)
    ]
    return CommandFleet.start(commands, request.folder)


def begin_ssh(text: str, request: StartRequest) -> CommandFleet:
    """Run the command on each host of a list.

    Raises:
        SettingError: The text is not a list of hosts, or has too few.
        LaunchError: ssh cannot be started.
    """
    hosts = [each.strip() for each in text.split(",")]
    if not all(hosts) or any(each.startswith("-") for each in hosts):
        raise SettingError(f"ssh: {shown(text)} is not a list of hosts", remedy="ssh:n1,n2")
    if request.count is not None and request.count > len(hosts):
        raise SettingError(f"ssh: {request.count} nodes are wanted, and {len(hosts)} hosts given")
    commands = [(host, [*_SSH, host, shlex.join(request.command)]) for host in hosts]
    return CommandFleet.start(commands[: request.count], request.folder)


EXEC = Engine(name="exec", begin=begin_exec)
SSH = Engine(name="ssh", begin=begin_ssh)
