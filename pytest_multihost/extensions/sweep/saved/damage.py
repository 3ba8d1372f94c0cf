"""Finds damage in the saved files of a disturbed run, in comparison with the undisturbed run.

Only files in order there can be wrong here. Files whose names say that they are temporary never
count. A file is *vouched for* if another one says that it is good: the mark of a complete
checkpoint in its folder, or a file such as ``latest`` that names it. So is a folder of weights to
which a rank gave its last name, or for which it removed older ones.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_multihost.extensions.sweep.saved.acts import NO_ACTS, Acts, has_name
from pytest_multihost.extensions.sweep.saved.look import SavedFiles

FORMAT_MARKS = frozenset({".metadata", "_CHECKPOINT_METADATA", "commit_success.txt", "_SUCCESS"})
"""Names of files by which known formats say that all of their folder is complete."""

MARKS = FORMAT_MARKS | {
    *(".complete", "complete", "COMPLETE", "_COMMITTED", "COMMIT", "commit", "committed"),
    *("done", "DONE", ".done", "SUCCESS"),
}
"""These, and names that programs choose. A program's own mark may not be about every file beside
it, but it is about the other parts of a thing with parts there."""

_TEMPORARY = re.compile(
    r"^\.|(^|[-_.])(tmp|temp|log|logs|incomplete)([-_.]|$)|\.(part|partial|lock|bak|old)$|~$",
    re.IGNORECASE,
)
_DRAWN = re.compile(r"[0-9a-f]{12,}|\d{5,}")
"""Parts of names that differ in each run: hashes, times, numbers of processes."""

_WEIGHTS = (".bin", ".ckpt", ".distcp", ".pt", ".pth")
"""Endings of files with weights whose format their first bytes do not show."""

_NUMBERS = re.compile(r"\d+")
_MOST_LACKING = 3


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage of a file or folder.

    Attributes:
        path: Relative to the folder that the ranks share.
        what: The kind of damage, as a clause.
        is_vouched: Whether another file says that it is good.
        is_absence: Whether there is nothing to load, where the undisturbed run has left weights.
    """

    path: str
    what: str
    is_vouched: bool = False
    is_absence: bool = False

    def __str__(self) -> str:
        """Return it in one sentence."""
        return f"{self.path} {self.what}"


def find_damage(usual: SavedFiles, now: SavedFiles, acts: Acts = NO_ACTS) -> tuple[Damage, ...]:
    """Return the damage in `now` that `usual` lacks, vouched files first.

    Args:
        acts: The calls of the undisturbed run on these files.
    """
    if not (usual.is_all and now.is_all):
        return ()
    vouching = {**_marked(usual, now), **_named(usual, now)}
    found = {each.path: each for each in _pointers(usual, now)}
    for folder, voucher in vouching.items():
        for damage in _lacking(usual, now, folder, voucher):
            found.setdefault(damage.path, damage)
    for damage in _published(usual, now, acts):
        found.setdefault(damage.path, damage)
    for path, each in now.by_path.items():
        before = usual.by_path.get(path)
        if each.problem and before is not None and not before.problem and not _is_temporary(path):
            vouchers = [by for one, by in vouching.items() if _is_in(path, one)]
            by = f", although {vouchers[0]} is there" if vouchers else ""
            found.setdefault(path, Damage(path, f"{each.problem}{by}", bool(vouchers)))
    for damage in (*_apart(usual, now, acts), *_vanished(usual, now)):
        found.setdefault(damage.path, damage)
    return tuple(sorted(found.values(), key=lambda each: (not each.is_vouched, each.path)))


def _parts(usual: SavedFiles, acts: Acts) -> dict[str, list[str]]:
    """Return the weights of each folder whose names differ in a number only, one of each rank."""
    groups: dict[tuple[str, str], list[str]] = {}
    for path in usual.by_path:
        if path in acts.makers and _has_weights(usual, path):
            folder, name = posixpath.split(path)
            groups.setdefault((folder, _NUMBERS.sub("#", name)), []).append(path)
    return {
        folder: paths
        for (folder, _), paths in groups.items()
        if 1 < len(paths) == len({acts.makers[each] for each in paths})
    }


