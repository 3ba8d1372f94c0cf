"""An annotation: a text that a forge such as GitHub shows at a line of the code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_multihost.core.model.verdict import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A text at a line.

    Attributes:
        places: Candidate lines, the best first; the first one inside the repository is used.
    """

    level: Literal["error", "warning"]
    title: str
    text: str
    places: tuple[Place, ...] = ()
