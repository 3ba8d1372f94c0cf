"""The names of ranks: their coordinates in the first device mesh of the program."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pytest_multihost.core import files
from pytest_multihost.core.model.rank_names import rank_numbers

_NAME = "service-simulated-mesh.json"

_MOST_NAMED = 4


@dataclass(frozen=True, slots=True)
class Mesh:
    """A device mesh of all ranks.

    Attributes:
        names: Of its dimensions, the outermost first.
        ranks: The ranks in the order of their coordinates.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    ranks: tuple[int, ...]

    @property
    def text(self) -> str:
        """Its text: ``pp=4, dp=128, tp=2``."""
        return ", ".join(f"{n}={s}" for n, s in zip(self.names, self.shape, strict=True))

    def coordinates(self) -> dict[int, tuple[int, ...]]:
        """Return the coordinates of each rank."""
        found = {}
        for place, rank in enumerate(self.ranks):
            own, rest = [], place
            for size in reversed(self.shape):
                own.append(rest % size)
                rest //= size
            found[rank] = tuple(reversed(own))
        return found

    def name_of(self, ranks: Collection[int]) -> str:
        """Return the coordinates that exactly these ranks have; empty if none describe them.

        For example "pp=1,2", or "pp=3 dp=0".
        """
        coordinates = self.coordinates()
        if not ranks or not coordinates.keys() >= set(ranks):
            return ""
        values = [{coordinates[each][i] for each in ranks} for i in range(len(self.shape))]
        count = 1
        for each in values:
            count *= len(each)
        if count != len({*ranks}):
            return ""
        parts = [
            f"{name}={rank_numbers(found)}"
            for name, size, found in zip(self.names, self.shape, values, strict=True)
            if len(found) < size
        ]
        return " ".join(parts)


def write_mesh(folder: Path, mesh: Mesh) -> None:
    """Write the mesh of a world."""
    files.write(folder / _NAME, json.dumps(asdict(mesh)))


def read_mesh(folder: Path) -> Mesh | None:
    """Return the mesh of a world; None if it has made none."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        found = json.loads((folder / _NAME).read_text())
        return Mesh(tuple(found["names"]), tuple(found["shape"]), tuple(found["ranks"]))
    return None


def named_sets(mesh: Mesh, sets: Sequence[Collection[int]]) -> Iterator[str]:
    """Yield the names of sets of ranks, each once: "ranks 256-767: pp=1,2"."""
    seen: dict[frozenset[int], None] = {}
    for each in sets:
        seen.setdefault(frozenset(each))
    named = [(each, name) for each in seen if len(each) > 1 and (name := mesh.name_of(each))]
    for each, name in named[:_MOST_NAMED]:
        yield f"{name}: {len(each)} ranks, {rank_numbers(each)}"
