"""``multihost run``: runs a script as a world, without pytest.

* `command` defines the command line, with `torchrun_options`, which it takes from torchrun.
* `run` plans the world, runs it and shows how it ends. `screen` shows the ranks' output.
* `program` is the Python program behind a command, `role_programs` are the programs of roles.
* `in_rank` runs the script in a rank. `script_end` lets ranks of a script leave before the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_multihost.hookspecs import hookimpl

if TYPE_CHECKING:
    import pluggy

    from pytest_multihost.hookspecs import Commands, ServiceKind


@hookimpl
def pytest_multihost_commands(commands: Commands, hook: pluggy.HookRelay) -> None:
    """Add ``multihost run``."""
    from pytest_multihost.extensions.scripts.command import add_run

    add_run(commands, hook)


@hookimpl(trylast=True)
def pytest_multihost_services() -> Sequence[ServiceKind]:
    """Offer the service `script_end`."""
    from pytest_multihost.extensions.scripts.script_end import SCRIPT_END

    return [SCRIPT_END]
