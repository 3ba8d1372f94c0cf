"""The service of worlds with `semantics="nccl"`: groups of NCCL follow the rules of NCCL.

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
* A communicator is made when the group is, if the program names its device (torch,
  `init_process_group(device_id=...)`). All transfers of the group then run on it.
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


def join(_spec: RankSpec) -> RankPart:
    """Make the groups of NCCL in this rank follow NCCL's rules."""
    from pytest_multihost.extensions.simulated.group import semantics

    semantics[:] = [NCCL]
    return RankPart()


_NAME = "nccl-semantics"


def _open_service(_opening: Opening) -> Service:
    return Service(name=_NAME)


SEMANTICS_SERVICES = [
    ServiceKind(
        name=_NAME,
        open=_open_service,
        part=ServicePart(rank=f"{__name__}:join", is_replayed=True),
        asked_by=("semantics", NCCL),
    )
]
