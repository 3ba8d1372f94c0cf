"""Reads dumps of torch's flight recorder: one file, or a folder with one file per rank.

The format is torch's (FlightRecorder.hpp), versions 2.0 to 2.10. Fields that older versions lack
have defaults. In JSON dumps, the numbers in `pg_status` are strings.

A dump is a pickle or JSON, and its file name has any prefix before the rank's number. It may be
foreign and hold anything: `plain_pickle` and `parse_foreign` bound their input, and this
module bounds texts and numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

from pytest_multihost.core.model.errors import MultihostError
from pytest_multihost.core.model.json_values import (
    Json,
    JsonError,
    from_json,
    parse_foreign,
    parse_json,
)
from pytest_multihost.core.model.operation import group_by_value
from pytest_multihost.core.model.printable import printable
from pytest_multihost.core.model.rank_names import rank_numbers
from pytest_multihost.core.model.regular_file import read_regular
from pytest_multihost.core.model.setting_values import MAX_RANKS
from pytest_multihost.core.model.stack import Frame
from pytest_multihost.extensions.flight.plain_pickle import MAX_DEPTH, unpickled

KNOWN_VERSION = (2, 10)
"""The newest version of the format that this was written for."""

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)

_GROUPS = 1024
"""Size of a cache of groups: a world has few large ones."""

_MAX_TEXT, _MAX_TENSORS, _MAX_SIZES, _MAX_FRAMES = 4096, 1000, 16, 1000
"""Maximum length of a text, and numbers of tensors, of their sizes and of frames that are used."""

_MAX_DIMENSIONS = 64
"""How many dimensions a tensor of torch has at most."""

_MAX_NUMBER = 1 << 63
_MAX_PROBLEMS, _MAX_WHY = 4, 300
_MAX_ENTRIES = 500_000
"""Maximum number of operations in all dumps together: they take 1.5 kB each."""

_LEAST_ENTRIES = 20

_HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
"""Backends whose operations run on the CPU, each as soon as it is launched. A device queues
operations: each begins when those before it have ended."""


def _frame(value: Json) -> Frame | None:
    """Return a frame of a dump; None if the value is none."""
    if not isinstance(value, Mapping):
        return None
    name, file, line = value.get("name"), value.get("filename"), value.get("line")
    if not (isinstance(name, str) and isinstance(file, str) and type(line) is int):
        return None
    return _one_frame(file[:_MAX_TEXT], line, name[:_MAX_TEXT])


_one_frame = lru_cache(maxsize=1 << 14)(Frame)
"""Equal frames are one object."""


@lru_cache(maxsize=1 << 14)
def _name(profiling_name: str) -> str:
    return profiling_name.rpartition(":")[2].partition(" ")[0].lstrip("_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operation that a rank has launched, with torch's field names.

    Attributes:
        record_id: Position in the order of all operations of the rank.
        process_group: The group's unique name, and its description.
        collective_seq_id: Number of the collective in the group; for a transfer, the number of the
            last collective before it.
        p2p_seq_id: Number of the transfer among this rank's in the group; 0 for a collective.
        op_id: Number of the operation in the group; parts of coalesced ones count singly.
        profiling_name: ``nccl:all_reduce``, ``gloo:send 0->1`` with ranks within the group.
        retired: Whether torch no longer tracks it, because it ended or failed.
        state: ``completed`` if its end was seen. CPU backends do not record it.
    """

    record_id: int
    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    pg_id: int = -1
    p2p_seq_id: int = 0
    op_id: int = 0
    time_created_ns: int = 0
    time_discovered_completed_ns: int | None = None
    input_sizes: Json = ()
    output_sizes: Json = ()
    input_dtypes: tuple[str, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    frames: Json = ()

    @property
    def backend(self) -> str:
        """The backend, such as ``nccl`` or ``gloo``."""
        return self.profiling_name.partition(":")[0]

    @property
    def name(self) -> str:
        """The name of the operation, such as ``all_reduce`` or ``send``."""
        return _name(self.profiling_name)

    @property
    def is_on_host(self) -> bool:
        """Whether the CPU performs it, not a device."""
        return self.backend in _HOST_BACKENDS

    @property
    def ends(self) -> tuple[int, int] | None:
        """Sender and receiver of a transfer, as ranks of the group; None for a collective."""
        found = _ENDS.search(self.profiling_name)
        if found is None:
            return None
        first, arrow, second = int(found[1]), found[2], int(found[3])
        return (first, second) if arrow == "->" else (second, first)

    @property
    def input_shapes(self) -> Sequence[Sequence[int]]:
        """The shape of each input."""
        return _shapes(self.input_sizes)

    @property
    def output_shapes(self) -> Sequence[Sequence[int]]:
        """The shape of each output."""
        return _shapes(self.output_sizes)

    @property
    def detail(self) -> str:
        """Types and shapes of the inputs, such as ``Float[4,2]``."""
        shapes = [*zip(self.input_dtypes, _sizes(self.input_sizes), strict=False)][:_MAX_TENSORS]
        return " ".join(
            f"{dtype}[{','.join(str(e) for e in sizes[:_MAX_SIZES] if _is_size(e))}]"
            for dtype, sizes in shapes
        )

    @property
    def stack(self) -> tuple[Frame, ...]:
        """The stack at its launch, innermost first; empty if the dump has no stacks."""
        # Converted only when asked for, because dumps have millions of frames; most are the same.
        frames = self.frames[:_MAX_FRAMES] if isinstance(self.frames, list | tuple) else ()
        found = [*map(_frame, frames)]
        return tuple(each for each in found if each is not None) if None not in found else ()


_ENDS = re.compile(r" (\d{1,7})(->|<-)(\d{1,7})$", re.ASCII)


def _shapes(value: Json) -> Sequence[Sequence[int]]:
    # Python prints no number of more than 4,300 digits, so their product is bounded.
    return [[size for size in each[:_MAX_DIMENSIONS] if _is_size(size)] for each in _sizes(value)]


def _is_size(value: Json) -> TypeGuard[int]:
    """Return whether a value is the size of a dimension."""
    return isinstance(value, int) and 0 <= value < _MAX_NUMBER


def _sizes(value: Json) -> Sequence[Sequence[Json]]:
    is_list = isinstance(value, list | tuple)
    shapes = value if is_list and isinstance(value, Sequence) else ()
    return [each if isinstance(each, list | tuple) else () for each in shapes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A rank's counts of a group: the numbers of its last operations, whatever their kind."""

    last_enqueued_collective: int | str = -1
    last_completed_collective: int | str = -1

    @property
    def launched(self) -> int:
        """The number of the last operation launched; -1 if unknown."""
        return _number(self.last_enqueued_collective)

    @property
    def completed(self) -> int:
        """The number of the last operation whose end was seen; -1 if none was."""
        return _number(self.last_completed_collective)


def _number(value: int | str) -> int:
    return int(value) if isinstance(value, int) or _WHOLE.fullmatch(value) else -1


_WHOLE = re.compile(r"\d{1,18}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class _DumpedGroup:
    name: str = ""
    desc: str = ""
    ranks: str | tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The content of a dump, as far as used; `comm_lib_version` was `nccl_version` up to 2.9."""

    version: str
    pg_config: Mapping[str, _DumpedGroup] = field(default_factory=dict)
    pg_status: Mapping[str, Counts] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The dump of one rank.

    Attributes:
        rank: Taken from the file's name, because the content does not have it.
        members: By name of a group, its ranks in the group's order. gloo's dumps lack them
            (torch 2.13).
        titles: By name of a group, the name that the program gives it; may be empty.
        counts: By name of a group, its counts. A group may have none.
        has_all_counts: Whether a group that is not in `counts` was never used.
        entries: The last operations that the rank has launched, in order.
        dumped_s: When the file was written, on the wall clock; None if unknown.
        has_groups: Whether it lists groups, even those without members, as gloo's do.
    """

    rank: int
    version: tuple[int, int]
    members: Mapping[str, tuple[int, ...]]
    titles: Mapping[str, str]
    counts: Mapping[str, Counts]
    has_all_counts: bool
    entries: tuple[Entry, ...]
    dumped_s: float | None = None
    has_groups: bool = True

    @property
    def is_from_start(self) -> bool:
        """Whether the dump has all operations of the rank, from the first one of each group.

        Others may have been overwritten, left out because they had ended, or made before the
        recorder began.
        """
        numbers = [each.record_id for each in self.entries]
        firsts = {each.process_group[0]: each for each in reversed(self.entries)}
        return (
            numbers == list(range(len(numbers)))
            and all(each.collective_seq_id <= 1 >= each.p2p_seq_id for each in firsts.values())
            and (bool(numbers) or not self.counts)
        )

    @property
    def is_empty(self) -> bool:
        """Whether it has no operations: the rank has launched none, or they are not in its dump."""
        return not (self.entries or self.counts)

    @property
    def is_blank(self) -> bool:
        """Whether it has neither operations nor groups: nothing follows from it."""
        return self.is_empty and not self.has_groups

    @property
    def last_s(self) -> float | None:
        """When the rank last launched an operation or saw one end, on the wall clock, if known."""
        times = [max(e.time_created_ns, e.time_discovered_completed_ns or 0) for e in self.entries]
        return max(times) / 1e9 if times else None


def recording(
    rank: int, data: Json, *, dumped_s: float | None = None, last: int = _MAX_ENTRIES
) -> Recording:
    """Return the dump of a rank.

    Args:
        dumped_s: When the file was written, on the wall clock.
        last: How many of its operations are used at most, the last ones.

    Raises:
        JsonError: The data are not the content of a dump.
    """
    if isinstance(data, dict) and isinstance(data.get("entries"), list | tuple):
        data = {**data, "entries": data["entries"][-last:]}
    content = from_json(_Content, data)
    version = _VERSION.fullmatch(content.version)
    if version is None or int(version[1]) != KNOWN_VERSION[0]:
        raise JsonError(f"version: format {content.version[:20]!r} is not known")
    if problem := next(_problems(content), ""):
        raise JsonError(problem)
    entries = tuple(sorted(content.entries, key=lambda each: each.record_id))
    names = {each.pg_id: each.process_group[0] for each in entries}
    counts, has_all = _named_counts(content, names)
    told = {name: _members(each.ranks) for name, each in content.pg_config.items()}
    members = {name: each for name, each in told.items() if rank in each and name}
    return Recording(
        rank=rank,
        version=(int(version[1]), int(version[2])),
        members=members,
        titles={
            **{each.process_group[0]: _title(each.process_group[1]) for each in entries},
            **{name: _title(content.pg_config[name].desc) for name in members},
        },
        counts=counts,
        has_all_counts=has_all,
        entries=entries,
        dumped_s=dumped_s,
        has_groups=bool(content.pg_config),
    )


def _problems(content: _Content) -> Iterator[str]:
    """Yield why a content cannot be that of a dump: texts or times that no recorder writes."""
    for each in content.entries:
        texts = (each.profiling_name, *each.process_group, each.state)
        if max(map(len, texts)) > _MAX_TEXT:
            yield f"entries: a text has more than {_MAX_TEXT} characters"
        if max(map(len, (*each.input_dtypes, *each.output_dtypes)), default=0) > _MAX_TEXT:
            yield f"entries: a text has more than {_MAX_TEXT} characters"
        times = (each.time_created_ns, each.time_discovered_completed_ns or 0)
        if not all(0 <= one < _MAX_NUMBER for one in times):
            yield "entries: a time is none of a clock"
    for name, group in content.pg_config.items():
        if max(len(name), len(group.desc)) > _MAX_TEXT:
            yield f"pg_config: a text has more than {_MAX_TEXT} characters"


def _title(description: str) -> str:
    return "" if description in ("undefined", "default_pg") else description


@lru_cache(maxsize=_GROUPS)  # all ranks of a group list its members with the same text
def _members(ranks: str | tuple[int, ...]) -> tuple[int, ...]:
    found: tuple[int, ...] = from_json(
        tuple[int, ...], parse_json(ranks) if isinstance(ranks, str) else ranks
    )
    if not all(0 <= each < MAX_RANKS for each in found):
        raise JsonError(f"pg_config: a rank is not between 0 and {MAX_RANKS - 1}")
    return found


def _named_counts(content: _Content, names: Mapping[int, str]) -> tuple[dict[str, Counts], bool]:
    """Return the counts by the groups' names, and whether every used group has some.

    A dump keys the counts by a group number that is local to the rank. Entries have both the number
    and the name. Numbers and names both follow the order in which groups are made. If there are as
    many numbers as names, and the entries agree with that order, it also gives the other pairs.
    """
    status = {int(e): counts for e, counts in content.pg_status.items() if _WHOLE.fullmatch(e)}
    known = {names[each]: counts for each, counts in status.items() if each in names}
    if not status.keys() - names:
        return known, bool(status)
    made = sorted(content.pg_config, key=_number)
    pairs = dict(zip(sorted(status), made, strict=False))
    agrees = all(pairs.get(number, name) == name for number, name in names.items())
    if len(made) != len(status) or not agrees or not all(map(_WHOLE.fullmatch, made)):
        return known, False
    return {pairs[each]: counts for each, counts in status.items()}, True


_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_RANK = re.compile(r"rank[_-]?(\d{1,7})", re.ASCII | re.IGNORECASE)
_NO_DUMPS = frozenset({".log", ".txt", ".md", ".html", ".py", ".zip", ".gz", ".out", ".err"})
_MAX_BYTES = 1 << 25
_MAX_BLANKS = 100
_REMEDY = (
    "Name the folder that TORCH_FR_DUMP_TEMP_FILE names, with one file of each rank:"
    " docs/explain.md says how dumps are made."
)


@dataclass(frozen=True, slots=True)
class DumpFolder:
    """The dumps of one world.

    Attributes:
        recordings: The usable dumps, in order of rank.
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
        prefix: The beginning of the files' names; needed only if there are files of several kinds.

    Raises:
        MultihostError: There is no usable dump, or it is not clear which files are meant.
    """
    files = _of_one_kind(directory, _named(directory), prefix)
    last = max(_LEAST_ENTRIES, _MAX_ENTRIES // len(files))
    found: list[Recording] = []
    problems: list[str] = []
    for rank, path in sorted(files.items()):
        try:
            data = _content(path)
            found.append(recording(rank, data, dumped_s=path.stat().st_mtime, last=last))
        except (JsonError, OSError) as error:
            told = error.strerror if isinstance(error, OSError) else None
            why = printable((told or str(error))[:_MAX_WHY])
            problems.append(f"{printable(path.name)} cannot be used: {why}")
    if any(len(each.entries) == last for each in found):
        problems.append(f"only the last {last} operations of each rank were read, to save memory")
    if not found:
        raise MultihostError(
            f"there is no dump of a flight recorder in {directory} that can be used",
            seen="\n".join(problems[:3]),
            remedy=_REMEDY,
        )
    if (more := len(problems) - _MAX_PROBLEMS) > 0:
        problems[_MAX_PROBLEMS:] = [f"and {more} more"]
    return DumpFolder(tuple(found), tuple(problems))


def _named(directory: Path) -> list[tuple[str, int, Path]]:
    """Return the files whose name has a number, as (rest of the name, number, path)."""
    found = []
    for path in sorted(directory.iterdir()):
        if path.suffix in _NO_DUMPS or path.name.startswith(".") or path.is_dir():
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
    """Return the files of the ranks: the largest set of names that differ only in the number."""
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


def _content(path: Path) -> Json:
    data = read_regular(path, max_bytes=_MAX_BYTES)
    if not data:
        raise JsonError("it is empty: its rank was ended while it wrote, or before")
    is_json = data[:_MAX_BLANKS].lstrip()[:1] == b"{"
    return parse_foreign(data, max_depth=MAX_DEPTH) if is_json else unpickled(data)
