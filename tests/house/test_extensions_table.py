"""ARCHITECTURE.md names in one table what belongs to each extension."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from sources import ROOM

ROOT = ROOM.parent
EXTENSIONS = sorted(each.parent.name for each in (ROOM / "extensions").glob("*/__init__.py"))
COLUMNS = "folder", "subject", "guide", "programs", "benchmarks"


def rows() -> dict[str, Mapping[str, str]]:
    """Return the table's rows by the extension's folder."""
    lines = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()
    first = lines.index(f"| {' | '.join(COLUMNS)} |") + 2
    cells = (
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in lines[first : lines.index("", first)]
    )
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in cells}


def named(cell: str) -> list[str]:
    """Return the names in a cell."""
    return [] if cell == "-" else cell.split(", ")


def test_each_extension_has_a_row() -> None:
    """And no other folder has one."""
    assert sorted(rows()) == EXTENSIONS


@pytest.mark.parametrize("name", EXTENSIONS)
def test_what_belongs_to_an_extension_exists(name: str) -> None:
    """Its tests, its pages, its programs and what measures it; so all of it can be deleted."""
    row = rows()[name]
    paths = [
        *(ROOT / "docs" / f"{each}.md" for each in named(row["guide"])),
        *(ROOT / "tests" / each for each in named(row["programs"])),
        *(ROOT / "benchmarks" / f"{each}.py" for each in named(row["benchmarks"])),
    ]
    assert [str(path.relative_to(ROOT)) for path in paths if not path.exists()] == []
    tests: list[Path] = list((ROOT / "tests" / "extensions" / name).rglob("test_*.py"))
    assert tests, f"tests/extensions/{name} has no test"
