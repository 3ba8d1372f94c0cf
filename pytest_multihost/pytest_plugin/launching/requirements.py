"""What a test requires of the way in which its ranks are launched."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_multihost.model.fault import Fault
from pytest_multihost.model.spec import DOCKER, ONE, kind_of
from pytest_multihost.nemesis.io_shim import find_library, preload_variables


@dataclass(frozen=True, slots=True)
class LaunchRequirements:
    """What some tests require; tests with equal requirements share a launcher.

    Attributes:
        env: Variables that must be set before the ranks' interpreter starts.
        has_fresh_interpreters: Whether each rank must be an interpreter of its own.
        has_preloaded_shim: Whether the I/O shim must be loaded, which takes an exec.
        has_containers: Whether the hosts are containers.
    """

    env: tuple[tuple[str, str], ...] = ()
    has_fresh_interpreters: bool = False
    has_preloaded_shim: bool = False
    has_containers: bool = False

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that must be set, those for the shim among them."""
        own = dict(self.env)
        return {
            **own,
            **(preload_variables({**os.environ, **own}) if self.has_preloaded_shim else {}),
        }

    @property
    def reasons(self) -> list[str]:
        """Why the cheapest way of launching does not do, for the reader."""
        words = [f"env={dict(self.env)}"] if self.env else []
        words += ["hash_seed"] if self.has_fresh_interpreters else []
        return words + (["slow_io"] if self.has_preloaded_shim else [])


def launch_requirements(
    env: Mapping[str, str], faults: Sequence[Fault], launch: str, hosts: str = ONE
) -> LaunchRequirements:
    """Return what a test requires.

    Args:
        env: The `env` of its marker.
        faults: Its own, those of the command line, or those of a token.
        launch: The `launch` setting. A fork cannot preload the shim; then only what Python reads
            is slow.
        hosts: What hosts are made from.
    """
    kinds = {each.kind for each in faults}
    return LaunchRequirements(
        env=tuple(sorted(env.items())),
        has_fresh_interpreters="hash_seed" in kinds,
        has_preloaded_shim="slow_io" in kinds and launch != "fork" and find_library() is not None,
        has_containers=kind_of(hosts) == DOCKER,
    )


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
