"""An annotation: what a forge such as GitHub shows at a line of the code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pytest_multihost.core.model.verdict import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """A text at a line.

    Attributes:
        title: Its first line.
        places: Lines, the best first: it stands at the first that is in the repository.
    """

    level: Literal["error", "warning"]
    title: str
    text: str
    places: tuple[Place, ...] = ()
