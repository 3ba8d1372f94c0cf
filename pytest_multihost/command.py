"""The console script ``multihost``."""

from __future__ import annotations

import argparse
import linecache
import sys
from pathlib import Path

from pytest_multihost.explain import explain
from pytest_multihost.model.errors import MultihostError


def main() -> int:
    """Run a command; return the exit code: 0, or 1 where the verdict cannot be derived again."""
    parser = argparse.ArgumentParser(prog="multihost", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    told = commands.add_parser("explain", help="derive a verdict again from its artifacts alone")
    told.add_argument("directory", type=Path, help="folder of an attempt, below .pytest_multihost")
    try:
        lines = list(explain(parser.parse_args().directory, _source_line))
    except MultihostError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if lines[-1].startswith("differs") else 0


def _source_line(file: str, line: int) -> str:
    return linecache.getline(file, line).strip()


if __name__ == "__main__":
    sys.exit(main())
