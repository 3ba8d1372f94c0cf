"""The command line of ``multihost watch``. Imports little."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pytest_multihost.extensions.live.watch.option import END, REPORT

if TYPE_CHECKING:
    import pluggy

    from pytest_multihost.hookspecs import Commands


def add_watch(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "watch",
        help="run a command; if ranks that it has started hang, say which one the others wait for",
    )
    parser.add_argument("--end", action="store_true", help="end ranks that are proven to hang")
    parser.add_argument("program", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    parser.set_defaults(act=_watch)


def _watch(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:  # noqa: ARG001
    from pytest_multihost.extensions.live.watch.command import watch

    return watch(options.program, END if options.end else REPORT)
