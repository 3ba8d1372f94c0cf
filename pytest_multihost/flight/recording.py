"""What torch's flight recorder has dumped of one rank.

The format is torch's (FlightRecorder.hpp), versions 2.0 to 2.10. Fields that older versions lack
have defaults. Numbers in `pg_status` are texts in JSON.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_multihost.model.json_values import Json, JsonError, from_json, parse_json
from pytest_multihost.model.stack import Frame

KNOWN_VERSION = (2, 10)
"""The newest version of the format that this was written for."""

_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)

_HOST_BACKENDS = frozenset({"gloo", "mpi", "ucc"})
"""Backends whose operations the processor performs, each as soon as it is launched. On a device
they are queued: one that is launched begins when those before it have ended."""


@dataclass(frozen=True, slots=True)
class _Frame:
    name: str
    filename: str
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One operation that a rank has launched, with torch's names.

    Attributes:
        record_id: Its place in the order of all operations of the rank.
        process_group: The group's name, which no other group has, and its description.
        collective_seq_id: Which collective of the group; of a transfer, the last one before it.
        p2p_seq_id: Which transfer of this rank in the group; 0 for a collective.
        op_id: Which operation of the group, parts of coalesced ones counted singly.
        profiling_name: ``nccl:all_reduce``, ``gloo:send 0->1`` with ranks within the group.
        retired: Whether torch has done with it, be it after its end or after a failure.
        state: ``completed`` if its end was seen. The processor's backends do not tell.
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
        """The backend that performs it: ``nccl``, ``gloo``."""
        return self.profiling_name.partition(":")[0]

    @property
    def name(self) -> str:
        """Its name: ``all_reduce``, ``send``."""
        return self.profiling_name.rpartition(":")[2].partition(" ")[0].lstrip("_")

    @property
    def is_on_host(self) -> bool:
        """Whether the processor performs it, and not a device."""
        return self.backend in _HOST_BACKENDS

    @property
    def ends(self) -> tuple[int, int] | None:
        """Of a send or receive, sender and receiver as ranks of the group."""
        found = _ENDS.search(self.profiling_name)
        if found is None:
            return None
        first, arrow, second = int(found[1]), found[2], int(found[3])
        return (first, second) if arrow == "->" else (second, first)

    @property
    def detail(self) -> str:
        """What it was launched with: ``Float[4,2]``."""
        shapes = [*zip(self.input_dtypes, _sizes(self.input_sizes), strict=False)]
        return " ".join(f"{dtype}[{','.join(map(str, sizes))}]" for dtype, sizes in shapes)

    @property
    def stack(self) -> tuple[Frame, ...]:
        """Whence it was launched, innermost first; empty if the dump has no stacks."""
        try:  # only now: dumps have millions of frames
            frames: tuple[_Frame, ...] = from_json(tuple[_Frame, ...], self.frames)
        except JsonError:
            return ()
        return tuple(Frame(each.filename, each.line, each.name) for each in frames)


_ENDS = re.compile(r" (\d{1,7})(->|<-)(\d{1,7})$", re.ASCII)


def _sizes(value: Json) -> Sequence[Sequence[Json]]:
    is_list = isinstance(value, list | tuple)
    shapes = value if is_list and isinstance(value, Sequence) else ()
    return [each if isinstance(each, list | tuple) else () for each in shapes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a rank knows of a group as a whole: its last operations, of whatever kind they were."""

    last_enqueued_collective: int | str = -1
    last_completed_collective: int | str = -1

    @property
    def launched(self) -> int:
        """The number of the last one launched; -1 if unknown."""
        return _number(self.last_enqueued_collective)

    @property
    def completed(self) -> int:
        """The number of the last one whose end was seen; -1 if none was."""
        return _number(self.last_completed_collective)