def _apart(usual: SavedFiles, now: SavedFiles, acts: Acts) -> Iterator[Damage]:
    """Yield the parts that lie in another folder than the parts of the other ranks.

    Ranks have named the folder differently, as after their own clocks: it has another number.
    """
    for folder, paths in _parts(usual, acts).items():
        if not folder:
            continue
        names = {posixpath.basename(each) for each in paths}
        shape = _NUMBERS.sub("#", folder)
        there: dict[str, set[str]] = {}
        for path in now.by_path:
            inside, name = posixpath.split(path)
            if name in names and _NUMBERS.sub("#", inside) == shape:
                there.setdefault(inside, set()).add(name)
        is_split = len(there) > 1 and sum(map(len, there.values())) == len(names)
        if not is_split or set().union(*there.values()) != names:
            continue
        (least, found), *_ = sorted(there.items(), key=lambda each: (len(each[1]), each[0]))
        others = next(each for each in there if each != least)
        for name in sorted(found):
            yield Damage(f"{least}/{name}", f"is apart from the parts of other ranks in {others}")


def _published(usual: SavedFiles, now: SavedFiles, acts: Acts) -> Iterator[Damage]:
    """Yield the folders that lack the part of a rank, although they were published.

    A folder is published if it got its name last, or if others were removed because it is there.
    """
    for folder, paths in _parts(usual, acts).items():
        lacking = [each for each in paths if each not in now.by_path]
        if not lacking or len(lacking) == len(paths):
            continue
        names = ", ".join(posixpath.basename(each) for each in lacking[:_MOST_LACKING])
        if any(_is_in(folder, each) for each in acts.published):
            yield Damage(folder, f"has its last name and lacks {names}", is_vouched=True)
        elif _are_removed(now, acts, paths):
            what = f"lacks {names}, although older ones were removed"
            yield Damage(folder, what, is_vouched=True)


def _are_removed(now: SavedFiles, acts: Acts, parts: Sequence[str]) -> bool:
    """Return whether all older files of the same shape were removed, as in the undisturbed run."""
    older = acts.removed_like(parts)
    return bool(older) and not any(has_name(path, each) for path in now.by_path for each in older)


def _vanished(usual: SavedFiles, now: SavedFiles) -> Iterator[Damage]:
    """Yield the loss of all weights: the undisturbed run has saved some, and this one none."""
    before = [path for path in usual.by_path if _has_weights(usual, path)]
    if before and not any(_has_weights(now, path) for path in now.by_path):
        folder = posixpath.commonpath(posixpath.dirname(path) for path in before) or "."
        count = "its file" if len(before) == 1 else f"the {len(before)} files"
        what = f"has no weights: {count} that the undisturbed run has saved there"
        yield Damage(
            folder, f"{what} {'is' if len(before) == 1 else 'are'} missing", is_absence=True
        )


def _has_weights(files: SavedFiles, path: str) -> bool:
    is_of_format = files.by_path[path].form in ("zip", "npy", "safetensors")
    return (is_of_format or path.endswith(_WEIGHTS)) and not _is_temporary(path)


def _is_temporary(path: str) -> bool:
    return any(_TEMPORARY.search(each) for each in path.split("/") if each not in MARKS)


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/") or not folder


def _marked(usual: SavedFiles, now: SavedFiles) -> dict[str, str]:
    """Return the folders that a mark vouches for in both runs, with the mark."""
    found: dict[str, str] = {}
    for path in sorted(usual.by_path.keys() & now.by_path.keys()):
        folder, name = posixpath.split(path)
        if name in MARKS and not _is_temporary(path):
            found[folder] = path if name in FORMAT_MARKS else found.get(folder, path)
    return found


