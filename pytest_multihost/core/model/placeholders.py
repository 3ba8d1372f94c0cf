"""Names in braces in the program and the address of a role: ``{port}`` and its like.

All other braces are the program's own, as in an argument that is JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pytest_multihost.core.model.errors import known_names, shown

_IN_BRACES = re.compile(
    r"(?P<is_doubled>\{)?\{(?P<name>[a-z_][a-z0-9_]*)(\[(?P<role>[^][{}]*)\])?\}(?(is_doubled)\})",
    re.ASCII | re.IGNORECASE,
)
_PORTS = "ports"


def filled(text: str, values: Mapping[str, int], ports: Mapping[str, int]) -> str:
    """Return a text with values in place of their names in braces; ``{{port}}`` is ``{port}``.

    Args:
        values: By the names that stand alone, such as "port".
        ports: By the roles of ``{ports[driver]}``.

    Raises:
        ValueError: There is no value of a name.
    """

    def value(found: re.Match[str]) -> str:
        name, role = found["name"], found["role"]
        if found["is_doubled"]:
            return found[0][1:-1]
        if name == _PORTS and role is not None:
            if role not in ports:
                there_are = known_names(ports, role)
                raise ValueError(f"there is no role {shown(role)}; there are: {there_are}")
            return str(ports[role])
        if role is not None or name not in values:
            there_are = known_names([*values, f"{_PORTS}[ROLE]"], name)
            raise ValueError(f"there is no {found[0]}; there are: {there_are}")
        return str(values[name])

    return _IN_BRACES.sub(value, text)
