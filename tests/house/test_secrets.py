"""Secrets stay where they are: not in files for others, in command lines, or on other nodes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
from sources import MODULES, name_of, text_of, tree_of

from pytest_multihost.extensions.engines.driver.orders_of_run import CARRIED

OURS = {name_of(path): path for path in MODULES if "fixes" not in path.parts}
SECRET_WORDS = re.compile(r"TOKEN|SECRET|PASSW|KEY|CREDENTIAL|_URL|AUTH")


def open_modes(source: str) -> list[str]:
    """Return the modes in a program that let users other than the owner read a new file."""
    return re.findall(r"\b0o[67](?!00\b)[0-7]{2}\b", source)


def written_texts(tree: ast.Module) -> Iterator[str]:
    """Yield the arguments of new processes that are made from data, and so may hold a secret."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("Popen", "spawn"))):
            continue
        for part in ast.walk(node.args[0]) if node.args else ():
            if isinstance(part, ast.Call) and ast.unparse(part.func) in {"json.dumps", "repr"}:
                yield ast.unparse(part)


DECIDING = {"core/artifacts_access.py", "core/files.py"}


def test_two_modules_decide_who_may_read_a_file() -> None:
    """The user chooses who may read artifacts; a file is as private as its directory."""
    found = {name: open_modes(text_of(path)) for name, path in OURS.items()}
    assert {name for name, modes in found.items() if modes} <= DECIDING


def test_no_data_is_in_a_command_line() -> None:
    """All users of a machine see it; a memory file is seen by the process alone."""
    found = {name: list(written_texts(tree_of(path))) for name, path in OURS.items()}
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_nodes_get_variables_by_their_whole_names() -> None:
    """None of them is called like a secret."""
    assert [each for each in CARRIED if SECRET_WORDS.search(each)] == []
    assert {each for each in CARRIED if not re.fullmatch("[A-Z][A-Z0-9_]*[A-Z0-9]", each)} == set()


def test_one_module_makes_errors_of_usage() -> None:
    """So what a node or a file says in one is printable."""
    raises = re.compile(r"raise (pytest\.)?UsageError\(")
    found = {name for name, path in OURS.items() if raises.search(text_of(path))}
    assert found <= {"core/pytest_plugin/usage_errors.py"}


@pytest.mark.parametrize(
    ("line", "count"),
    [("os.open(p, f, 0o644)", 1), ("p.mkdir(0o755)", 1), ("p.chmod(0o600)", 0), ("m(0o700)", 0)],
)
def test_a_mode_for_others_is_found(line: str, count: int) -> None:
    """The rule sees what it is for, and nothing else."""
    assert len(open_modes(line)) == count
