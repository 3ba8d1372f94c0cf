"""The reasons why a world ends, and their meaning for a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Ending = Literal[
    "self",  # every rank exited when its gate opened
    "overrun",  # the test's deadline passed
    "startup-overrun",  # not all ranks were ready in time
    "settled",  # the grace after a rank's failure or death has passed
    "proof",  # no wait in the world could end before the deadline
    "mismatch",  # ranks were in operations that can never match
    "stopped",  # a process outside the harness stopped a rank
    "waited",  # a rank has waited for another one for longer than the user's patience
    "lost",  # the harness itself broke: no server, no ranks
    "interrupted",  # Ctrl-C in the controller
    "unwatched",  # the engine has not watched it: its `origin` names the observer
]
"""The name of an end, as facts.json has it."""

Basis = Literal["proof", "stop", "time", "none"]
"""The evidence that a world which the harness has ended hangs.

* proof: the state of the ranks, which nothing can change
* stop: a process outside the harness has stopped a rank
* time: time was up, with no proof
* none: the end does not show that it hangs
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Why a world ended.

    Attributes:
        basis: The evidence of a hang.
        detected_by: Its word in verdict.json if it shows a hang, else empty.
        is_lost: Whether the world ended without showing anything of its test.
    """

    name: Ending
    basis: Basis = "none"
    detected_by: str = ""
    is_lost: bool = False

    @property
    def is_hang(self) -> bool:
        """Whether it shows that the world hangs."""
        return self.basis != "none"


ENDS: Final = (
    End(name="self"),
    End(name="overrun", basis="time", detected_by="deadline"),
    End(name="startup-overrun", basis="time", detected_by="deadline"),
    End(name="settled"),
    End(name="proof", basis="proof", detected_by="proof"),
    End(name="mismatch", basis="proof", detected_by="mismatch"),
    End(name="stopped", basis="stop", detected_by="stopped"),
    End(name="waited", basis="time", detected_by="deadline"),
    End(name="lost", is_lost=True),
    End(name="interrupted", is_lost=True),
    End(name="unwatched"),
)
"""All ends."""

_BY_NAME: Final = {each.name: each for each in ENDS}


def end_of(name: Ending) -> End:
    """Return the end with a name."""
    return _BY_NAME[name]
