"""Where the secret of a run can be read: in processes of a machine, or in what an engine keeps."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from pathlib import Path

TELLS = """
from pathlib import Path

def pytest_runtestloop(session):
    for plugin in session.config.pluginmanager.get_plugins():
        admission = getattr(plugin, "_admission", None)
        if admission is not None:
            (Path(__file__).parent / "told").write_bytes(admission._secret)
"""
"""For a conftest.py: the driver writes the run's secret to a file `told` beside it."""


def forms_of(secret: bytes) -> tuple[bytes, ...]:
    """Return how a secret may be written: as it is, in hexadecimal digits, in base 64."""
    found = secret.hex().encode()
    return secret, found, found.upper(), base64.b64encode(secret)[:-4]


def seen_in_processes(secret: bytes) -> list[str]:
    """Return the command lines and environments, of all processes, that have a secret."""
    files = (f"/proc/{name}/{kind}" for name in _pids() for kind in ("cmdline", "environ"))
    return seen_in_files(secret, map(Path, files))


def _pids() -> Iterator[str]:
    yield from (each.name for each in Path("/proc").iterdir() if each.name.isdecimal())


def seen_in_files(secret: bytes, files: Iterable[Path]) -> list[str]:
    """Return the files that have a secret."""
    found = []
    for each in files:
        try:
            data = each.read_bytes()
        except OSError:  # it has ended, or is no file
            continue
        if any(form in data for form in forms_of(secret)):
            found.append(str(each))
    return found
