"""What each test needs, and in which tier of the suite it runs.

A need is a marker: of the test, of its file (`pytestmark`), or by default of its folder, in this
order. `make test` runs the needs of the fast tier, and `make test-all` runs all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

# `make help` prints this table before anything is installed.
if TYPE_CHECKING:
    from pathlib import Path

    import pytest


@dataclass(frozen=True)
class Need:
    """What tests need from the machine.

    Attributes:
        tier: "fast" (make test) or "full" (only make test-all).
        meaning: A phrase for `make help`.
    """

    tier: str
    meaning: str


NEEDS = {
    "unit": Need("fast", "values made by hand; no process, or one that starts and ends at once"),
    "source": Need("fast", "the source tree: its imports, prose, pages and workflows"),
    "shared": Need("fast", "programs that share one run of pytest with real ranks"),
    "smoke": Need("fast", "one world for each launch, backend and extension"),
    "clusters": Need("fast", "engines that start ranks: a command, and small worlds of the others"),
    "fixes": Need("fast", "the fixes, on the libraries that they mend"),
    "examples": Need("fast", "conftest_examples, as users run them"),
    "worlds": Need("full", "a run of pytest with real ranks for each test"),
    "runtimes": Need("full", "worlds over torch and jax that part, die and record"),
    "processes": Need("full", "real processes that are stopped, killed or out of something"),
    "namespaces": Need("full", "root rights, for hosts made from namespaces"),
    "launchers": Need("full", "torchrun, Open MPI, Slurm or sshd"),
    "containers": Need("full", "Docker"),
    "browser": Need("full", "Chromium, or a reader of traces"),
    "commands": Need("full", "the commands that README and guide print, in folders of their own"),
    "copies": Need("full", "copies of the package without one of its extensions"),
    "benchmarks": Need("full", "the programs that score and measure, run for themselves"),
}
"""Every need, by the name of its marker."""

FOLDERS = {
    "tests/backends": "runtimes",
    "tests/benchmarks": "benchmarks",
    "tests/browser": "browser",
    "tests/engine": "unit",
    "tests/examples": "examples",
    "tests/extensions": "worlds",
    "tests/extensions/debugger": "processes",
    "tests/extensions/live": "processes",
    "tests/extensions/netns": "namespaces",
    "tests/extensions/scripts": "processes",
    "tests/fixes": "fixes",
    "tests/house": "source",
    "tests/plugin": "worlds",
    "tests/process": "processes",
    "tests/smoke": "smoke",
    "tests/unit": "unit",
}
"""The need of a folder's tests that name none; the longest folder decides."""


def add_markers(items: Iterable[pytest.Item]) -> None:
    """Mark each test with its need, if it names none, and with its tier.

    Raises:
        LookupError: A test has no need, or is of the fast tier in a file that its runs leave out.
    """
    for item in items:
        need = need_of(item)
        if NEEDS[need].tier == "fast" and not may_be_fast(item.path, item.config.rootpath):
            raise LookupError(f"{item.nodeid} is of the fast tier: name `mark.{need}` in its file")
        item.add_marker(need)
        item.add_marker(NEEDS[need].tier)


def need_of(item: pytest.Item) -> str:
    """Return the need of a test: the nearest marker, or of its shared run, or its folder's.

    Raises:
        LookupError: Neither names one.
    """
    for marker in item.iter_markers():
        if marker.name in NEEDS:
            return marker.name
    path = item.path.relative_to(item.config.rootpath).as_posix()
    folders = [each for each in FOLDERS if path.startswith(f"{each}/")]
    if not folders:
        raise LookupError(f"{path} needs a row in tests/shared/tiers.py, or a marker")
    need = FOLDERS[max(folders, key=len)]
    if need == "worlds" and item.get_closest_marker("program"):
        return "shared"
    return need


@cache
def may_be_fast(path: Path, root: Path) -> bool:
    """Return whether a file of tests may have one of the fast tier.

    Its folder says so, or a marker whose name is in its text. A file of which neither does need not
    be imported by a run of the fast tier: some import torch and jax.

    Args:
        root: The folder to which the names of FOLDERS are relative.
    """
    name = path.relative_to(root).as_posix()
    folder = max((each for each in FOLDERS if name.startswith(f"{each}/")), key=len, default="")
    if not folder or NEEDS[FOLDERS[folder]].tier == "fast":
        return True
    text = path.read_text(encoding="utf-8")
    fast = [need for need, each in NEEDS.items() if each.tier == "fast"]
    return any(f"mark.{each}" in text for each in (*fast, "program"))


if __name__ == "__main__":
    for tier, command in (("fast", "make test"), ("full", "only make test-all")):
        print(f"  Tests of {command} need:")
        for name, need in NEEDS.items():
            if need.tier == tier:
                print(f"    {name:<11} {need.meaning}")
