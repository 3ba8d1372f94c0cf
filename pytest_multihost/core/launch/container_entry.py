"""The first program of a container: it connects to the controller and execs what that names.

The controller learns the process id outside of the container from the connection. The module is
apart from `docker`, which would take three times as long to import here.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import NoReturn

from pytest_multihost.core.launch.job_spec import JOB_VARIABLE
from pytest_multihost.core.launch.wire import receive_packet
from pytest_multihost.core.model.json_values import message

SOCKET = "PYTEST_MULTIHOST_SOCKET"
"""Environment variable that names the socket on which the controller listens."""

CONTROL = 100
"""The descriptor under which a server finds its control connection."""

CODE = "from pytest_multihost.core.launch.container_entry import main; main()"


@message
class RunProgram:
    """From the controller: run a program. Sent with a descriptor of its job spec.

    Attributes:
        code: The Python code to run.
    """

    code: str


def main() -> NoReturn:
    """Connect, and run the program that the controller names."""
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(os.environ.pop(SOCKET))
    packet = receive_packet(control, RunProgram)
    if packet is None:
        sys.exit("the controller ended before it had said what to run")
    program: RunProgram = packet.message
    (job_spec,) = packet.descriptors
    os.set_inheritable(job_spec, True)  # noqa: FBT003 - the standard library's signature
    os.dup2(control.fileno(), CONTROL)
    environment = {**os.environ, JOB_VARIABLE: str(job_spec)}
    os.execve(sys.executable, [sys.executable, "-c", program.code], environment)
