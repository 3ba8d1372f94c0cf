"""The options of ``multihost run`` for roles: ``--role NAME=RANKS:PROGRAM`` and how these start."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_multihost.core.model.errors import SettingError, known_names, shown
from pytest_multihost.core.model.role import (
    Role,
    RoleSpec,
    named_roles,
    place_roles,
    role_problems,
)
from pytest_multihost.extensions.scripts.program import Program

_ROLE = re.compile(r"(?P<name>[^=:]+)=(?P<ranks>[0-9]{1,9}):(?P<program>.+)", re.ASCII | re.DOTALL)
_FORM = "NAME=RANKS:PROGRAM, such as trainer=2:train.py or engine=2:'-m my.engine --port {port}'"


@dataclass(frozen=True, slots=True)
class RoleProgram:
    """A role of a run, with its program.

    Attributes:
        text: The value of ``--role``.
        role: Its ranks, and how they start and end.
    """

    name: str
    program: Program
    text: str
    role: Role

    def arguments(self) -> Iterator[str]:
        """Yield the options that name it again."""
        yield from ("--role", self.text)
        if self.role.ready:
            yield from ("--ready", f"{self.name}={self.role.ready}")
        for each in named_roles(self.role.after):
            yield from ("--after", f"{self.name}={each}")
        if self.role.restarts:
            yield from ("--restarts", f"{self.name}={self.role.restarts}")
        if self.role.service:
            yield from ("--service", self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """The values of the options that say how roles start and end; each begins with a role's name.

    Attributes:
        ready: Of ``--ready engine=tcp:{port}``.
        after: Of ``--after client=engine``.
        restarts: Of ``--restarts engine=1``.
        services: Of ``--service engine``.
    """

    ready: Sequence[str] = ()
    after: Sequence[str] = ()
    restarts: Sequence[str] = ()
    services: Sequence[str] = ()


def parse_roles(texts: Sequence[str], start: StartOptions) -> list[RoleProgram]:
    """Return the roles and programs of a run.

    Raises:
        SettingError: One is invalid, or an option names no role.
    """
    programs = [_parse_role(each) for each in texts]
    names = [each.name for each in programs]
    ready = dict(_pairs("--ready", start.ready, names, "engine=tcp:{port}"))
    after = list(_pairs("--after", start.after, names, "client=engine"))
    restarts = dict(_pairs("--restarts", start.restarts, names, "engine=1"))
    services = [_named("--service", each, names) for each in start.services]
    return [
        replace(
            each,
            role=replace(
                each.role,
                ready=ready.get(each.name),
                after=tuple(other for name, other in after if name == each.name),
                restarts=_number("--restarts", restarts.get(each.name, "0")),
                service=each.name in services,
            ),
        )
        for each in programs
    ]


def _parse_role(text: str) -> RoleProgram:
    """Return the role and program of a value of ``--role``.

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
    role = Role(int(found["ranks"]), run=found["program"])
    return RoleProgram(found["name"], program, text, role)


def _pairs(
    option: str, texts: Sequence[str], names: Sequence[str], form: str
) -> Iterator[tuple[str, str]]:
    """Yield the roles and values that an option's values name.

    Raises:
        SettingError: A text has another form, or names no role.
    """
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not value:
            raise SettingError(f"{option} must be NAME=VALUE, such as {form}, not {shown(text)}")
        yield _named(option, name, names), value


def _named(option: str, name: str, names: Sequence[str]) -> str:
    """Return a name if it is a role's.

    Raises:
        SettingError: It is not.
    """
    if name in names:
        return name
    if not names:
        raise SettingError(f"{option} is for roles: --role NAME=RANKS:PROGRAM")
    raise SettingError(
        f"{option}: there is no role {shown(name)}; there are: {known_names(names, name)}"
    )


def _number(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise SettingError(f"{option} must be a number, not {shown(text)}") from error


def roles_of(programs: Sequence[RoleProgram], backend: str) -> tuple[RoleSpec, ...]:
    """Return the roles of a run.

    Raises:
        SettingError: A role is invalid, or given twice.
    """
    if not programs:
        return ()
    named: Mapping[str, Role] = {each.name: each.role for each in programs}
    if len(named) < len(programs):
        raise SettingError("--role: a role is given twice")
    if problem := role_problems(named):
        raise SettingError(f"--role: {problem}")
    # `run` is a program in place of a test's function, and here there is no test.
    return place_roles({name: replace(role, run=None) for name, role in named.items()}, backend)
