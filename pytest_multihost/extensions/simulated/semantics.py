"""The setting `semantics`: whose rules a simulated group of NCCL follows.

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
* Transfers have no tags: they match in the order in which they are launched.

A wait ends when the operation has ended, as with gloo; with NCCL it ends earlier.
"""

from __future__ import annotations

from typing import Any

from pytest_multihost.core.model.errors import SettingError, shown
from pytest_multihost.core.model.spec import RankSpec, ServicePart
from pytest_multihost.core.option import MarkerKey, Option
from pytest_multihost.core.rank.services import RankPart
from pytest_multihost.core.services import Opening, Service, ServiceKind

GLOO, NCCL = "gloo", "nccl"
_NAME = "nccl-semantics"


def _parse(text: str) -> str:
    if text not in (GLOO, NCCL):
        raise SettingError(f"must be one of {GLOO}, {NCCL}, not {shown(text)}")
    return text


def _check(value: object) -> str | None:
    is_known = isinstance(value, str) and value in (GLOO, NCCL)
    return None if is_known else f"must be {GLOO!r} or {NCCL!r}, not {shown(value)}"


def _read(value: Any) -> str:  # noqa: ANN401 - `_check` has accepted it
    return str(value)


SEMANTICS: Option[str] = Option(
    name="semantics",
    metavar="gloo|nccl",
    help="Whose rules the NCCL groups of backend simulated follow",
    parse=_parse,
    default=GLOO,
    key=MarkerKey(_check, _read),
    is_replayed=True,
)


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
