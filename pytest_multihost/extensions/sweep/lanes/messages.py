"""Defines the messages between the controller, the lane parent and the lanes.

The controller sends `LanesJob` and `OpenLane` to the lane parent, which answers `LaneOpened`. It
sends `ToLane` messages to a lane, which answers with `FromLane` messages. Packets carry all
messages, with their descriptors.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_multihost.core.model.json_values import message
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun, WaitEnd


@message
class LanesJob:
    """The job of the lane parent."""

    control: int
    controller: int


@message
class OpenLane:
    """Fork a lane; the message carries its connection to the controller."""


@message
class LaneOpened:
    """The lane exists."""

    pid: int


@message
class UseServer:
    """Use this server to start ranks; the message carries the connection to it.

    Attributes:
        key: Names the server in later requests.
        launch: The launch mode, as in verdicts.
    """

    key: str
    launch: str
    pid: int


@message
class Share:
    """The ranks of a world that one server starts."""

    server: str
    ranks: tuple[int, ...]


@message
class RunWorld:
    """Run a world with a disturbance, and judge it.

    Attributes:
        serial: The number of this request; the answer repeats it.
        shares: The servers that start the ranks, and which ranks each of them starts.
        spec: The world; the disturbance's fault is its last one.
        patience_s: When to give up, in seconds after the start of the test.
        usual_differences: Names of the values in which its ranks differ.
        overwrites: Whether the disturbed file had been written before.
        usual_lines: The severe lines of the logs of its ranks.
        measures_end: Whether to answer with the end of the wait, instead of judging the world.
        symptoms: The patterns of errors that follow from another rank's failure.
        primary_leaves_last: Whether rank 0 may exit only after the others.
        scratch: Where to make the world's own directory; has the remains of the undisturbed run.
        artifacts: The directory to which the paths in answers are relative.
        keep: Where to write the artifacts of a run that shows a weakness; None if not kept.
        permits: The folder of the permits for ranks; None if no permits are needed.
    """

    serial: int
    shares: tuple[Share, ...]
    spec: WorldSpec
    disturbance: Disturbance
    patience_s: float
    usual_s: float
    symptoms: Symptoms
    primary_leaves_last: bool
    scratch: str
    root: str
    artifacts: str
    keep: str | None = None
    permits: str | None = None
    permit_count: int = 0
    run_id: str = ""
    environment: Mapping[str, str | None] | None = None
    usual_differences: tuple[str, ...] = ()
    overwrites: bool = False
    usual_lines: frozenset[str] = frozenset()
    measures_end: bool = False


@message
class WorldRun:
    """A world was run and judged."""

    serial: int
    run: DisturbedRun


@message
class WaitMeasured:
    """A world was run under the model of a launcher."""

    serial: int
    end: WaitEnd


@message
class WorldLost:
    """A world could not be run, because the harness broke."""

    serial: int
    why: str


ToLane = UseServer | RunWorld
FromLane = WorldRun | WaitMeasured | WorldLost
