"""The faults of each test: its marker's and the command line's, or those of a replay token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from pytest_multihost.model.errors import SettingError
from pytest_multihost.model.fault import Fault
from pytest_multihost.model.spec import ONE, Replay, checksum, read_token
from pytest_multihost.nemesis import (
    FaultKind,
    kinds_by_name,
    parse_fault,
    resolve_faults,
)

MAX_SEED = 1_000_000


@dataclass(frozen=True, slots=True)
class FaultOptions:
    """What the command line says about faults.

    Attributes:
        kinds: The kinds of faults that exist, by name.
        everywhere: Faults for every multihost test: --multihost-fault.
        seed: The seed of every world: --multihost-seed.
        replay: What a token says is to be repeated: --multihost-replay.
    """

    kinds: Mapping[str, FaultKind]
    everywhere: tuple[Fault, ...] = ()
    seed: int | None = None
    replay: Replay | None = None

    def seed_for(self, nodeid: str) -> int:
        """Return the seed of a test's world: the same in every run unless an option sets it."""
        if self.replay is not None and self.replay.is_of(nodeid):
            return self.replay.seed
        return checksum(nodeid) % MAX_SEED if self.seed is None else self.seed

    def faults_for(
        self, nodeid: str, size: int, marked: Sequence[Fault], *, hosts: str = ONE
    ) -> tuple[tuple[Fault, ...], list[str]]:
        """Return a test's faults, each rank resolved to a number, and every problem with them.

        Args:
            nodeid: The test.
            size: Ranks of its world.
            marked: Faults of its marker.
            hosts: What its hosts are made from.
        """
        faults = (*marked, *self.everywhere)
        if self.replay is not None and self.replay.is_of(nodeid):
            faults = self.replay.faults
            if size != self.replay.size:
                return (), [
                    f"is replayed with {self.replay.size} ranks: --ranks {self.replay.size}"
                ]
        resolved, problems = resolve_faults(
            faults, size=size, seed=self.seed_for(nodeid), hosts=hosts, kinds=self.kinds
        )
        return resolved, [f"faults: {each}" for each in problems]

    def check_replay(self, nodeids: Iterable[str]) -> None:
        """Check that the test of the replay token is among the tests of this run.

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


def fault_kinds(config: pytest.Config) -> Mapping[str, FaultKind]:
    """Return every kind of fault that plugins and conftests offer, by name."""
    return kinds_by_name(config.hook.pytest_multihost_faults())


def missing_for_faults(faults: Iterable[Fault], kinds: Mapping[str, FaultKind]) -> str | None:
    """Return what this machine lacks for a test with `faults`, if anything."""
    reasons = (kinds[each.kind].lacking(each) for each in faults)
    return next((reason for reason in reasons if reason), None)


def read_fault_options(config: pytest.Config) -> FaultOptions:
    """Read the options about faults.

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
    seed = config.getoption("multihost_seed")
    return FaultOptions(fault_kinds(config), tuple(everywhere), seed, replay)
