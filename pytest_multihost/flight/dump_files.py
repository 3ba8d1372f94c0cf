"""A folder of dumps: which file is which rank's, and what is in it.

Dumps are pickles or JSON, and their files have any prefix before the number of the rank. A pickle
can name functions to call when it is read. A flight recorder's holds only dicts, lists, texts and
numbers, so every name is refused.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.flight.recording import Recording, recording
from pytest_multihost.model.errors import MultihostError
from pytest_multihost.model.json_values import Json, JsonError, parse_json
from pytest_multihost.model.operation import group_by_value, rank_numbers
from pytest_multihost.model.spec import MAX_RANKS

_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_RANK = re.compile(r"rank[_-]?(\d{1,7})", re.ASCII | re.IGNORECASE)
_NO_DUMPS = frozenset({".log", ".txt", ".md", ".html", ".py", ".zip", ".gz", ".out", ".err"})
_MAX_BYTES = 1 << 29
_MAX_DEPTH = 12
_REMEDY = (
    "Name the folder that TORCH_FR_DUMP_TEMP_FILE names, with one file of each rank:"
    " docs/dumps.md says how dumps are made."
)


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """The dumps of one world.

    Attributes:
        recordings: Of each rank that left a usable dump, in order.
        problems: Why files could not be used, one sentence each.
    """

    recordings: tuple[Recording, ...]
    problems: tuple[str, ...] = ()


def is_dump_folder(directory: Path) -> bool:
    """Return whether a folder may hold dumps of flight recorders, by the names of its files."""
    return (
        directory.is_dir() and not (directory / "facts.json").exists() and bool(_named(directory))
    )


def read_dumps(directory: Path, *, prefix: str | None = None) -> DumpFolder:
    """Return the dumps that are in a folder.

    Args:
        directory: The folder.
        prefix: What the files' names begin with; needed only if files of several kinds are there.

    Raises:
        MultihostError: There is none, or it is not clear which files are meant.
    """
    files = _of_one_kind(directory, _named(directory), prefix)
    found: list[Recording] = []
    problems: list[str] = []
    for rank, path in sorted(files.items()):
        try:
            data = _content(path)
            found.append(recording(rank, data, dumped_s=path.stat().st_mtime))
        except (JsonError, OSError) as error:
            problems.append(f"{path.name} cannot be used: {error}")
    if not found:
        raise MultihostError(
            f"there is no dump of a flight recorder in {directory} that can be used",
            seen="\n".join(problems[:3]),
            remedy=_REMEDY,
        )
    return DumpFolder(tuple(found), tuple(problems))


def _named(directory: Path) -> list[tuple[str, int, Path]]:
    """Return the files with a number in their names: the rest of the name, the number, the path."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.suffix in _NO_DUMPS or path.name.startswith(".") or not path.is_file():
            continue
        stem = path.name.removesuffix(".json").removesuffix(".pickle").removesuffix(".pkl")
        numbers = [*(_RANK.finditer(stem))] or [*_NUMBER.finditer(stem)]
        if numbers:
            last = numbers[-1]
            at, end = last.span(last.lastindex or 0)
            found.append((f"{stem[:at]}*{path.name[end:]}", int(stem[at:end]), path))
    return found


def _of_one_kind(
    directory: Path, named: Sequence[tuple[str, int, Path]], prefix: str | None
) -> Mapping[int, Path]:
    """Return the files of the ranks: those whose names differ in nothing but the number."""
    kinds = group_by_value(
        (kind, (rank, path))
        for kind, rank, path in named
        if rank < MAX_RANKS and (prefix is None or kind.startswith(prefix))
    )
    ordered = sorted(kinds.items(), key=lambda each: -len(each[1]))
    if not ordered:
        raise MultihostError(
            f"there is no dump of a flight recorder in {directory}",
            seen="No file's name ends in the number of a rank, as nccl_trace_rank_0 does.",
            remedy=_REMEDY,
        )
    if len(ordered) > 1 and len(ordered[1][1]) == len(ordered[0][1]):
        seen = [f"{kind}: ranks {rank_numbers(r for r, _ in each)}" for kind, each in ordered[:4]]
        raise MultihostError(
            f"{directory} holds files of several kinds",
            seen="\n".join(seen),
            remedy="Say which with --prefix, the text before the number of the rank.",
        )
    return dict(ordered[0][1])


# One file


class _Unpickler(pickle.Unpickler):
    """Reads a pickle of plain values. To derive is the only way to refuse names."""

    def find_class(self, module: str, name: str) -> object:
        """Refuse to find anything: what a pickle names may be called."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a dump names nothing")


def _content(path: Path) -> Json:
    if path.stat().st_size > _MAX_BYTES:
        raise JsonError(f"it has more than {_MAX_BYTES >> 20} MiB")
    data = path.read_bytes()
    if not data:
        raise JsonError("it is empty: its rank was ended while it wrote, or before")
    return parse_json(data) if data.lstrip()[:1] == b"{" else unpickled(data)


def unpickled(data: bytes) -> Json:
    """Return the value of a pickle that holds only dicts, lists, texts and numbers.

    Raises:
        JsonError: It is cut off, or holds or does anything else.
    """
    try:
        value: object = _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise JsonError(f"not a whole pickle of plain values: {error}"[:200]) from error
    return _plain(value, _MAX_DEPTH, {})


def _plain(value: object, depth: int, known: dict[int, Json]) -> Json:
    """Return a value as JSON has it; what is in several places is converted once."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if id(value) in known:
        return known[id(value)]
    found: Json
    if depth > 0 and isinstance(value, list | tuple):
        found = [_plain(each, depth - 1, known) for each in value]
    elif depth > 0 and isinstance(value, dict):
        found = {str(key): _plain(each, depth - 1, known) for key, each in value.items()}
    else:
        raise JsonError(f"it holds a {type(value).__name__}, or is nested too deep")
    known[id(value)] = found
    return found
