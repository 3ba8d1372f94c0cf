"""Roles: parts of a world that run programs of their own, each with its own numbers of ranks."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_multihost.core.model.errors import known_names, shown
from pytest_multihost.core.model.fault import RANK_WORDS
from pytest_multihost.core.model.placeholders import filled
from pytest_multihost.core.model.setting_values import MAX_RANKS

_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}", re.ASCII | re.IGNORECASE)
_RANK_OF_ROLE = re.compile(r"(?P<role>[^:]+)(:(?P<number>[0-9]{1,9}))?", re.ASCII)
_RESERVED = frozenset({*RANK_WORDS, "rank", "ranks"})

MAX_ROLES = 64
MAX_RESTARTS = 100

_TCP, _MAX_PORT = "tcp:", 65_535


@dataclass(frozen=True, slots=True)
class Role:
    """A part of a world: some of its ranks, which run a program of their own.

        @pytest.mark.multihost(roles={"trainer": 2, "engine": Role(2, backend="gloo")})

    Args:
        backend: Its backend, which makes a process group of these ranks alone; None: the test's.
        env: Variables for the environment of its ranks. They are set when a rank starts, after its
            modules have been imported.
        run: The program that its ranks run in place of the test's function: "-m package.module", a
            file, or a Python program on PATH, with arguments. ``{port}`` is a port of the rank's
            own, ``{rank}`` and ``{size}`` are those in the role, and ``{ports[driver]}`` is the
            first port of another role. None: they run the test's function.
        ready: When its ranks are ready: "tcp:{port}", once that port listens, with the same names
            in braces as in `run`.
        after: The roles, one or several, that must be ready before its ranks start. They must say
            `ready`.
        restarts: How often a rank starts its program `run` again after that has exited with an
            error. Only the last end counts.
        service: Whether its program `run` serves the other roles and does not end by itself. It
            gets SIGTERM once all ranks of the others have returned from the test.
    """

    ranks: int
    backend: str | None = field(default=None, kw_only=True)
    env: Mapping[str, str] = field(default_factory=dict, kw_only=True, hash=False)
    run: str | None = field(default=None, kw_only=True)
    ready: str | None = field(default=None, kw_only=True)
    after: str | Sequence[str] = field(default=(), kw_only=True)
    restarts: int = field(default=0, kw_only=True)
    service: bool = field(default=False, kw_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleSpec:
    """A role of a world.

    Attributes:
        ranks: Its ranks in the world; consecutive.
        env: Variables for the environment of its ranks.
        run: The program that they run; empty: the test's function, or a script.
        ready: When they are ready; empty: it is not said.
        after: The roles that must be ready before they start.
        restarts: How often a rank starts its program again after an error.
        is_service: Whether its program is ended once the ranks of all other roles have left.
        primary_leaves_last: Whether its first rank hosts a service of its runtime, whose end would
            end the others.
    """

    name: str
    ranks: range
    backend: str
    primary_leaves_last: bool = False
    run: str = ""
    ready: str = ""
    after: tuple[str, ...] = ()
    restarts: int = 0
    is_service: bool = False
    env: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def has_children(self) -> bool:
        """Whether its ranks run their program in a child process."""
        return bool(self.restarts) or self.is_service

    @property
    def own_ports(self) -> int:
        """How many ports are reserved for its program."""
        return len(self.ranks) + SPARE_PORTS

    @property
    def port_count(self) -> int:
        """How many ports are reserved for it: two for its rendezvous, and its program's own."""
        return 2 + self.own_ports


SPARE_PORTS = 7
"""Ports of a role beside one for each of its ranks."""


def role_problems(value: object) -> str | None:
    """Return the first problem of the marker's key `roles`; None if it is valid."""
    if not isinstance(value, Mapping) or not value:
        return f"must map names of roles to numbers of ranks, or to Role(...), not {shown(value)}"
    return next(_problems(value), None)


