"""An sshd of its own, on a port of the loopback interface, with throw-away keys."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from cluster import script
from runs import await_that

PRIVATE = Path("/run/sshd")
"""An empty directory that sshd demands if root runs it; Debian's service makes it."""

DAEMON = """
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
"""

CLIENT = """
Host n1 n2
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


@dataclass(frozen=True)
class SshSite:
    """Hosts n1 and n2, both of which are this machine.

    Attributes:
        folder: Has all keys and configurations.
        variables: By which an ssh is found that reads this configuration, as it reads a user's.
        daemon: The sshd.
    """

    folder: Path
    variables: dict[str, str]
    daemon: psutil.Process


@contextmanager
def ssh_site(folder: Path) -> Iterator[SshSite]:
    """Run sshd, with all its files in a folder; skip where it is not installed."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    client = shutil.which("ssh")
    if program is None or client is None:
        pytest.skip("ssh and sshd are needed: apt-get install openssh-server openssh-client")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    for name in ("host_key", "user_key"):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(make, check=True)
    host_key = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
    values = {"port": port, "folder": folder, "user": getpass.getuser()}
    (folder / "sshd_config").write_text(DAEMON.format(**values))
    (folder / "ssh_config").write_text(CLIENT.format(**values))
    (folder / "bin").mkdir()
    script(folder / "bin" / "ssh", f'exec {client} -F {folder}/ssh_config "$@"')
    with ExitStack() as cleanup:
        if os.geteuid() == 0 and not PRIVATE.exists():
            PRIVATE.mkdir(mode=0o755)
            cleanup.callback(PRIVATE.rmdir)
        log = cleanup.enter_context((folder / "log").open("wb"))
        command = [program, "-D", "-e", "-f", str(folder / "sshd_config")]
        process = cleanup.enter_context(subprocess.Popen(command, stderr=log))
        cleanup.callback(process.terminate)
        await_that(lambda: b"listening" in (folder / "log").read_bytes())
        variables = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
        yield SshSite(folder, variables, psutil.Process(process.pid))
