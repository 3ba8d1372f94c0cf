"""What a host has in place of the machine's files in /etc."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pytest_multihost.launch.netns import namespaces as kernel
from pytest_multihost.model.hosts import Host

_ETC = "/etc"
_HOSTS = "hosts"

_RESOLVER = """\
# Nobody answers here, so that names which are not in /etc/hosts are unknown at once.
nameserver 127.0.0.1
options timeout:1 attempts:1
"""


def write_files(folder: Path, hosts: Sequence[Host]) -> None:
    """Write the files of all hosts, each host's into a folder with its name."""
    known = _table(hosts)
    for host in hosts:
        own = folder / host.name
        own.mkdir(parents=True)
        (own / _HOSTS).write_text(known, encoding="utf-8")
        (own / "resolv.conf").write_text(_RESOLVER, encoding="utf-8")


def let_names_be_known(folder: Path, hosts: Sequence[Host], host: Host, *, is_known: bool) -> None:
    """Let a host find all others by their names, or none. It is seen there at once."""
    wanted = _table(hosts if is_known else [host])
    path = folder / host.name / _HOSTS
    if path.read_text(encoding="utf-8") != wanted:
        path.write_text(wanted, encoding="utf-8")  # the same file: a new one would not be seen


def _table(hosts: Sequence[Host]) -> str:
    """Return the text of an /etc/hosts."""
    table = "".join(f"{each.address}\t{each.name}\n" for each in hosts)
    return f"127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n{table}"


def enter_own_files(folder: Path, name: str) -> None:
    """Give this process a host's name, and its files in place of the machine's.

    A machine without /etc/resolv.conf has no names to ask for and keeps it that way. Without
    /etc/hosts a host could not find its own name, which gloo and jax insist on.

    Raises:
        OSError: The kernel refuses.
    """
    kernel.unshare(kernel.NEW_MOUNTS | kernel.NEW_NAMES)
    kernel.keep_mounts_to_oneself()
    for path in sorted(folder.iterdir()):
        target = Path(_ETC, path.name)
        if path.name == _HOSTS or target.exists():
            kernel.bind(str(path), str(target))
    kernel.name_host(name)
