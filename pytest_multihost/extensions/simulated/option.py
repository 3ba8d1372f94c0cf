"""The option `semantics`: whose rules a simulated group of NCCL follows."""

from __future__ import annotations

from pytest_multihost.core.option import MarkerKey, Option, is_one_of, must_be, one_of

GLOO, NCCL = "gloo", "nccl"


SEMANTICS: Option[str] = Option(
    name="semantics",
    metavar="gloo|nccl",
    help="Rules that NCCL groups of the backend simulated follow: gloo's or NCCL's",
    parse=one_of(GLOO, NCCL),
    default=GLOO,
    key=MarkerKey(must_be(is_one_of(GLOO, NCCL), "'gloo' or 'nccl'"), str),
    is_replayed=True,
)
