"""Which faults each test gets: its marker's, the command line's, or those of a token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.fault import Fault, resolve
from pytest_multihost.model.hosts import ONE
from pytest_multihost.model.replay import Replay, checksum, read_token
from pytest_multihost.nemesis import (
    FaultKind,
    fault_problems,
    kinds_by_name,
    parse_fault,
    resolved_problems,
)

MAX_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class Disturbing:
    """What decides about the faults of a run.

    Attributes:
        kinds: The faults that there are, by name.
        everywhere: Faults of the command line, for every multihost test.
        seed: Of the command line.
        replay: What is to be repeated.
    """

    kinds: Mapping[str, FaultKind]
    everywhere: tuple[Fault, ...] = ()
    seed: int | None = None
    replay: Replay | None = None

    def seed_of(self, nodeid: str) -> int:
        """Return the seed of a test's world: the same in every run unless somebody says so."""
        if self.replay is not None and self.replay.is_of(nodeid):
            return self.replay.seed
        return checksum(nodeid) % MAX_SEED if self.seed is None else self.seed

    def faults_of(
        self, nodeid: str, size: int, marked: Sequence[Fault], *, hosts: str = ONE
    ) -> tuple[tuple[Fault, ...], list[str]]:
        """Return the faults of a test with numbers for ranks, and what is wrong with them.

        Args:
            nodeid: The test's.
            size: Ranks of its world.
            marked: Faults of its marker.
            hosts: What its hosts are made from.
        """
        wanted = (*marked, *self.everywhere)
        if self.replay is not None and self.replay.is_of(nodeid):
            wanted = self.replay.faults
            if size != self.replay.size:
                return (), [
                    f"is replayed with {self.replay.size} ranks: --ranks {self.replay.size}"
                ]
        if problems := fault_problems(wanted, size=size, kinds=self.kinds):
            return (), [f"faults: {each}" for each in problems]
        faults = resolve(wanted, size=size, seed=self.seed_of(nodeid))
        problems = resolved_problems(faults, hosts=hosts, size=size)
        return faults, [f"faults: {each}" for each in problems]

    def lacking(self, faults: Iterable[Fault]) -> str | None:
        """Return what this machine lacks for a test with `faults`, if anything."""
        reasons = (self.kinds[each.kind].lacking(each) for each in faults)
        return next((reason for reason in reasons if reason), None)

    def check_replay(self, nodeids: Iterable[str]) -> None:
        """Check that what is to be repeated is among the tests of this run.

        Raises:
            pytest.UsageError: It is not.
        """
        if self.replay is None:
            return
        names = list(nodeids)
        if not any(self.replay.is_of(nodeid) for nodeid in names):
            message = (
                "--multihost-replay: the token is of another test\n"
                f"None of the {len(names)} selected multihost tests is the one that it repeats.\n"
                "Copy the test's whole id as well from the line that begins with 'replay'."
            )
            raise pytest.UsageError(message)


def read_disturbing(config: pytest.Config) -> Disturbing:
    """Return what decides about the faults of this run.

    Raises:
        pytest.UsageError: An option cannot be read.
    """
    problems: list[str] = []
    everywhere = []
    for text in config.getoption("multihost_fault") or ():
        try:
            everywhere.append(parse_fault(text))
        except SettingError as error:
            problems.append(f"--multihost-fault: {error}")
    replay = None
    if text := config.getoption("multihost_replay"):
        try:
            replay = read_token(text)
        except SettingError as error:
            problems.append(f"--multihost-replay: {error}")
    if problems:
        raise pytest.UsageError("\n".join(problems))
    kinds = kinds_by_name(config.hook.pytest_multihost_faults())
    return Disturbing(kinds, tuple(everywhere), config.getoption("multihost_seed"), replay)
