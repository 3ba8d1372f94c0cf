"""What a test needs of the way in which its ranks are launched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.model.fault import Fault
from pytest_multihost.model.hosts import DOCKER, ONE, kind_of
from pytest_multihost.nemesis.io_shim import find_library, preload_variables


@dataclass(frozen=True, slots=True)
class Need:
    """Tests with equal needs share a launcher.

    Attributes:
        env: Variables that must be in place before the ranks' interpreter starts.
        is_fresh: Whether each rank must be an interpreter of its own.
        is_preloaded: Whether the I/O shim must be there before an exec.
        is_housed: Whether the hosts are containers.
    """

    env: tuple[tuple[str, str], ...] = ()
    is_fresh: bool = False
    is_preloaded: bool = False
    is_housed: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """The environment's part of it."""
        own = dict(self.env)
        return {**own, **(preload_variables({**os.environ, **own}) if self.is_preloaded else {})}

    @property
    def reasons(self) -> list[str]:
        """Why not the cheapest way of launching will do, for the reader."""
        words = [f"env={dict(self.env)}"] if self.env else []
        words += ["hash_seed"] if self.is_fresh else []
        return words + (["slow_io"] if self.is_preloaded else [])


def need_of(env: Mapping[str, str], faults: Sequence[Fault], launch: str, hosts: str = ONE) -> Need:
    """Return what a test needs.

    Args:
        env: Of its marker.
        faults: Its own, those of the command line, or those of a token.
        launch: How ranks are to be launched; a fork has no shim, and makes do with Python's files.
        hosts: What hosts are made from.
    """
    kinds = {each.kind for each in faults}
    is_preloaded = "slow_io" in kinds and launch != "fork" and find_library() is not None
    is_housed = kind_of(hosts) == DOCKER
    return Need(tuple(sorted(env.items())), "hash_seed" in kinds, is_preloaded, is_housed)


def launch_problems(env: Mapping[str, str], faults: Sequence[Fault], launch: str) -> list[str]:
    """Return why the ranks of a test cannot be launched in the way that was asked for."""
    if env and launch == "fork":
        why = "which must be in place before the ranks' interpreter starts, needs an interpreter"
        return [f"env={dict(env)}, {why} of its own: leave out --multihost-launch=fork."]
    seeds = [each for each in faults if each.kind == "hash_seed"]
    if not seeds or launch in ("auto", "spawn"):
        return []
    why = f"its ranks are fresh interpreters, and --multihost-launch={launch} forks them"
    return [f"faults: {seeds[0]!r}: {why}. Say --multihost-launch=spawn, or leave it out."]
