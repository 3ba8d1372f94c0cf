"""The modules of the package, each read and parsed once in a process."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest_multihost

ROOM = Path(pytest_multihost.__file__).parent
MODULES = sorted(ROOM.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return the path of a module below the package's folder."""
    return path.relative_to(ROOM).as_posix()


@cache
def text_of(path: Path) -> str:
    """Return the source text of a file."""
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the parsed source of a file; whoever reads it must not change it."""
    return ast.parse(text_of(path))


@cache
def trees() -> Mapping[str, ast.Module]:
    """Return the parsed sources of all modules by their names."""
    return {name_of(path): tree_of(path) for path in MODULES}
