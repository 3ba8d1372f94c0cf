"""The option `semantics`: whose rules a simulated group of NCCL follows."""

from __future__ import annotations

from pytest_multihost.core.option import MarkerKey, Option, is_one_of, must_be, one_of
from pytest_multihost.extensions.simulated.semantics import GLOO, SEMANTICS

_NAMES = [each.name for each in SEMANTICS]

SEMANTICS_OPTION: Option[str] = Option(
    name="semantics",
    metavar="|".join(_NAMES),
    help="Rules that NCCL groups of the backend simulated follow: gloo's or NCCL's",
    parse=one_of(*_NAMES),
    default=GLOO.name,
    key=MarkerKey(must_be(is_one_of(*_NAMES), " or ".join(map(repr, _NAMES))), str),
    is_replayed=True,
)
