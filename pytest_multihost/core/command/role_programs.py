"""The option ``--role NAME=RANKS:PROGRAM`` of ``multihost run``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_multihost.core.command.program import Program
from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.role import Role, RoleSpec, place_roles, role_problems

_ROLE = re.compile(r"(?P<name>[^=:]+)=(?P<ranks>[0-9]{1,9}):(?P<program>.+)", re.ASCII | re.DOTALL)
_FORM = "NAME=RANKS:PROGRAM, such as trainer=2:train.py or engine=2:'-m my.engine --port 8000'"


@dataclass(frozen=True, slots=True)
class RoleProgram:
    """A role of a run, with its program.

    Attributes:
        text: The option's value.
    """

    name: str
    ranks: int
    program: Program
    text: str


def parse_role(text: str) -> RoleProgram:
    """Return the role and program of a value of the option.

    Raises:
        SettingError: It is invalid.
    """
    found = _ROLE.fullmatch(text.strip())
    try:
        words = shlex.split(found["program"]) if found is not None else []
    except ValueError as error:
        raise SettingError(f"--role {shown(text)}: {error}") from error
    is_module = words[:1] == ["-m"]
    words = words[1:] if is_module else words
    if found is None or not words:
        raise SettingError(f"--role must be {_FORM}, not {shown(text)}")
    program = Program(words[0], words[1:], is_module=is_module)
    return RoleProgram(found["name"], int(found["ranks"]), program, text)


def roles_of(programs: Sequence[RoleProgram], backend: str) -> tuple[RoleSpec, ...]:
    """Return the roles of a run.

    Args:
        backend: The backend of all roles.

    Raises:
        SettingError: A role is invalid, or given twice.
    """
    if not programs:
        return ()
    named = {each.name: Role(each.ranks) for each in programs}
    if len(named) < len(programs):
        raise SettingError("--role: a role is given twice")
    if problem := role_problems(named):
        raise SettingError(f"--role: {problem}")
    return place_roles(named, backend)
