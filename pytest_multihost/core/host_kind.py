"""Kinds of emulated hosts, and the setting `hosts` that chooses one."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pluggy

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.setting_values import ONE

if TYPE_CHECKING:
    from pytest_multihost.core.model.spec import Host, ServicePart, WorldSpec

_SETTING = r"(?a)([a-z][a-z0-9_]*)(?::([1-9][0-9]{0,8}))?"


def _no_services() -> Mapping[str, ServicePart]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKind:
    """A kind of emulated hosts. Plugins offer theirs through the hook `pytest_multihost_hosts`.

    Every run of pytest asks for the kinds, because an option names them. So the functions are
    called only for worlds that have such hosts.

    Attributes:
        name: As in ``hosts="name"``.
        hosts: Returns the hosts of a world, given its number of ranks and the ranks per host.
        services: Returns the services that make the hosts, by name: see `WorldSpec.services`.
        is_sealed: Whether the network of these hosts connects only hosts of the same world. Worlds
            with roles get one such host by default.
        probe: Import path, "package.module:function", of a function that checks in a server
            whether such hosts can be made there. It takes a directory that does not exist, and
            raises LaunchError or OSError if they cannot.
    """

    name: str
    hosts: Callable[[int, int], tuple[Host, ...]]
    services: Callable[[], Mapping[str, ServicePart]] = _no_services
    is_sealed: bool = False
    probe: str = ""


def offered_host_kinds(hook: pluggy.HookRelay) -> list[HostKind]:
    """Return the kinds of hosts that plugins offer; the plugin registered last comes first."""
    return [kind for group in hook.pytest_multihost_hosts() for kind in group]


@dataclass(frozen=True, slots=True)
class Hosts:
    """The setting `hosts`.

    Attributes:
        kind: None: all ranks are on this machine.
    """

    kind: HostKind | None = None
    ranks_each: int = 1

    @classmethod
    def parse(cls, text: object, kinds: Collection[HostKind]) -> Hosts:
        """Return the value of a text such as "one", "netns", "netns:2".

        Args:
            kinds: The kinds that exist. Of two with the same name the first counts.

        Raises:
            SettingError: It is invalid.
        """
        if text == ONE:
            return cls()
        known = {each.name: each for each in reversed([*kinds])}
        found = re.fullmatch(_SETTING, text) if isinstance(text, str) else None
        if found is not None and found[1] in known:
            return cls(known[found[1]], int(found[2] or 1))
        choices = [ONE, *(f"{name}, {name}:N (N ranks on each host)" for name in known)]
        raise SettingError(f"must be one of {', '.join(choices)}, not {shown(text)}")

    @classmethod
    def sealed(cls, kinds: Collection[HostKind], size: int) -> Hosts:
        """Return one host that nothing outside can reach, for all ranks of a world.

        It is this machine if no kind of hosts is sealed.

        Args:
            kinds: The kinds that exist. Of several that are sealed the first counts.
        """
        kind = next((each for each in kinds if each.is_sealed), None)
        return cls(kind, size) if kind is not None else cls()

    def of(self, size: int) -> tuple[Host, ...]:
        """Return the hosts of a world of `size` ranks; empty if they are all on this machine."""
        return self.kind.hosts(size, self.ranks_each) if self.kind is not None else ()

    @property
    def services(self) -> Mapping[str, ServicePart]:
        """The services that make the hosts, by name."""
        return self.kind.services() if self.kind is not None else {}

    def removed_from(self, spec: WorldSpec) -> WorldSpec:
        """Return a world without these hosts, because they cannot be made: on this machine."""
        own = self.services
        kept = {name: part for name, part in spec.services.items() if name not in own}
        return replace(spec, hosts=(), services=kept)

    def __str__(self) -> str:
        """Return the setting in canonical form."""
        name = self.kind.name if self.kind is not None else ONE
        return name if self.ranks_each == 1 else f"{name}:{self.ranks_each}"