def _problems(roles: Mapping[object, object]) -> Iterator[str]:
    if len(roles) > MAX_ROLES:
        yield f"must be at most {MAX_ROLES}, not {len(roles)}"
    for name, role in roles.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED:
            reserved = ", ".join(sorted(_RESERVED))
            yield (
                f"must have names of letters, digits and _, other than {reserved}: {shown(name)}"
            )
            continue
        found = role if isinstance(role, Role) else Role(role)  # type: ignore[arg-type]
        if type(found.ranks) is not int or not 0 < found.ranks <= MAX_RANKS:
            yield f"{name!r} must have a number of ranks from 1 to {MAX_RANKS}, not {shown(role)}"
        if found.backend is not None and (not isinstance(found.backend, str) or not found.backend):
            yield f"{name!r}: backend must be a name, not {shown(found.backend)}"
        if not isinstance(found.env, Mapping) or not all(
            isinstance(each, str) for each in (*found.env, *found.env.values())
        ):
            yield f"{name!r}: env must map names to strings, not {shown(found.env)}"
        if found.run is not None and (problem := _program_problem(found.run, roles)):
            yield f"{name!r}: run {problem}"
        yield from (f"{name!r}: {problem}" for problem in _order_problems(name, found, roles))
    if all(isinstance(each, Role) and each.service is True for each in roles.values()):
        yield (
            "must have at least one role that is not a service, because services end"
            " with the others"
        )
    yield from _cycles(roles)


def _order_problems(name: str, role: Role, roles: Mapping[object, object]) -> Iterator[str]:
    """Yield the problems with the times at which a role starts, is ready, and starts again."""
    if role.ready is not None and (problem := _address_problem(role.ready, roles)):
        yield f"ready {problem}"
    if not isinstance(role.after, str | Sequence) or not all(
        isinstance(each, str) for each in role.after
    ):
        yield f"after must be the name of a role, or a list of names, not {shown(role.after)}"
        return
    for other in named_roles(role.after):
        if other not in roles:
            there_are = known_names([str(each) for each in roles], other)
            yield f"after: there is no role {shown(other)}; there are: {there_are}"
        elif other == name:
            yield "after names the role itself"
        elif not getattr(roles[other], "ready", None):
            yield f"after: the role {other!r} must say when it is ready, as in ready='tcp:{{port}}'"
    yield from _program_options(role)


def _program_options(role: Role) -> Iterator[str]:
    """Yield the problems with a role's options `restarts` and `service`."""
    if type(role.restarts) is not int or not 0 <= role.restarts <= MAX_RESTARTS:
        yield f"restarts must be a number from 0 to {MAX_RESTARTS}, not {shown(role.restarts)}"
    elif role.restarts and role.run is None:
        yield "restarts are for a program: say run="
    if type(role.service) is not bool:
        yield f"service must be True or False, not {shown(role.service)}"
    elif role.service and role.run is None:
        yield "a service is a program: say run="