def _number(value: int | str) -> int:
    try:
        return int(value)
    except ValueError:
        return -1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Group:
    name: str = ""
    desc: str = ""
    ranks: str | tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Content:
    """The content of a dump; `comm_lib_version` was `nccl_version` up to 2.9."""

    version: str
    pg_config: Mapping[str, _Group] = field(default_factory=dict)
    pg_status: Mapping[str, Counts] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The dump of one rank.

    Attributes:
        rank: The rank, which only the file's name tells.
        version: Of the format.
        members: Of each of its groups, by name, the ranks, in the group's order. gloo's dumps lack
            them (torch 2.13).
        titles: Of each of its groups, by name, what the program calls it; may be empty.
        counts: Of each of its groups, by name, what it knows as a whole. None for a group without.
        has_all_counts: Whether a group that is not in `counts` was never used.
        entries: The last operations that it has launched, in order.
        dumped_s: When the file was written, on the wall clock; None if unknown.
    """

    rank: int
    version: str
    members: Mapping[str, tuple[int, ...]]
    titles: Mapping[str, str]
    counts: Mapping[str, Counts]
    has_all_counts: bool
    entries: tuple[Entry, ...]
    dumped_s: float | None = None

    @property
    def is_from_start(self) -> bool:
        """Whether no operation was overwritten, or left out because it had ended."""
        numbers = [each.record_id for each in self.entries]
        return numbers == list(range(len(numbers)))

    @property
    def last_s(self) -> float | None:
        """When it last launched an operation or saw one end, on the wall clock, if known."""
        times = [max(e.time_created_ns, e.time_discovered_completed_ns or 0) for e in self.entries]
        return max(times) / 1e9 if times else None


def recording(rank: int, data: Json, *, dumped_s: float | None = None) -> Recording:
    """Return a dump of a rank.

    Args:
        rank: The rank.
        data: What its file holds.
        dumped_s: When the file was written, on the wall clock.

    Raises:
        JsonError: It is not the content of a dump.
    """
    content = from_json(_Content, data)
    version = _VERSION.fullmatch(content.version)
    if version is None or int(version[1]) != KNOWN_VERSION[0]:
        raise JsonError(f"version: format {content.version[:20]!r} is not known")
    entries = tuple(sorted(content.entries, key=lambda each: each.record_id))
    names = {each.pg_id: each.process_group[0] for each in entries}
    counts, has_all = _named_counts(content, names)
    told = {name: _members(each.ranks) for name, each in content.pg_config.items()}
    members = {name: each for name, each in told.items() if rank in each and name}
    return Recording(
        rank=rank,
        version=content.version,
        members=members,
        titles={
            **{each.process_group[0]: _title(each.process_group[1]) for each in entries},
            **{name: _title(content.pg_config[name].desc) for name in members},
        },
        counts=counts,
        has_all_counts=has_all,
        entries=entries,
        dumped_s=dumped_s,
    )


def _title(description: str) -> str:
    return "" if description in ("undefined", "default_pg") else description


def _members(ranks: str | tuple[int, ...]) -> tuple[int, ...]:
    found: tuple[int, ...] = from_json(
        tuple[int, ...], parse_json(ranks) if isinstance(ranks, str) else ranks
    )
    return found


def _named_counts(content: _Content, names: Mapping[int, str]) -> tuple[dict[str, Counts], bool]:
    """Return the counts by the groups' names, and whether there are some for every used group.

    They have a number that only this rank gives to the group. Entries tie it to the name. Groups
    are numbered in the order in which they are made, and so are their names: where there are as
    many of both, and the ties agree, the rest follows.
    """
    status = {int(each): counts for each, counts in content.pg_status.items() if each.isdecimal()}
    known = {names[each]: counts for each, counts in status.items() if each in names}
    if not status.keys() - names:
        return known, bool(status)
    made = sorted(content.pg_config, key=lambda each: int(each) if each.isdecimal() else -1)
    pairs = dict(zip(sorted(status), made, strict=False))
    agrees = all(pairs.get(number, name) == name for number, name in names.items())
    if len(made) != len(status) or not agrees or not all(each.isdecimal() for each in made):
        return known, False
    return {pairs[each]: counts for each, counts in status.items()}, True
