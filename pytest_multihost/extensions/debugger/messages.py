"""The settings of the service that lends pytest's terminal, and its messages with the ranks."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from pytest_multihost.core.model.event import Event, SentToService
from pytest_multihost.core.model.json_values import JsonError, from_json, message
from pytest_multihost.core.model.spec import WorldSpec

NAME = "debugger"
"""The name of the service in a world's spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Debugger:
    """How the debugger in a rank gets the controller's terminal.

    Attributes:
        controller: The process id of the controller.
        rank: The only rank that may stop in the debugger; None: every rank.
        is_post_mortem: Whether the first rank that fails stops there.
        is_tracing: Whether each rank stops at the first line of the test.
    """

    terminal: str
    controller: int
    rank: int | None = None
    is_post_mortem: bool = False
    is_tracing: bool = False

    @classmethod
    def of(cls, spec: WorldSpec) -> Debugger:
        """Return the debugger of a world whose spec names the service."""
        return from_json(cls, spec.services[NAME].settings)


@message
class TerminalWanted:
    """A rank waits for the terminal; `is_post_mortem`: to look at an exception, else at a line."""

    is_post_mortem: bool = False


@message
class TerminalReturned:
    """The rank's debugger has returned the terminal.

    Attributes:
        steps: Whether the debugger is about to stop again, after a step.
        quits: Whether the user has ended the debugger and the run.
    """

    steps: bool = False
    quits: bool = False


@message
class TerminalLent:
    """The rank has the terminal until it returns it; `is_refused`: it does not get it."""

    is_refused: bool = False


def sent(event: Event) -> TerminalWanted | TerminalReturned | None:
    """Return the message of a rank to the service; None if the event is none."""
    body = event.body
    if isinstance(body, SentToService) and body.service == NAME:
        with suppress(JsonError):  # a test may write anything into the rank's connection
            found: TerminalWanted | TerminalReturned = from_json(
                TerminalWanted | TerminalReturned, body.message
            )
            return found
    return None
