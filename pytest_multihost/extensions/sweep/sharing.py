"""Finds the files that several ranks use, and the calls on them whose order matters."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from pytest_multihost.core.model.recorded_point import ASKS, RecordedPoint
from pytest_multihost.extensions.sweep.classes import Records, is_of_the_test
from pytest_multihost.extensions.sweep.epochs import Epoch, Epochs, may_be_concurrent

_NUMBER = re.compile(r"[0-9]+")

_TREE = frozenset({"link", "mkdir", "rename", "rmdir", "unlink"})
"""Calls that make, move or remove a name and everything below it; `open` may make a file."""

LOOKS = frozenset({"listdir", "open", "stat"})
"""Calls whose result depends on whether other ranks have made the file."""

_IN_OPEN_FILES = frozenset({"fsync", "read", "write"})
"""Calls that find the file even if its name has changed since it was opened."""


def makes_name(passed: RecordedPoint) -> bool:
    """Return whether a call makes, empties, moves or removes a file or folder."""
    return passed.point.call in _TREE or passed.makes


def changes(passed: RecordedPoint) -> bool:
    """Return whether other ranks may see the effect of a call."""
    return makes_name(passed) or passed.point.call == "write"


def is_written_before(points: Records, passed: RecordedPoint) -> bool:
    """Return whether the rank had made a file in an earlier span when it made it again.

    One save may make its file twice, in Python and then in C++. So only a file that was there
    before the last operation counts as saved before. Nor does a file count if the rank has made
    another one in between whose name differs only in its numbers: then that one is the good one.
    """
    own = points.get(passed.rank, ())
    before = own[: own.index(passed) + 1] if passed in own else ()
    made = [each for each in before if each.makes and each.point.point == passed.point.point]
    spans = [each.span for each in made if each.point.name == passed.point.name]
    if not spans or spans[0] == spans[-1]:
        return False
    last = max(each for each in spans if each < spans[-1])
    shape = _NUMBER.sub("#", passed.point.name)
    slots = (each for each in made if _NUMBER.sub("#", each.point.name) == shape)
    return not any(last < each.span < spans[-1] for each in slots)


@dataclass(frozen=True, slots=True)
class Access:
    """A rank's call on a file in an epoch.

    Attributes:
        call: The call; ``ask`` for a `stat` that asks only whether the file exists.
        makes: Whether the call makes, empties, moves or removes the file.
    """

    rank: int
    call: str
    makes: bool
    epoch: Epoch

    @classmethod
    def of(cls, passed: RecordedPoint, epochs: Epochs) -> Access:
        """Return the access at a point."""
        call, epoch = passed.point.call, epochs.get(passed)
        if call == "stat" and _is_asked(passed):
            call = "ask"
        return cls(passed.rank, call, makes_name(passed), epoch)


def _is_asked(passed: RecordedPoint) -> bool:
    return passed.error_path.asks in ASKS


@dataclass(frozen=True, slots=True)
class Sharing:
    """The files and folders that ranks use.

    Attributes:
        inside: For each folder, the accesses to its direct entries.
        below: For each folder, the accesses to entries at any depth.
        made: The folders that ranks make, each as rank, line and path.
        compared: For each file whose time a rank may compare with that of others, the changes of
            all these files.
    """

    epochs: Epochs = field(default_factory=dict)
    at: Mapping[str, set[Access]] = field(default_factory=dict)
    inside: Mapping[str, set[Access]] = field(default_factory=dict)
    below: Mapping[str, set[Access]] = field(default_factory=dict)
    made: frozenset[tuple[int, object, str]] = frozenset()
    compared: Mapping[str, Collection[Access]] = field(default_factory=dict)

    def is_raced(self, passed: RecordedPoint) -> bool:
        """Return whether the order of a call and another rank's call is open and matters.

        The order matters if one call changes the result of the other.
        """
        if follows_mkdir(passed, self.made):
            return False
        epoch = self.epochs.get(passed)
        return any(may_be_concurrent(epoch, each.epoch) for each in self._conflicts(passed))

    def is_seen(self, passed: RecordedPoint) -> bool:
        """Return whether a call and some call of another rank affect each other, in any epoch."""
        return any(True for _ in self._conflicts(passed))

    def _conflicts(self, passed: RecordedPoint) -> Iterator[Access]:
        """Yield other ranks' accesses that change a call's result, or whose result it changes."""
        mine = Access.of(passed, self.epochs)
        for path in _paths(passed):
            near = (
                (path, path, self.at.get(path, ())),
                (path, "", self.inside.get(path, ()) if mine.call == "listdir" else ()),
                (path, "", self.below.get(path, ()) if mine.call in _TREE else ()),
                *((folder, folder, self.at.get(folder, ())) for folder in _above(path)),
            )
            for folder, other, found in near:
                for each in found:
                    if each.rank != mine.rank and self._matters(mine, path, each, other, folder):
                        yield each
            for each in self.compared.get(path, ()) if changes(passed) else ():
                if each.rank != mine.rank:
                    yield each

    def _matters(self, mine: Access, path: str, other: Access, at: str, folder: str) -> bool:
        """Return whether the order of two calls matters.

        Args:
            path: The path of `mine`.
            other: An access to the same path, or to a path above or below it.
            at: The path of `other`; empty if it is below.
            folder: The upper one of both paths.
        """
        if path == at:
            return _clash(mine, other)
        upper, lower = (mine, other) if folder == path else (other, mine)
        if upper.call == "listdir":
            return lower.makes and (at == "" or _folder(path) == folder)
        if upper.call not in _TREE or self._is_made_anyway(upper, lower, folder):
            return False
        return lower.call not in _IN_OPEN_FILES or (
            upper.call == "rename" and lower.call == "write"
        )

    def _is_made_anyway(self, upper: Access, lower: Access, folder: str) -> bool:
        """Return whether the upper call makes a folder that the lower call's rank also makes."""
        makers = {each.rank for each in self.at.get(folder, ()) if each.call == "mkdir"}
        return upper.call == "mkdir" and lower.rank in makers

    def made_by_others(self, passed: RecordedPoint) -> Iterator[str]:
        """Yield globs for the files that a call looks for and only other ranks make.

        For a listed folder these are all its entries, and the last entry made. Hiding the first
        shows an empty folder, hiding the second a part of it.
        """
        path = passed.point.name
        if passed.point.call == "listdir":
            names = {path, "*"} if path == _SHARED else {path}
            inside = [each for each in self.at if _folder(each) in names]
            made = [each for each in inside if self._is_made_by_others(each, passed.rank)]
            if len(made) > 1:
                yield f"{path}/*"
            yield from made[-1:]
        elif passed.point.call in LOOKS and self._is_made_by_others(path, passed.rank):
            yield path

    def stays(self, path: str) -> bool:
        """Return whether no rank moves or removes a file that was made."""
        calls = {each.call for each in self.at.get(path, ())}
        is_made = any(each.makes for each in self.at.get(path, ()))
        return is_made and calls.isdisjoint({"rename", "unlink"})

    def has_one_order(self, folder: str) -> bool:
        """Return whether the test made a folder and it has fewer than two entries."""
        is_made = any(each.call == "mkdir" for each in self.at.get(folder, ()))
        return is_made and sum(_folder(each) == folder for each in self.at) < _TWO

    def _is_made_by_others(self, path: str, rank: int) -> bool:
        changing = {
            each.rank for each in self.at.get(path, ()) if each.makes or each.call == "write"
        }
        return bool(changing) and rank not in changing