def named_roles(after: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of roles that one text or several give."""
    return (after,) if isinstance(after, str) else tuple(after)


def _cycles(roles: Mapping[object, object]) -> Iterator[str]:
    """Yield a cycle of roles that start after each other."""
    after = {
        name: named_roles(role.after)
        for name, role in roles.items()
        if isinstance(role, Role) and isinstance(role.after, str | Sequence)
    }
    for start in after:
        path: list[object] = [start]
        while (ahead := after.get(path[-1], ())) and len(path) <= len(after):
            step = next((each for each in ahead if _leads(each, start, after)), None)
            if step is None or step == path[-1]:
                break
            path.append(step)
            if step == start:
                yield f"start after each other: {' after '.join(map(str, path))}"
                return


def _leads(from_: object, to: object, after: Mapping[object, Sequence[str]]) -> bool:
    """Return whether role `from_` starts after role `to`, directly or through other roles."""
    seen, ahead = set[object](), [from_]
    while ahead:
        each = ahead.pop()
        if each == to:
            return True
        if each not in seen:
            seen.add(each)
            ahead += after.get(each, ())
    return False


def _address_problem(ready: object, roles: Mapping[object, object]) -> str:
    """Return the problem of a role's address; empty if it can be used."""
    form = "must be 'tcp:PORT', as in 'tcp:{port}'"
    if not isinstance(ready, str):
        return f"{form}, not {shown(ready)}"
    try:
        text = _filled_on_trial(ready, roles)
    except ValueError as error:
        return f"cannot be read: {error}"
    return "" if tcp_port(text) else f"{form}, not {shown(ready)}"


def _filled_on_trial(text: str, roles: Iterable[object]) -> str:
    """Return a role's text with some port and number in place of each name in braces.

    Raises:
        ValueError: A name is unknown.
    """
    ports = {each: 1 for each in roles if isinstance(each, str)}
    return filled(text, {"port": 1, "rank": 0, "size": 1}, ports)


def tcp_port(address: str) -> int:
    """Return the port of "tcp:PORT"; 0 if the text is not such an address."""
    digits = address.removeprefix(_TCP)
    is_number = address.startswith(_TCP) and digits.isascii() and digits.isdecimal()
    port = int(digits[:6]) if is_number else 0
    return port if port <= _MAX_PORT else 0


def _program_problem(run: object, roles: Mapping[object, object]) -> str:
    """Return the problem of a role's program; empty if it can be run as far as known."""
    if not isinstance(run, str):
        return f"must be a command line, not {shown(run)}"
    try:
        words = shlex.split(_filled_on_trial(run, roles))
    except ValueError as error:
        return f"cannot be read: {error}"
    return "" if words[1:] or (words and words != ["-m"]) else "names no program"


def read_roles(value: Mapping[str, int | Role]) -> Mapping[str, Role]:
    """Return the roles of a marker's key without problems."""
    return {name: role if isinstance(role, Role) else Role(role) for name, role in value.items()}


def sized_roles(roles: Mapping[str, Role], sizes: Mapping[str, int]) -> Mapping[str, Role]:
    """Return roles with other numbers of ranks.

    Args:
        sizes: The numbers of ranks of some roles, perhaps of other tests.
    """
    return {name: replace(role, ranks=sizes.get(name, role.ranks)) for name, role in roles.items()}


def place_roles(roles: Mapping[str, Role], backend: str) -> tuple[RoleSpec, ...]:
    """Return roles with their ranks in the world: those of the first role come first.

    Args:
        backend: The backend of roles that name none.
    """
    found: list[RoleSpec] = []
    first = 0
    for name, role in roles.items():
        ranks = range(first, first + role.ranks)
        found.append(
            RoleSpec(
                name=name,
                ranks=ranks,
                backend=role.backend or backend,
                env=dict(role.env),
                run=role.run or "",
                ready=role.ready or "",
                after=named_roles(role.after),
                restarts=role.restarts,
                is_service=role.service,
            )
        )
        first = ranks.stop
    return tuple(found)


def ranks_of(text: str, roles: tuple[RoleSpec, ...]) -> tuple[int, ...]:
    """Return the ranks that "engine" or "engine:1" names.

    Raises:
        ValueError: No rank has that name; the text says why.
    """
    found = _RANK_OF_ROLE.fullmatch(text)
    named = {each.name: each for each in roles}
    if found is None or found["role"] not in named:
        known = known_names(named, text) if named else "the test has no roles"
        raise ValueError(f"there is no role {shown(text)}; there are: {known}")
    ranks = named[found["role"]].ranks
    if found["number"] is None:
        return tuple(ranks)
    number = int(found["number"])
    if number >= len(ranks):
        last = f"has the ranks 0 to {len(ranks) - 1}" if len(ranks) > 1 else "has only rank 0"
        raise ValueError(f"{shown(text)} is out of range: role {found['role']} {last}")
    return (ranks[number],)
