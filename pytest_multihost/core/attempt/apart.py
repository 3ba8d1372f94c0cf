"""Runs a world beside the attempt of a test, and judges it.

Such a world is a smaller one, one with a disturbance, or one without. Nothing is demanded of its
faults or of its values, because its caller compares it with another world.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_multihost.core.attempt.observe import WatchedWorld
from pytest_multihost.core.blame import Judgement, judge_world
from pytest_multihost.core.launch import Launcher
from pytest_multihost.core.model.setting_values import Early
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.model.stack import SourceContext
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.core.services import ServiceKind


def run_apart(  # noqa: PLR0913 - a world, its surroundings, and its judge
    spec: WorldSpec,
    launcher: Launcher,
    symptoms: Symptoms,
    root: Path | str,
    *,
    directory: Path,
    scratch: Path,
    kinds: Iterable[Sequence[ServiceKind]],
    primary_leaves_last: bool = False,
    early: Early = "fail",
    patience_s: float | None = None,
) -> Judgement:
    """Run a world without the user, and return its judgement; its files stay.

    Args:
        root: The folder to which files in texts are relative.
        directory: Where logs and stacks go.
        scratch: Its own directory for everything else.
        kinds: The kinds of services that each plugin offers.
        early: The action when a hang is proven before the timeout.
        patience_s: See `engine.Surroundings`.

    Raises:
        LaunchError: Its ranks could not be started.
    """
    world = WatchedWorld.make(
        spec.without_user, directory=directory, scratch=scratch, early=early, kinds=kinds
    )
    result = world.run(launcher, primary_leaves_last=primary_leaves_last, patience_s=patience_s)
    return judge_world(result, symptoms, SourceContext(str(root)))
