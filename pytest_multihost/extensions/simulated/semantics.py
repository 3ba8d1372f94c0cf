"""The service of worlds with `semantics="nccl"`: whose rules a simulated group of NCCL follows.

With "gloo", groups of NCCL behave as those of gloo do. With "nccl" they follow these rules:

* A communicator is made at the first operation that needs it, and this takes all its members:
  "ncclCommInitRank implicitly synchronizes with other ranks" (NCCL, Communicator Creation). A
  transfer that is no part of a batch has a communicator of its two ranks (torch, ProcessGroupNCCL).
  The first batch of a group takes all of the group's members (torch, `batch_isend_irecv`).
* The operations of a communicator run one after the other, in the order in which a rank launches
  them: torch gives each communicator one stream. So two ranks that each send first and receive then
  wait for each other: "If multiple ncclSend() and ncclRecv() operations need to progress
  concurrently to complete, they must be fused within a ncclGroupStart()/ncclGroupEnd() section"
  (NCCL, Point To Point Communication Functions).
* Transfers have no tags: they match in the order in which they are launched. None receives from
  any rank.
* On the clock that jumps, an operation that lasts for its timeout ends its process: "collectives
  will be aborted asynchronously and the process will crash" (torch, `init_process_group`).

A wait ends when the operation has ended, as with gloo. With NCCL it ends earlier. So a hang is not
proven if that could make a difference.
"""

from __future__ import annotations

from pytest_multihost.core.model.spec import RankSpec, ServicePart
from pytest_multihost.core.rank.services import RankPart
from pytest_multihost.core.services import Opening, Service, ServiceKind
from pytest_multihost.extensions.simulated.option import NCCL

_NAME = "nccl-semantics"


def join(_spec: RankSpec) -> RankPart:
    """Make the groups of NCCL in this rank follow NCCL's rules."""
    from pytest_multihost.extensions.simulated.group import semantics

    semantics[:] = [NCCL]
    return RankPart()


def _open(_opening: Opening) -> Service:
    return Service(name=_NAME)


SEMANTICS_SERVICE = ServiceKind(
    name=_NAME,
    open=_open,
    part=ServicePart(rank="pytest_multihost.extensions.simulated.semantics:join", is_replayed=True),
    asked_by=("semantics", NCCL),
)
