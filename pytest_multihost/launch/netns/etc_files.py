"""A host's own /etc/hosts and /etc/resolv.conf, mounted over those of the machine."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from pytest_multihost.launch import libc
from pytest_multihost.model.spec import Host

_ETC = "/etc"
_HOSTS = "hosts"

_RESOLVER = """\
# Nothing answers here, so that names which are not in /etc/hosts are unknown at once.
nameserver 127.0.0.1
options timeout:1 attempts:1
"""


def write_files(folder: Path, hosts: Sequence[Host]) -> None:
    """Write the files of all hosts, those of each host into a folder with its name."""
    table = _hosts_table(hosts)
    for host in hosts:
        own = folder / host.name
        own.mkdir(parents=True)
        (own / _HOSTS).write_text(table, encoding="utf-8")
        (own / "resolv.conf").write_text(_RESOLVER, encoding="utf-8")


def set_names_known(folder: Path, hosts: Sequence[Host], host: Host, *, is_known: bool) -> None:
    """Let a host find all others by their names, or none; the host sees the change at once."""
    wanted = _hosts_table(hosts if is_known else [host])
    path = folder / host.name / _HOSTS
    if path.read_text(encoding="utf-8") != wanted:
        # In place: a bind mount shows the inode, whatever appears under the path later.
        path.write_text(wanted, encoding="utf-8")


def _hosts_table(hosts: Sequence[Host]) -> str:
    """Return the text of an /etc/hosts."""
    table = "".join(f"{each.address}\t{each.name}\n" for each in hosts)
    return f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{table}"


def mount_own_files(folder: Path, name: str) -> None:
    """Give this process a host's name, and the host's files in place of the machine's.

    In new mount and UTS namespaces, so no other process sees it. On a machine without
    /etc/resolv.conf there is nothing to mount it over; names are not resolved there anyway.
    /etc/hosts is needed: gloo and jax resolve the host's own name.

    Raises:
        OSError: The kernel refuses.
    """
    libc.unshare(libc.NEW_MOUNTS | libc.NEW_UTS)
    libc.make_mounts_private()
    for path in sorted(folder.iterdir()):
        target = Path(_ETC, path.name)
        if path.name == _HOSTS or target.exists():
            libc.bind_mount(str(path), str(target))
    socket.sethostname(name)
