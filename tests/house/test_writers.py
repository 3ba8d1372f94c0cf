"""One module writes files: `core/files`, which follows no link."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from sources import MODULES, name_of, tree_of

OTHERS = {
    name_of(path): path
    for path in MODULES
    if name_of(path) != "core/files.py" and "fixes" not in path.parts
}
NEVER = {"write_text", "write_bytes", "copyfile", "copy", "copy2", "copytree", "copyfileobj"}
WRITES = re.compile(r"[wax+]")
EXCEPTIONS = {
    "extensions/scripts/run.py": "moves the files of its own scratch folder",
    "core/launch/job_spec.py": "writes to a file in memory",
    "core/launch/permits.py": "makes files that are locked and never written",
    "core/launch/server/rank_processes.py": "copies stacks into the folder of its own run",
    "extensions/faults/io_shim/__init__.py": "makes a page that must not exist, and maps it",
    "intercept/files.py": "replaces the test's own open",
    "core/slots/rank_log.py": "shortens the logs of its own run in place",
    "core/standard_streams.py": "opens the null device",
    "extensions/clock/page.py": "makes a page that must not exist, and maps it",
    "extensions/engines/pytest_plugin/agent.py": "opens the null device",
    "extensions/live/processes.py": "asks whether a process may be read",
}
"""The files that write in other ways, and why."""


def writers(tree: ast.Module) -> Iterator[str]:
    """Yield the calls in a program that write a file by themselves."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if last in NEVER and (last != "copy" or name.startswith("shutil.")):
            yield name
        is_method = isinstance(node.func, ast.Attribute)
        given = [*node.args, *(each.value for each in node.keywords if each.arg == "mode")]
        if last == "open" and not name.startswith("os."):
            at = given[0 if is_method else 1 :]
            if at and isinstance(at[0], ast.Constant) and WRITES.search(str(at[0].value)):
                yield ast.unparse(node)
        if name == "shutil.move":
            yield name


def test_only_one_module_writes_files() -> None:
    """A file that somebody else has made in its place, or a link, is replaced and not followed."""
    found = {name: list(writers(tree_of(path))) for name, path in OTHERS.items()}
    assert {name: calls for name, calls in found.items() if calls and name not in EXCEPTIONS} == {}


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("path.write_text(text)", 1),
        ("path.open('wb')", 1),
        ("open(name, 'a')", 1),
        ("open(name, mode='x')", 1),
        ("shutil.copyfile(a, b)", 1),
        ("path.open('rb')", 0),
        ("open(name)", 0),
        ("found.copy()", 0),
    ],
)
def test_a_writer_is_found(line: str, count: int) -> None:
    """The rule sees what it is for, and nothing else."""
    assert len(list(writers(ast.parse(line)))) == count
