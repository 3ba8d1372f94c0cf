"""Finds a test that runs once for each of its sizes by the id that it has in its own harness.

There it is `test_it[a]`; here it is `test_it[a-2]` and `test_it[a-4]`. An id without parameters
finds all sizes anyway.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_multihost.core.pytest_plugin.marks import RANKS_PARAM
from pytest_multihost.extensions.adopt.adopted import OUTCOME, Adopted


@dataclass(frozen=True, slots=True)
class Id:
    """An argument of pytest, which selects tests.

    Attributes:
        path: A file or a folder.
        names: The classes and the function in the file.
        params: The text in the brackets; None: there are none.
    """

    path: Path
    names: tuple[str, ...]
    params: str | None

    @classmethod
    def read(cls, argument: str, directory: Path) -> Id:
        """Read an argument, or the id of a test in a root directory."""
        base, bracket, params = argument.partition("[")
        path, *names = base.split("::")
        found = params.removesuffix("]") if bracket else None
        return cls((directory / path).resolve(), tuple(names), found)

    def selects(self, item: pytest.Item) -> bool:
        """Return whether it selects a test, by the test's own id or by its harness's."""
        own = Id.read(item.nodeid, item.config.rootpath)
        is_inside = self.path == own.path or self.path in own.path.parents
        if self.params is None or not is_inside or self.names != own.names:
            is_prefix = self.names == own.names[: len(self.names)]
            return self.params is None and is_inside and is_prefix
        is_sized = RANKS_PARAM in getattr(getattr(item, "callspec", None), "params", {})
        found = item.stash.get(OUTCOME, None)
        if is_sized and isinstance(found, Adopted) and len(found.sizes) > 1:
            sizes = [f"{self.params}-{size}" for size in found.sizes]
            return own.params in (self.params, *sizes)
        return own.params == self.params


WANTED = pytest.StashKey[Sequence[Id]]()
"""The ids that the user has given, while their tests are collected without parameters."""


def collect_sizes(session: pytest.Session) -> bool:
    """Collect again, without the parameters of ids; return whether that found all of them."""
    config, directory = session.config, session.config.invocation_params.dir
    wanted = [Id.read(each, directory) for each in config.args]
    if all(each.params is None for each in wanted):
        return False
    config.stash[WANTED] = wanted
    try:
        session.perform_collect([*dict.fromkeys(e.partition("[")[0] for e in config.args)])
    except (pytest.UsageError, LookupError):
        return False
    finally:
        del config.stash[WANTED]
    return True


def select(items: list[pytest.Item], wanted: Sequence[Id]) -> None:
    """Keep the tests that are selected, in the order of the arguments.

    Raises:
        LookupError: An argument selects none.
    """
    found = {each: [item for item in items if each.selects(item)] for each in wanted}
    if not all(found.values()):
        items.clear()  # pytest goes on as if they were wanted
        raise LookupError
    chosen = dict.fromkeys(item for each in wanted for item in found[each])
    if others := [item for item in items if item not in chosen]:
        others[0].config.hook.pytest_deselected(items=others)
    items[:] = chosen
