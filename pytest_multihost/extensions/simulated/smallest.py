"""Finds the smallest size at which a test hangs, after it has hung at a larger one.

A small world can be run again in a second, read to its end, and confirmed by real gloo processes.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from pytest_multihost.core.attempt import run_apart
from pytest_multihost.core.launch import Launcher
from pytest_multihost.core.model.errors import LaunchError
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.pytest_plugin.attempt import CompletedAttempt
from pytest_multihost.core.pytest_plugin.run import RUN
from pytest_multihost.core.pytest_private import base_temp, skip_item
from pytest_multihost.extensions.simulated.learned import name_of_test
from pytest_multihost.extensions.simulated.service import NAME

HUNG = pytest.StashKey[dict[str, int]]()
"""The tests of the run that have hung in a simulated world, with the smallest size so far."""

How = Literal["hangs", "passes", "fails"]

_BUDGET_S = 60.0
"""How long to look for a smaller size."""

_CONFIRMED = 16
"""The largest world that is run again with gloo."""

_TIMEOUT_S = 20.0
"""How long a smaller world may take."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How a test ends at several sizes.

    Attributes:
        found: Sizes below the hanging one, ascending, with how the test ended at each.
        hung: The size at which it hung first.
        by_gloo: How it ended with gloo at the smallest size that hangs; None: it was not run.
    """

    found: tuple[tuple[int, How], ...]
    hung: int
    by_gloo: How | None = None

    @property
    def smallest(self) -> int:
        """The smallest size that hangs."""
        return next((size for size, how in self.found if how == "hangs"), self.hung)

    @property
    def text(self) -> str:
        """The findings, in one line."""
        below = [(size, how) for size, how in self.found if size < self.smallest]
        told = f"{self.smallest} is the smallest of the sizes tried that hangs"
        for how in ("passes", "fails"):
            if sizes := [str(size) for size, each in below if each == how]:
                told += f"; it {how} at {', '.join(sizes)}"
        if self.by_gloo == "hangs":
            told += f"; real gloo processes hang at {self.smallest}, too"
        elif self.by_gloo is not None:
            told += f"; with real gloo processes it {self.by_gloo} at {self.smallest}"
        return told


def note_hang(item: pytest.Item, size: int) -> None:
    """Remember that a test has hung at a size."""
    hung = item.config.stash.setdefault(HUNG, {})
    test = name_of_test(item.nodeid, size)
    hung[test] = min(size, hung.get(test, size))


def skip_if_hung(item: pytest.Item, size: int) -> None:
    """Skip a test that has hung at a smaller size: there it is easier to understand."""
    smaller = item.config.stash.get(HUNG, {}).get(name_of_test(item.nodeid, size), size)
    if smaller < size:
        skip_item(f"it hangs at {smaller} ranks already")


def sizes_to_try(hung: int) -> list[int]:
    """Return the sizes to try, the smallest first: powers of two below the hanging one."""
    return [1 << power for power in range(1, hung.bit_length()) if 1 << power < hung]


def find_smallest(
    hung: int, run: Callable[[int], How | None], *, has_time: Callable[[], bool]
) -> Sizes:
    """Return the sizes that were tried, up to the first that hangs.

    Args:
        run: Runs a world of a size; returns None if that is not possible.
        has_time: Whether there is time for one more world.
    """
    found: list[tuple[int, How]] = []
    for size in sizes_to_try(hung):
        if not has_time():
            break
        if (how := run(size)) is not None:
            found.append((size, how))
        if how == "hangs":
            break
    return Sizes(tuple(found), hung)


def look_for_smallest(item: pytest.Item, attempt: CompletedAttempt) -> Sizes:
    """Run the test of an attempt that has hung at smaller sizes."""
    run, spec = item.config.stash[RUN], attempt.judged.result.spec
    launcher: Launcher = run.launchers.get(attempt.plan.requirements)
    until_s = time.monotonic() + _BUDGET_S

    def run_one(size: int, backend: str = NAME) -> How | None:
        services = {name: each for name, each in spec.services.items() if name != NAME}
        changed = spec if backend == NAME else replace(spec, backend=backend, services=services)
        timeout_s = min(_TIMEOUT_S, spec.timeout_s)
        changed = replace(changed, size=size, timeout_s=timeout_s)
        return _run(item, changed, attempt.plan.symptoms, launcher)

    found = find_smallest(spec.size, run_one, has_time=lambda: time.monotonic() < until_s)
    if found.smallest > _CONFIRMED:
        return found
    return replace(found, by_gloo=run_one(found.smallest, "gloo"))


def _run(item: pytest.Item, spec: WorldSpec, symptoms: Symptoms, launcher: Launcher) -> How | None:
    """Run a world without artifacts, and return how it ended."""
    scratch = Path(tempfile.mkdtemp(prefix="smaller-", dir=base_temp(item.config)))
    try:
        judged = run_apart(
            spec,
            launcher,
            symptoms,
            item.config.rootpath,
            directory=scratch,
            scratch=scratch,
            kinds=item.config.hook.pytest_multihost_services(),
        )
    except LaunchError:
        return None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return _HOW.get(judged.finding.outcome)


_HOW: dict[str, How] = {"hung": "hangs", "passed": "passes", "failed": "fails"}
