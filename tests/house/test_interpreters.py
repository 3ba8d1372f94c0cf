"""No interpreter that this package starts, or tells a user to start, imports from the directory."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest
from sources import MODULES, name_of, tree_of

SHELLS = {"sh", "bash"}


def unsafe_commands(tree: ast.Module) -> Iterator[str]:
    """Yield the commands in a program that have -c or -m, and no -P before it.

    `python -m pytest` is to import from the directory: it runs the tests there.
    """
    for node in ast.walk(tree):
        if not isinstance(node, ast.List | ast.Tuple):
            continue
        words = [each.value if isinstance(each, ast.Constant) else None for each in node.elts]
        for index, word in enumerate(words[1:], 1):
            is_ours = any(name in ast.unparse(node) for name in ("executable", "python"))
            is_ours = is_ours and words[index + 1 : index + 2] != ["pytest"]
            if word in {"-c", "-m"} and is_ours and words[index - 1] not in {"-P", *SHELLS}:
                yield ast.unparse(node)


def test_each_interpreter_is_started_with_safe_path() -> None:
    """Without -P, Python imports modules of the working directory first, also as root."""
    found = {name_of(path): list(unsafe_commands(tree_of(path))) for path in MODULES}
    assert {name: commands for name, commands in found.items() if commands} == {}


@pytest.mark.parametrize(
    ("command", "is_safe"),
    [
        ('[sys.executable, "-c", code]', False),
        ('[python, "-m", "other"]', False),
        ('(sys.executable, "-u", "-c", code)', False),
        ('[sys.executable, "-P", "-c", code]', True),
        ('["sh", "-c", python]', True),
        ('[python, "-m", "pytest", tests]', True),
        ("[sys.executable, script]", True),
    ],
)
def test_a_command_without_safe_path_is_found(command: str, *, is_safe: bool) -> None:
    """The rule sees what it is for, and nothing else."""
    assert (list(unsafe_commands(ast.parse(command))) == []) is is_safe
