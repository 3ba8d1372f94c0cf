"""``multihost pattern``: prints the patterns that remove weaknesses, each with code."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from pytest_multihost.hookspecs import Commands

_GUIDE = Path(__file__).with_name("patterns.md")
"""The page of the guide: a link here, a file in the wheel."""

_SECTION = re.compile(
    r'(?ms)^## (?P<title>.+?) <a id="(?P<name>[\w-]+)"></a>\n(?P<text>.*?)(?=^## |\Z)'
)


def add_mend(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "pattern", aliases=["mend"], help="show how to remove a weakness that a sweep found"
    )
    parser.set_defaults(act=_mend)
    parser.add_argument(
        "pattern", nargs="?", help="such as agree-on-errors; none: list the patterns"
    )


def _mend(options: argparse.Namespace, hook: pluggy.HookRelay) -> int:
    """Print one pattern with its code, or a line for each pattern.

    Raises:
        MultihostError: There is no such pattern.
    """
    del hook
    from pytest_multihost.core.model.errors import MultihostError, known_names, shown
    from pytest_multihost.extensions.sweep.mendings import MENDINGS

    if options.pattern is None:
        width = max(map(len, MENDINGS))
        lines = [f"{name:{width}}  {each.advice}" for name, each in MENDINGS.items()]
        sys.stdout.write("\n".join(lines) + "\n")
        return 0
    if options.pattern not in MENDINGS:
        raise MultihostError(
            f"there is no pattern {shown(options.pattern)}",
            seen=f"There are: {known_names(MENDINGS, options.pattern)}",
            remedy="multihost pattern lists them.",
        )
    sys.stdout.write(section(options.pattern))
    return 0


def section(name: str) -> str:
    """Return the section of the guide that describes a pattern, with its title."""
    found = {each["name"]: each for each in _SECTION.finditer(_GUIDE.read_text(encoding="utf-8"))}
    return f"{found[name]['title']}\n\n{found[name]['text'].strip()}\n"
