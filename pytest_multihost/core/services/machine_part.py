"""The parts that services of a world have on each machine on which ranks of the world run.

A part acts for ranks that can do nothing any more: they hang, are stopped or were killed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_multihost.core.import_path import import_path
from pytest_multihost.core.model.event import Event
from pytest_multihost.core.model.spec import WorldSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePart:
    """The part of a service on one machine.

    Attributes:
        before_stacks: Called before the stacks of ranks are taken, with their numbers.
        clean_up: Called when the world has ended, with its history; removes the remains of ranks,
            and returns events that no rank has reported.
    """

    before_stacks: Callable[[Collection[int]], None] = lambda _ranks: None
    clean_up: Callable[[Sequence[Event]], Sequence[Event]] = lambda _history: ()


JoinMachine = Callable[[Path], MachinePart]
"""The function that `ServicePart.machine` names; its argument is the world's own directory there.
"""


def machine_parts(spec: WorldSpec, scratch: Path) -> tuple[MachinePart, ...]:
    """Return the parts on this machine of the services of a world.

    Args:
        scratch: The world's own directory on this machine.
    """
    joins: list[JoinMachine] = [
        import_path(each.machine) for each in spec.services.values() if each.machine
    ]
    return tuple(join(scratch) for join in joins)
