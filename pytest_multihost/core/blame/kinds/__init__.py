"""The kinds of hangs, one file each.

They are `died`, `raised`, `stopped`, `gil_held`, `mismatch`, `deadlock`, `finished`, `straggler`,
`livelock`, `transport`, `stuck` and `unknown`; `hang_kind` has their common type. To add one,
write its file, put it into `KINDS` at its place, and its name into `Kind` of `model.verdict`.
"""

from typing import Final

from pytest_multihost.core.blame.kinds.deadlock import DEADLOCK
from pytest_multihost.core.blame.kinds.died import DIED
from pytest_multihost.core.blame.kinds.finished import FINISHED
from pytest_multihost.core.blame.kinds.gil_held import GIL_HELD
from pytest_multihost.core.blame.kinds.hang_kind import HangKind
from pytest_multihost.core.blame.kinds.livelock import LIVELOCK
from pytest_multihost.core.blame.kinds.mismatch import MISMATCH
from pytest_multihost.core.blame.kinds.raised import RAISED
from pytest_multihost.core.blame.kinds.stopped import STOPPED
from pytest_multihost.core.blame.kinds.straggler import STRAGGLER
from pytest_multihost.core.blame.kinds.stuck import STUCK
from pytest_multihost.core.blame.kinds.transport import TRANSPORT
from pytest_multihost.core.blame.kinds.unknown import UNKNOWN
from pytest_multihost.core.model.verdict import Kind

KINDS: Final = (
    DIED,
    RAISED,
    STOPPED,
    GIL_HELD,
    MISMATCH,
    DEADLOCK,
    FINISHED,
    STRAGGLER,
    LIVELOCK,
    TRANSPORT,
    STUCK,
    UNKNOWN,
)
"""All kinds by precedence: of causes that are equally old the first kind is the diagnosis."""

_BY_NAME: Final = {each.name: each for each in KINDS}


def kind_of(name: Kind) -> HangKind:
    """Return the kind with a name."""
    return _BY_NAME[name]


def precedence(name: Kind) -> int:
    """Return the place of a kind in `KINDS`."""
    return KINDS.index(_BY_NAME[name])
