"""Name files without parts that differ between runs, such as temporary folders, ids and times."""

from __future__ import annotations

import glob
import re
from functools import lru_cache

_IDS = (
    r"(?<![a-z0-9])tmp[a-z0-9_]{8}(?![a-z0-9_])",  # of the module tempfile
    r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b",
    r"(?<![0-9A-Za-z])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,}(?![0-9A-Za-z])",
    r"(?<![0-9])(?:19|20)[0-9]{2}-?[01][0-9]-?[0-3][0-9](?:[T_ -]?[0-9]{2}[0-9:.-]+)?",
    r"(?<![0-9.])1[6-9][0-9]{8}(?:[0-9]{3}|[0-9]{6}|[0-9]{9})?(?:\.[0-9]+)?(?![0-9])",  # since 1970
)
_ID = re.compile("|".join(_IDS))


@lru_cache(1024)
def portable_glob(path: str, folders: tuple[str, ...], pids: frozenset[int]) -> str:
    """Return a glob that matches a file in this run and the same file in other runs.

    Args:
        folders: Folders that have other names in other runs, inner ones first.
    """
    folder = next((each for each in folders if path.startswith(f"{each}/")), "")
    parts = _ID.split(path.removeprefix(folder))
    numbers = [re.sub(r"[0-9]+", lambda found: _number(found[0], pids), each) for each in parts]
    escaped = ["*".join(map(glob.escape, each.split("\0"))) for each in numbers]
    return f"{'*' if folder else ''}{'*'.join(escaped)}"


def _number(digits: str, pids: frozenset[int]) -> str:
    return "\0" if len(digits) < len(str(1 << 32)) and int(digits) in pids else digits
