"""Whose rules the groups of a simulated world follow.

A group of NCCL follows the rules of the world's `Semantics`; the groups of other backends behave as
those of gloo do. `group` and `exchange` ask which rules a group follows. A rule also says when a
hang under it is proven, so no rule can be forgotten there.

A wait ends when the operation has ended, as with gloo. With NCCL it ends earlier. So a hang is not
proven if that could make a difference.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_multihost.core.model.spec import WorldSpec
    from pytest_multihost.extensions.simulated.exchange import Exchange
    from pytest_multihost.extensions.simulated.waits import ThreadWait

Certainty = Callable[["Exchange", Sequence["ThreadWait"], int], bool]
"""Returns whether ranks that all wait would wait with the real backend, too.

Its arguments are the exchange, the waits of the ranks' threads, and the number of ranks.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule by which groups of a backend differ from those of gloo.

    Attributes:
        says: The rule.
        source: The page or function that says so.
        is_certain: Whether a hang under the rule is proven.
    """

    says: str
    source: str
    is_certain: Certainty


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """The rules that groups of NCCL follow in a world.

    Attributes:
        name: The value of the setting `semantics`.
    """

    name: str
    rules: tuple[Rule, ...] = ()

    @property
    def service(self) -> str:
        """The name of the service of worlds that have it."""
        return f"{self.name}-semantics"

    def is_certain(self, exchange: Exchange, waits: Sequence[ThreadWait], size: int) -> bool:
        """Return whether the ranks would wait as they do with the real backend, too."""
        return all(rule.is_certain(exchange, waits, size) for rule in self.rules)


def always(_exchange: Exchange, _waits: Sequence[ThreadWait], _size: int) -> bool:
    """Return True: the simulated ranks wait exactly where the real ones do."""
    return True


def unless_left_early(exchange: Exchange, waits: Sequence[ThreadWait], size: int) -> bool:
    """Return whether the ranks would wait as they do if NCCL's waits ended early.

    They might not if a rank that NCCL lets go on could end another one's wait elsewhere:
    set a key, or enter an operation of a group of gloo.
    """
    by_rank = defaultdict[int, set[int]](set)
    for each in waits:
        by_rank[each.rank] |= each.numbers
    numbers = [(rank, number) for rank, own in by_rank.items() for number in own]
    if not any(exchange.is_left_early(*each) for each in numbers):
        return True
    elsewhere = any(each.request is not None for each in waits)
    on_host = {rank for rank, n in numbers if exchange.may_go_on_alone(rank, n)}
    if elsewhere or not on_host:
        return not elsewhere
    return on_host <= exchange.stuck_ranks(by_rank, size)


COMMUNICATORS = Rule(
    says="A communicator is made at the first operation that needs it, and this takes all its"
    " members. A transfer outside a batch has a communicator of its two ranks; the first"
    " batch of a group takes all of the group's members.",
    source='NCCL, Communicator Creation: "ncclCommInitRank implicitly synchronizes with other'
    ' ranks"; torch, ProcessGroupNCCL and `batch_isend_irecv`',
    is_certain=always,
)
STREAMS = Rule(
    says="The operations of a communicator run one after the other, in the order in which a rank"
    " launches them: torch gives each communicator one stream. So two ranks that each send first"
    " and receive then wait for each other.",
    source='NCCL, Point To Point Communication Functions: "If multiple ncclSend() and ncclRecv()'
    " operations need to progress concurrently to complete, they must be fused within a"
    ' ncclGroupStart()/ncclGroupEnd() section"',
    is_certain=unless_left_early,
)
BOUND_DEVICES = Rule(
    says="A communicator is made when the group is, if the program names its device. All transfers"
    " of the group then run on it.",
    source="torch, `init_process_group(device_id=...)`",
    is_certain=always,
)
NO_TAGS = Rule(
    says="Transfers have no tags: they match in the order in which they are launched. None receives"
    " from any rank.",
    source="torch, ProcessGroupNCCL",
    is_certain=always,
)
ABORTS = Rule(
    says="On the clock that jumps, an operation that lasts for its timeout ends its process. A rank"
    " that leaves a group closes no connection on which others wait.",
    source='torch, `init_process_group`: "collectives will be aborted asynchronously and the'
    ' process will crash"',
    is_certain=always,
)

GLOO = Semantics(name="gloo")
"""Groups of NCCL behave as those of gloo do."""

NCCL = Semantics(name="nccl", rules=(COMMUNICATORS, STREAMS, BOUND_DEVICES, NO_TAGS, ABORTS))

SEMANTICS = (GLOO, NCCL)
"""All semantics; the first is the default."""


def semantics_of(spec: WorldSpec) -> Semantics:
    """Return the rules that groups of NCCL follow in a world."""
    return next((each for each in SEMANTICS if each.service in spec.services), GLOO)
