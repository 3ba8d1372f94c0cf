"""The option `clock`: how time passes in a world."""

from __future__ import annotations

from pytest_multihost.core.option import MarkerKey, Option, is_one_of, must_be, one_of

REAL, JUMP = "real", "jump"


CLOCK_OPTION: Option[str] = Option(
    name="clock",
    metavar="real|jump",
    help="Clock of the ranks; jump: it jumps over waits that only a timeout can end",
    parse=one_of(REAL, JUMP),
    default=REAL,
    key=MarkerKey(must_be(is_one_of(REAL, JUMP), "'real' or 'jump'"), str),
    is_replayed=True,
)