def _named(usual: SavedFiles, now: SavedFiles) -> dict[str, str]:
    """Return the files and folders that a file names in both runs, with that file."""
    found = {}
    for path, each in now.by_path.items():
        before = usual.by_path.get(path)
        if before is None or _is_temporary(path):
            continue
        for name in each.names:
            target = _target(now, path, name)
            if target is not None and name in before.names and _target(usual, path, name):
                found[target] = path
    return found


def _target(files: SavedFiles, path: str, name: str) -> str | None:
    """Return the file or folder that a text in a file names; None if there is none.

    Args:
        path: The file with the text, which may be absolute, or relative to the file's folder.
    """
    folder = posixpath.dirname(path)
    tail = name.partition("/shared/")[2] if name.startswith("/") else ""
    for each in (posixpath.normpath(posixpath.join(folder, name)), posixpath.normpath(name), tail):
        if each and each not in (".", path) and _exists(files, each):
            return each
    return None


def _exists(files: SavedFiles, path: str) -> bool:
    return path in files.by_path or any(one.startswith(f"{path}/") for one in files.by_path)


def _pointers(usual: SavedFiles, now: SavedFiles) -> Iterator[Damage]:
    """Yield the files that name a missing thing, or another thing than in the undisturbed run."""
    for path, each in now.by_path.items():
        before = usual.by_path.get(path)
        if before is None or _is_temporary(path):
            continue
        targets = [(name, _target(usual, path, name)) for name in before.names]
        known = {name: target for name, target in targets if target is not None}
        if known and not each.names:
            yield Damage(path, "names nothing")
        left_out = [target for name, target in known.items() if name not in each.names]
        if each.names and len(left_out) < len(known) and set(each.names) < set(before.names):
            there = [e for e in left_out if e in now.by_path and _has_weights(now, e)]
            if there:
                yield Damage(path, f"does not name {there[0]}, which is there")
        for name in each.names:
            if name in known and _target(now, path, name) is None:
                yield Damage(path, f"names {name}, which is not there", is_vouched=True)
        is_pointer = len(before.names) == len(each.names) == 1 and len(known) == 1
        if is_pointer and each.names[0] not in known:
            yield from _other_target(usual, now, path, next(iter(known.values())))


def _other_target(usual: SavedFiles, now: SavedFiles, path: str, target: str) -> Iterator[Damage]:
    """Yield the damage of a file that names another thing than in the undisturbed run."""
    (name,) = now.by_path[path].names
    other = _target(now, path, name)
    if other is None:
        yield Damage(path, f"names {name}, which is not there", is_vouched=True)
        return
    lacking = Counter(_shapes(usual, target)) - Counter(_shapes(now, other))
    if lacking:
        what = f"lacks {sum(lacking.values())} of its files, although {path} names it"
        yield Damage(other, what, is_vouched=True)


def _shapes(files: SavedFiles, folder: str) -> Iterator[str]:
    for path in files.by_path:
        if path.startswith(f"{folder}/") and not _is_temporary(path):
            yield _NUMBERS.sub("#", path[len(folder) :])


def _lacking(usual: SavedFiles, now: SavedFiles, folder: str, voucher: str) -> Iterator[Damage]:
    """Yield a folder that lacks files, although something vouches for it in both runs."""
    there = {_DRAWN.sub("#", path) for path in now.by_path}
    parts = {_NUMBERS.sub("#", path) for path in now.by_path}
    is_about_all = posixpath.basename(voucher) not in MARKS - FORMAT_MARKS
    lacking = [
        path
        for path in usual.by_path
        if _is_in(path, folder)
        and path != folder
        and not _is_temporary(path)
        and _DRAWN.sub("#", path) not in there
        and (is_about_all or _NUMBERS.sub("#", path) in parts)
    ]
    if lacking:
        names = ", ".join(
            posixpath.relpath(each, folder or ".") for each in lacking[:_MOST_LACKING]
        )
        more = f" and {len(lacking) - _MOST_LACKING} more" if len(lacking) > _MOST_LACKING else ""
        what = f"lacks {names}{more}, although {voucher} says that it is complete"
        yield Damage(folder or ".", what, is_vouched=True)
