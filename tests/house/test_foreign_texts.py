"""What somebody else has written in a file or a token is data: it names no code and no command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pytest_multihost
from pytest_multihost.core.option import CORE_OPTIONS
from pytest_multihost.core.registry import extension_plugins

ROOM = Path(pytest_multihost.__file__).parent
TEMPLATES = sorted(ROOM.rglob("*.j2"))
IN_TOKENS = frozenset(
    (
        "ranks",
        "backend",
        "timeout",
        "startup_timeout",
        "local_devices",
        "hosts",
        "launch",
        "mode",
        "clock",
        "semantics",
    )
)
"""The options that a token may set: numbers and words of lists. None is a file or a command."""


def test_a_token_sets_only_options_of_this_list() -> None:
    """An option that starts commands, loads code or names files must not be in a token."""
    faces = [face for _, face in extension_plugins() if hasattr(face, "pytest_multihost_options")]
    options = [*CORE_OPTIONS, *(each for face in faces for each in face.pytest_multihost_options())]
    assert {each.name for each in options if each.is_replayed} == IN_TOKENS


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_each_link_stays_inside_its_folder(template: Path) -> None:
    """The name in a link may come from artifacts of somebody else."""
    values = re.findall(r'(?:href|src)="[^"]*?\{\{(.*?)\}\}', template.read_text("utf-8"))
    assert [each for each in values if not each.strip().endswith("|inside")] == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.name)
def test_a_command_of_a_file_has_no_copy_button(template: Path) -> None:
    """A button invites to run what nobody has read."""
    text = template.read_text("utf-8")
    buttons = [found.start() for found in re.finditer("data-copies", text)]
    own = [*re.finditer(r"{% if [\w.]*is_of_file %}.*?{% else %}(.*?){% endif %}", text, re.DOTALL)]
    assert all(any(each.start(1) < at < each.end(1) for each in own) for at in buttons)
