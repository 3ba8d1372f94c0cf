"""What README and options promise, and the tests that fail when a promise is not kept.

`@pytest.mark.claim("a row of README's tables")` names the row that a test is about. An option needs
a test that uses it: without the option, that test ends with a usage error. Run this file to print
the table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = sorted(
    path
    for path in (ROOT / "tests").rglob("test_*.py")
    if path.relative_to(ROOT / "tests").parts[0] not in {"corpus", "found", "hazards", "latent"}
)
ROW = re.compile(r"^\| (?P<first>[^|]+?) \| [^|]+ \|", re.MULTILINE)


def rows_of(readme: str) -> list[str]:
    """Return the first cells of all tables of a page, without the heads; a link is its text."""
    cells = [match["first"] for match in ROW.finditer(readme)]
    texts = [re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", cell) for cell in cells]
    return [text for text in texts if text not in {"I want to", "fix"} and set(text) != {"-"}]


def claims_of(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each claim in a test file, with the node id of the test that names it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef):
            continue
        for each in node.decorator_list:
            if isinstance(each, ast.Call) and ast.unparse(each.func) == "pytest.mark.claim":
                yield ast.literal_eval(each.args[0]), f"{path.relative_to(ROOT)}::{node.name}"


def claims_and_tests() -> Mapping[str, list[str]]:
    """Return the tests that name each claim."""
    found: dict[str, list[str]] = {}
    for path in TESTS:
        for claim, test in claims_of(path):
            found.setdefault(claim, []).append(test)
    return found


def options_and_files(names: list[str]) -> Mapping[str, list[str]]:
    """Return the test files that use each option, on the command line or in an ini file."""
    texts = {str(path.relative_to(ROOT)): path.read_text() for path in TESTS}
    return {
        name: [
            file
            for file, text in texts.items()
            if re.search(rf"--{name}\b(?!-)|\b{name.replace('-', '_')} = ", text)
        ]
        for name in names
    }


def table() -> str:
    """Return a Markdown table of README's rows and their tests."""
    found = claims_and_tests()
    rows = rows_of((ROOT / "README.md").read_text())
    lines = [f"| {row} | {'<br>'.join(found.get(row, []))} |" for row in rows]
    return "\n".join(["| README | tests |", "|---|---|", *lines])


if __name__ == "__main__":
    print(table())
