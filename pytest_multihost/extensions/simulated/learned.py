"""The lessons of a world for the next ones of the same test: imported modules, and memory.

Ranks of a world write it as they return from the test. The server reads it when the world is over,
and uses it when it starts a larger one: it imports these modules once for all ranks, and refuses a
world that does not fit into memory. A rank that imports `torch._dynamo` itself takes two seconds
and 80 MB more than a rank forked from a process that has it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.launch.control_groups import OWN_GROUPS
from pytest_multihost.core.launch.server.fork_safety import fork_problems
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.stack import is_library
from pytest_multihost.core.torch_private import DYNAMO

_PREFIX = "service-simulated-learned"

LARGE = 16
"""From how many ranks on imports are made for all of them."""

_TRAINERS = range(65, 513)
"""At how many ranks `DYNAMO` is imported for all of them although no smaller world of the test has
shown that they need it. A program that does not need it then starts later: by 4 s, and by 15 ms and
4 MB for each rank. More ranks of a trainer than these seldom fit into memory."""

_LEAST = 10_000_000
"""How much memory each rank takes at least."""

_SHARE = 0.9
"""How much of the available memory the ranks may take."""


def name_of_test(nodeid: str, size: int) -> str:
    """Return the name that a test has at all sizes: its node id without the parameter of the size.

    Args:
        size: The size of the world, which is one of the test's parameters if it has several.
    """
    name, bracket, parameters = nodeid.partition("[")
    parts = parameters.removesuffix("]").split("-")
    if str(size) in parts:
        parts.remove(str(size))
    return f"{name}{bracket}{'-'.join(parts)}"


@dataclass(frozen=True, slots=True)
class Learned:
    """The lessons of one rank.

    Attributes:
        modules: Modules of libraries that it has imported itself.
        private_bytes: Its private memory when it returned from the test.
    """

    modules: tuple[str, ...]
    private_bytes: int


@dataclass(slots=True)
class Lessons:
    """The lessons of the tests that this server has run, by test.

    Attributes:
        modules: Modules of libraries that its ranks have imported themselves.
        private_bytes: The most private memory that a rank has taken, by size of the world.
    """

    modules: dict[str, set[str]] = field(default_factory=dict)
    private_bytes: dict[str, dict[int, int]] = field(default_factory=dict)

    def add(self, test: str, size: int, folder: Path) -> None:
        """Add the lessons of the ranks of a world of a size."""
        for each in read_learned(folder):
            self.modules.setdefault(test, set()).update(each.modules)
            found = self.private_bytes.setdefault(test, {})
            found[size] = max(each.private_bytes, found.get(size, 0))

    def prepare(self, test: str, size: int) -> None:
        """Make this process ready to fork a large world.

        Raises:
            LaunchError: The world does not fit into memory.
        """
        if missing := self.missing(test, size, sys.modules):
            before = private_bytes()
            import_safely(sorted(missing))
            gc.collect()
            gc.freeze()  # a collection in a rank would touch, and so copy, all that it shares
            self.share(missing, max(0, private_bytes() - before))
        if known := self.private_bytes.get(test):
            check_memory(size, forecast(known, size), OWN_GROUPS.memory().available)

    def missing(self, test: str, size: int, imported: Collection[str]) -> Collection[str]:
        """Return the modules to import before the ranks of a world of a size are forked.

        Args:
            imported: The modules that this process has.
        """
        if size < LARGE:
            return ()
        if size in _TRAINERS and test not in self.private_bytes and "torch" in imported:
            self.modules[test] = {DYNAMO}
        return set[str]().union(*self.modules.values()).difference(imported)

    def share(self, modules: Collection[str], size_bytes: int) -> None:
        """Take modules that ranks share from now on out of the memory of single ranks.

        Args:
            size_bytes: The memory of all these modules.
        """
        for test, own in self.modules.items():
            saved = round(size_bytes * len(own.intersection(modules)) / len(modules))
            own.difference_update(modules)
            found = self.private_bytes.setdefault(test, {})
            found.update({size: max(each - saved, _LEAST) for size, each in found.items()})


def forecast(known: Mapping[int, int], size: int) -> int:
    """Return the memory that a rank of a world of `size` ranks is going to take.

    A rank of a larger world knows more groups and ranks, so it takes more: by as much for each
    rank of the world as between the two largest worlds that are known.

    Args:
        known: The memory of a rank by the sizes of worlds.
    """
    *_, last = sizes = sorted(known)
    if len(sizes) == 1:
        return known[last]
    growth = (known[last] - known[sizes[-2]]) / (last - sizes[-2])
    return known[last] + round(max(0.0, growth) * max(0, size - last))


def check_memory(size: int, rank_bytes: int, available: int) -> None:
    """Check that a world fits into memory, by the memory of a rank of a smaller one.

    Raises:
        LaunchError: It does not.
    """
    needed = size * rank_bytes
    if needed <= available * _SHARE:
        return
    fits = int(available * _SHARE) // rank_bytes
    raise LaunchError(
        f"{size} ranks would need {needed / 1e9:.1f} GB, and {available / 1e9:.1f} GB are free",
        seen=f"A rank takes {rank_bytes / 1e6:.0f} MB, as smaller worlds of this test have shown.",
        remedy=f"{fits} ranks fit.",
    )


def learn(before: int) -> Learned:
    """Return the lessons of this rank.

    Args:
        before: How many modules it had when it was forked. A look at their names would touch, and
            so copy, 4 MB of memory that the ranks share.
    """
    taken = private_bytes()
    new = islice(reversed(sys.modules), max(0, len(sys.modules) - before))
    return Learned(tuple(sorted(filter(_is_of_library, list(new)))), taken)


def private_bytes() -> int:
    """Return the memory that only this process holds, and that of its page tables."""
    found = 0
    for path, name in (("/proc/self/smaps_rollup", b"Private_"), ("/proc/self/status", b"VmPTE")):
        with Path(path).open("rb") as file:
            found += sum(int(line.split()[1]) << 10 for line in file if line.startswith(name))
    return found


def write_learned(folder: Path, rank: int, learned: Learned) -> None:
    """Write the lessons of a rank."""
    files.write(folder / f"{_PREFIX}-{rank}.json", json.dumps(asdict(learned)))


def read_learned(folder: Path) -> Iterable[Learned]:
    """Yield the lessons of a world's ranks; a damaged file has none."""
    for path in folder.glob(f"{_PREFIX}-*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            found = json.loads(path.read_text())
            yield Learned(tuple(found["modules"]), int(found["private_bytes"]))


def import_safely(names: Iterable[str]) -> None:
    """Import modules, unless that would start threads: a process with threads must not be forked.

    A child tries it first.
    """
    names = list(names)
    if (pid := os.fork()) == 0:
        code = 1
        try:
            _import_all(names)
            code = 1 if fork_problems() else 0
        finally:
            os._exit(code)
    if os.waitpid(pid, 0)[1] == 0:
        _import_all(names)


def _import_all(names: Iterable[str]) -> None:
    for each in names:
        with contextlib.suppress(Exception):  # a rank that needs it will see the error
            importlib.import_module(each)


def _is_of_library(name: str) -> bool:
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    is_named = getattr(getattr(module, "__spec__", None), "name", None) == name
    return bool(is_named and file and is_library(file) and "pytest" not in name)
