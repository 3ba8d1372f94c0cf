"""Running jobs that never heard of this plugin, looked at from outside; nothing is disturbed.

`machine` finds the worlds of this machine by the environment of their processes, and which one is
meant. `processes` says which process is which rank, and what is missing to read one. `look` looks
twice at a job, and says why a rank may still go on: `reader` reads its ranks here, `joined` those
on several machines, `waits` says which operation the frames of a thread show. `seen_world` judges
what was seen, again and again until a job stops moving if asked for.
`parser` and `command` are ``multihost attach``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    from pytest_multihost.hookspecs import Commands


@hookimpl
def pytest_multihost_commands(commands: Commands) -> None:
    """Add ``multihost attach``."""
    from pytest_multihost.extensions.live.parser import add_attach

    add_attach(commands)