_TWO = 2

_SHARED = "*/shared"
"""The name of the folder that ranks share; files in it are named without it, as "*/file"."""


def _clash(one: Access, other: Access) -> bool:
    """Return whether the order of two calls on one file matters.

    The content of a file matters to calls that read or write it, or ask for more than its name. An
    `open` for reading does not depend on the content.
    """
    for each, there in ((one, other), (other, one)):
        if each.call == "write" and there.call in ("read", "stat", "write", "rename"):
            return True
        if each.makes and (there.call not in _IN_OPEN_FILES or each.call == "open"):
            return True
    return False


def follows_mkdir(passed: RecordedPoint, made: Collection[tuple[int, object, str]]) -> bool:
    """Return whether a rank asks about a folder only because it could not make it.

    A rank that makes a folder that may exist, and is not the first, asks whether it is a folder.
    """
    return passed.point.call == "stat" and _place(passed) in made


def folders_made(points: Records) -> frozenset[tuple[int, object, str]]:
    """Return the folders that ranks make, each as rank, line and path."""
    return frozenset(
        _place(each) for passed in points.values() for each in passed if each.point.call == "mkdir"
    )


def _place(passed: RecordedPoint) -> tuple[int, object, str]:
    where = passed.where
    return passed.rank, (where.file, where.line) if where else None, passed.point.name


def sharing_of(points: Records, epochs: Epochs) -> Sharing:
    """Return the accesses of all ranks to files and folders of the test."""
    at: dict[str, set[Access]] = {}
    inside: dict[str, set[Access]] = {}
    below: dict[str, set[Access]] = {}
    made = folders_made(points)
    for passed in points.values():
        for each in passed:
            is_file = each.point.point == "io" and is_of_the_test(each)
            if not is_file or follows_mkdir(each, made):
                continue
            access = Access.of(each, epochs)
            for path in _paths(each):
                if access in at.setdefault(path, set()):
                    continue
                at[path].add(access)
                inside.setdefault(_folder(path), set()).add(access)
                for folder in _above(path):
                    below.setdefault(folder, set()).add(access)
    return Sharing(epochs, at, inside, below, made, _compared(points, at))


def _compared(
    points: Records, at: Mapping[str, Collection[Access]]
) -> Mapping[str, Collection[Access]]:
    """Return the changes of files whose times a rank may compare, for each of these files.

    A rank may compare its facts about several files at one line, for example to find the newest.
    """
    asked: dict[tuple[int, str, int], set[str]] = {}
    for rank, passed in points.items():
        for each in passed:
            if each.point.call == "stat" and each.where is not None and not _is_asked(each):
                asked.setdefault((rank, each.where.file, each.where.line), set()).add(
                    each.point.name
                )
    found: dict[str, set[Access]] = {}
    for names in asked.values():
        if len(names) < _TWO:
            continue
        changes_of = {e for name in names for e in at.get(name, ()) if e.makes or e.call == "write"}
        for name in names:
            found.setdefault(name, set()).update(changes_of)
    return found


def _paths(passed: RecordedPoint) -> tuple[str, ...]:
    return (passed.point.name, passed.other) if passed.other else (passed.point.name,)


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)


def _above(path: str) -> list[str]:
    return [str(each) for each in PurePosixPath(path).parents if str(each) not in ("/", ".", "*")]
