"""The messages between the controller, the lane parent and the lanes.

The controller sends the lane parent `LanesJob` and `OpenLane`, and gets `LaneOpened` back; it sends
a lane what is `ToLane`, and gets what is `FromLane` back. All travel as packets, with descriptors
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_multihost.core.model.json_values import message
from pytest_multihost.core.model.spec import WorldSpec
from pytest_multihost.core.outcome import Symptoms
from pytest_multihost.extensions.sweep.result import Disturbance, DisturbedRun


@message
class LanesJob:
    """Be the lane parent.

    Attributes:
        control: Descriptor of the control connection.
    """

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
    """Start ranks by this server; the message carries the connection to it.

    Attributes:
        key: What later requests call it.
        launch: The way of launching, as verdicts call it.
    """

    key: str
    launch: str
    pid: int


@message
class RunWorld:
    """Run a world with a disturbance, and judge it.

    Attributes:
        serial: Of this request; the answer repeats it.
        server: Key of the server that starts the ranks.
        spec: The world; the disturbance's fault is its last one.
        disturbance: What is done.
        patience_s: When to give up, in seconds after the start of the test.
        usual_s: Duration of the undisturbed run.
        symptoms: How the backend's failures look when they follow from another rank's.
        primary_leaves_last: Whether rank 0 may exit only after the others.
        scratch: Where to make the world's own directory.
        artifacts: The directory to which the paths in answers are relative.
        keep: Where to write the artifacts of a run that shows a weakness; None: nowhere.
        permits: Where the permits for ranks are; None: none are needed.
        permit_count: How many there are.
        environment: Versions by package name.
    """

    serial: int
    server: str
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


@message
class WorldRun:
    """A world has been run and judged.

    Attributes:
        serial: Of the request.
        run: What came of it.
    """

    serial: int
    run: DisturbedRun


@message
class WorldLost:
    """A world could not be run: the harness broke.

    Attributes:
        serial: Of the request.
        why: What was seen.
    """

    serial: int
    why: str


ToLane = UseServer | RunWorld
FromLane = WorldRun | WorldLost
